from math import nan

import pytest

from services.picker.flow_control.usage_limits.priority_holdback import PriorityHoldbackPolicy
from services.picker.flow_control.usage_limits.soft_reflective_ceiling import SoftReflectiveCeilingPolicy
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from services.picker.flow_control.waiting import Outcome, Waiting
from tests.unit.services.picker.flow_control.flows import Picker, Room, parameters, settings


@pytest.mark.parametrize(
    ("policy", "priorities", "expected"),
    [
        (parameters(StaticUsageLimitPolicy), [3, 0], [1.0, 1.0]),
        (parameters(StaticUsageLimitPolicy, threshold=0.7), [3, 0, -1], [0.7, 0.7, 0.7]),
        (parameters(PriorityHoldbackPolicy, minCeiling=0.4), [100, 10, 0], [1.0, 0.7, 0.4]),
        (parameters(PriorityHoldbackPolicy, minCeiling=0.4, maxCeiling=0.8), [5, 0], [0.8, 0.4]),
        (parameters(PriorityHoldbackPolicy, minCeiling=0.5, domain="value"), [100, 10, 0], [1.0, 0.55, 0.5]),
        (parameters(PriorityHoldbackPolicy, minCeiling=0.5, domain="value"), [10, 0, -10], [1.0, 0.75, 0.5]),
        # alone, a band isn't held back
        (parameters(PriorityHoldbackPolicy, minCeiling=0.4, maxCeiling=0.9), [0], [0.9]),
        (parameters(PriorityHoldbackPolicy, minCeiling=0.4), [], []),
        (parameters(SoftReflectiveCeilingPolicy), [0], [1.0]),
        (parameters(SoftReflectiveCeilingPolicy), [], []),
    ],
)
def test_ceilings(policy: StaticUsageLimitPolicy, priorities: list[int], expected: list[float]) -> None:
    assert policy.ceilings(0.6, priorities) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("saturation", "expected"),
    [
        # ranks 0, 1 and 2 have the ceilings 1, 1 − s/2 and 1 − s
        (0.0, ["111"]),
        (0.49, ["111", "111"]),
        # rank 2 is at its ceiling of 0.5, and has its turn every max(1, round(0.5 / 0.5)) = 1 calls
        (0.5, ["111", "111"]),
        # rank 1 is below its ceiling of 0.675; rank 2 is above 0.35: every round(0.65 / 0.35) = 2 calls
        (0.65, ["110", "111", "110", "111"]),
        # ranks 1 and 2 are above 0.6 and 0.2: every round(0.8 / 0.2) = 4 calls, in the same call
        (0.8, ["100", "100", "100", "111", "100"]),
        # full: the highest band's ceiling is 1, so nothing passes
        (1.0, ["100", "100"]),
        (1.7, ["100", "100"]),
    ],
)
def test_lower_bands_get_fewer_turns_as_the_pool_fills(saturation: float, expected: list[str]) -> None:
    policy = parameters(SoftReflectiveCeilingPolicy)
    calls = [policy.ceilings(saturation, [10, 5, 0]) for _ in expected]
    assert ["".join(str(int(ceiling)) for ceiling in call) for call in calls] == expected


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (StaticUsageLimitPolicy, {"threshold": 0}),
        (StaticUsageLimitPolicy, {"threshold": 1.01}),
        (StaticUsageLimitPolicy, {"threshold": nan}),
        (PriorityHoldbackPolicy, {}),
        (PriorityHoldbackPolicy, {"minCeiling": -0.1}),
        (PriorityHoldbackPolicy, {"minCeiling": 1.0}),
        (PriorityHoldbackPolicy, {"minCeiling": 0.5, "maxCeiling": 0.5}),
        (PriorityHoldbackPolicy, {"minCeiling": 0.5, "maxCeiling": 1.5}),
        (PriorityHoldbackPolicy, {"minCeiling": 0.5, "domain": "size"}),
        (PriorityHoldbackPolicy, {"minCeiling": 0.5, "shape": "sigmoid"}),
        (SoftReflectiveCeilingPolicy, {"threshold": 1}),
    ],
)
def test_parameters_out_of_range_are_refused(kind: type, given: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parameters(kind, **given)


@pytest.mark.parametrize(
    ("in_flight", "expected"),
    [
        (0, ["high", "middle", "low"]),
        (4, ["high", "middle"]),  # the low band's ceiling is 0.4
        (6, ["high"]),  # the middle's is 0.7, and the high request came first
        (7, ["high"]),
        (10, []),
    ],
)
def test_a_closed_band_closes_those_below_it(in_flight: int, expected: list[str]) -> None:
    how = settings(usage_limits=parameters(PriorityHoldbackPolicy, minCeiling=0.4))
    picker = Picker(how, Room(10))
    picker.controller.ensure_bands([100, 10])
    picker.pool.in_flight = in_flight
    for name, priority in (("low", 0), ("middle", 10), ("high", 100)):
        picker.add(name, priority=priority)
    assert picker.dispatch() == expected


def test_a_band_that_waits_for_its_turn_is_looked_at_again_soon() -> None:
    picker = Picker(settings(usage_limits=parameters(SoftReflectiveCeilingPolicy)), Room(10))
    picker.controller.ensure_bands([1])
    picker.pool.in_flight = 8
    picker.add("low")
    waited = 0
    while not picker.dispatch():
        waited += 1
        assert picker.controller.next_wake() == pytest.approx(picker.now + 0.001)
        picker.now = picker.controller.next_wake()
    assert waited == 3


@pytest.mark.parametrize(
    "broken",
    [
        lambda self, s, p: 1 / 0,
        lambda self, s, p: [],
        lambda self, s, p: None,
        lambda self, s, p: [None] * len(p),
        lambda self, s, p: ["full"] * len(p),
        lambda self, s, p: [nan] * len(p),
    ],
)
def test_a_failing_policy_lets_every_band_fill_the_pool(monkeypatch: pytest.MonkeyPatch, broken: object) -> None:
    monkeypatch.setattr(StaticUsageLimitPolicy, "ceilings", broken)
    picker = Picker(pool=Room(2))
    assert picker.arrives(Waiting("a", 0, 0.0)) is Outcome.DISPATCHED
    assert len(picker.failures) == 1
    for name in "abc":
        picker.add(name)
    assert picker.dispatch() == ["a", "b"]
    assert len(picker.failures) > 1


def test_a_saturation_that_is_no_number_counts_as_full() -> None:
    picker = Picker()
    picker.pool.broken = True
    picker.add("a")
    assert picker.dispatch() == []
