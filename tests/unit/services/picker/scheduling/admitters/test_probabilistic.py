"""`probabilistic-admitter`: the fuller the pool, the fewer sheddable requests are admitted."""

from typing import Any

import pytest

from services.picker.scheduling.admitters.probabilistic import ProbabilisticAdmitter
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, pool, report

OLD = 9.0
"""Seconds: stale."""
ROUNDS = 2000


def state(queues: list[float | None], usage: list[float | None], ages: Any = 0.0) -> View:
    view = pool(*(f"a{at}" for at in range(len(queues))))
    report(view, {WAITING_QUEUE_SIZE: queues, KV_CACHE_USAGE: usage}, ages)
    return view


def refused(view: View, raw: dict[str, Any] | None = None, policy: str = "saturated", priority: int = -1) -> float:
    """The share of requests that are refused."""
    admitter = plugin(ProbabilisticAdmitter, raw or {})
    run = cycle(view, policy=policy, priority=priority)
    return sum(admitter.admit(run, run.candidates) is not None for _ in range(ROUNDS)) / ROUNDS


LINEAR = {"power": 1, "k": 1}


@pytest.mark.parametrize(
    ("view", "raw", "policy", "expected"),
    [
        # s^5 · 300: 0.2 → 0.096, 0.25 → 0.293, 0.4 → 1
        (state([1, 1], [0.0, 0.0]), {}, "saturated", 0.096),
        (state([0, 0], [0.2, 0.2]), {}, "saturated", 0.293),
        (state([2, 2], [0.0, 0.0]), {}, "saturated", 1.0),
        (state([0, 0], [0.0, 0.0]), {}, "saturated", 0.0),
        # the mean of the fuller of the two: (0.6 + 0.2) / 2
        (state([3, 0], [0.0, 0.16]), LINEAR, "saturated", 0.4),
        (state([1], [0.4]), {**LINEAR, "queueDepthThreshold": 10, "kvCacheUtilThreshold": 0.5}, "saturated", 0.8),
        (state([1], [0.0]), {"power": 2, "k": 5}, "saturated", 0.2),
        # among others, an endpoint counts at most 1.5
        (state([1e9, *[0] * 9], [0.0] * 10), LINEAR, "saturated", 0.15),
        (state([26, *[0] * 9], [0.0] * 10), {}, "saturated", 0.023),
        (state([26], [0.0]), {"power": 1, "k": 0.1}, "saturated", 0.52),
        # an engine that reports one of the two is judged by it
        (state([None], [0.4]), LINEAR, "saturated", 0.5),
        # unknown and stale endpoints
        (state([1, None], [0.0, None]), LINEAR, "saturated", 0.6),
        (state([1, None], [0.0, None]), LINEAR, "ignore", 0.2),
        (state([1, 4], [0.0, 0.0], [0, OLD]), LINEAR, "saturated", 0.6),
        (state([1, 4], [0.0, 0.0], [0, OLD]), LINEAR, "ignore", 0.2),
        (state([1, 4], [0.0, 0.0], [0, OLD]), LINEAR, "lastKnown", 0.5),
        (state([9, 9], [1.0, 1.0], OLD), LINEAR, "saturated", 0.0),  # losing the metrics refuses nobody
        (state([9, 9], [1.0, 1.0]), {"power": 1000, "k": 1e9, "queueDepthThreshold": 1e-3}, "saturated", 1.0),
    ],
)
def test_the_share_that_is_refused(view: View, raw: dict[str, Any], policy: str, expected: float) -> None:
    found = refused(view, raw, policy)
    assert found == expected if expected in (0.0, 1.0) else found == pytest.approx(expected, abs=0.04)


@pytest.mark.parametrize("priority", [0, 1])
def test_only_sheddable_requests_are_refused(priority: int) -> None:
    assert refused(state([99], [1.0]), priority=priority) == 0


def test_nothing_is_refused_without_endpoints() -> None:
    assert refused(pool()) == 0


def test_a_refusal_says_why() -> None:
    run = cycle(state([99], [1.0]), priority=-1)
    refusal = plugin(ProbabilisticAdmitter, {}).admit(run, run.candidates)
    assert (refusal.status, refusal.reason, refusal.retry_after) == (429, "rejected-saturated", 1)


@pytest.mark.parametrize("name", ["queueDepthThreshold", "kvCacheUtilThreshold", "power", "k"])
def test_parameters_are_positive(name: str) -> None:
    assert read(ProbabilisticAdmitter.Parameters, {name: 0})[1] == [f"at.{name}: 0 is not above 0"]
