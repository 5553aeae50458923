import pytest

from services.picker.flow_control.band import LINGER
from services.picker.flow_control.fairness import program_aware
from services.picker.flow_control.fairness.program_aware import ProgramAwareFairness
from services.picker.flow_control.flow import Flow
from services.picker.flow_control.interfaces import FlowOrder
from services.picker.flow_control.ordering.fcfs import FcfsOrderingPolicy
from services.picker.flow_control.settings import BandSettings
from shared.bus.columns import flow_hash
from tests.unit.services.picker.flow_control.flows import (
    FAIRNESS,
    ROUND_ROBIN,
    Picker,
    Room,
    band,
    parameters,
    settings,
    table,
    tell,
)
from tests.work import counted


def one_by_one(picker: Picker, count: int) -> str:
    """The flows of the next requests, with room for one at a time."""
    served = ""
    for _ in range(count):
        picker.pool.capacity = picker.pool.in_flight + 1
        served += "".join(name[0] for name in picker.dispatch())
    return served


@pytest.mark.parametrize(
    ("weights", "arrivals", "expected"),
    [
        ({}, "aaabbc", "abcaba"),
        ({}, "cba", "abc"),
        # a has two turns a round: (0, a) (0, b) (0.5, a) (1, a) (1, b) (1.5, a) (2, b)
        ({"a": 2.0}, "aaaabbb", "abaabab"),
        # b has a turn every other round
        ({"b": 0.5}, "aaaabb", "abaaba"),
    ],
)
def test_flows_take_turns(weights: dict[str, float], arrivals: str, expected: str) -> None:
    picker = Picker(settings(weights=weights), Room(0))
    for name in arrivals:
        picker.add(name, name)
    assert one_by_one(picker, len(expected)) == expected


def test_a_flow_that_comes_joins_where_the_turns_are() -> None:
    picker = Picker(pool=Room(0))
    for name in "bbbccc":
        picker.add(name, name)
    assert one_by_one(picker, 3) == "bcb"
    picker.add("a", "a")  # before b, so its turn is in the next round
    picker.add("d", "d")  # after b, so its turn is in this round
    assert one_by_one(picker, 5) == "cdabc"


def test_turns_begin_with_the_first_flow_when_all_have_gone() -> None:
    picker = Picker(pool=Room(0))
    for name in "aab":
        picker.add(name, name)
    assert one_by_one(picker, 3) == "aba"
    for name in "baab":
        picker.add(name, name)
    assert one_by_one(picker, 4) == "abab"


def test_a_global_strict_band_has_no_flows() -> None:
    picker = Picker(settings(band("global-strict-fairness-policy")), Room(0))
    for name in "aabcab":
        picker.now += 1
        picker.add(name, name)
    assert one_by_one(picker, 6) == "aabcab"


def test_what_peers_dispatch_of_a_flow_counts_as_its_turns() -> None:
    pickers = {name: Picker(pool=Room(0), id=name) for name in ("me", "peer")}
    me, peer = pickers["me"], pickers["peer"]
    for _ in range(3):
        peer.add("b", "b")
    tell(pickers, ["peer"], 0.0)
    assert one_by_one(peer, 2) == "bb"
    for name in "aaabbb":
        me.add(name, name)
    tell(pickers, ["peer"], 0.01)  # two of b since the last table
    me.controller.forget("peer")
    assert one_by_one(me, 6) == "aaabbb"


def test_what_peers_go_on_to_dispatch_of_flows_that_wait_costs_no_more_and_more() -> None:
    picker = Picker(pool=Room(0))
    flows = [f"flow {number}" for number in range(20)]
    for flow in flows:
        picker.add(flow, flow)
    work: list[int] = []
    for number in range(60):
        told = table(*((0, flow_hash(flow), 1, 1, 0, 1, 1000 * number, 0) for flow in flows))
        with counted() as costs:
            picker.controller.apply("peer", 1, float(number), told, 0.0)
        work.append(costs.instructions)
    assert max(work[-10:]) <= 1.5 * max(work[1:11])
    picker.controller.forget("peer")
    picker.pool.capacity = 20
    assert picker.dispatch() == sorted(flows)


def serve(picker: Picker, flow: str, prompt: int, completion: int = 0) -> None:
    """Have a request of the flow cost so much."""
    item = picker.add(flow, flow)
    picker.pool.capacity = picker.pool.in_flight + 1
    picker.dispatch()
    picker.finish(item, prompt, completion)


PROGRAM_AWARE = "program-aware-fairness"


def test_the_program_that_got_the_least_is_next() -> None:
    picker = Picker(settings(band(PROGRAM_AWARE)), Room(0))
    serve(picker, "a", 100, 50)  # 200
    serve(picker, "b", 150)
    serve(picker, "c", 0, 90)  # 180
    for name in "abcabc":
        picker.add(name, name)
    # nothing is served while they wait, so the least stays the least: b 150, c 180, a 200
    assert one_by_one(picker, 6) == "bbccaa"


def test_a_long_wait_outweighs_some_service() -> None:
    picker = Picker(settings(band(PROGRAM_AWARE)), Room(0))
    serve(picker, "a", 100)
    serve(picker, "b", 80)
    serve(picker, "c", 0, 0)
    picker.now = 1.0
    picker.add("a", "a")
    picker.now = 2.0
    picker.add("b", "b")
    picker.add("c", "c")
    picker.now = 3.0
    # a: 0.8·0 + 0.2·1 = 0.2; b: 0.8·0.2 + 0.2·0 = 0.16; c: 0.8·1 + 0 = 0.8. Then, of two,
    # b is the one with less service and a the one that waited longer: b has 0.8, a has 0.2
    assert one_by_one(picker, 3) == "cba"


def test_equal_programs_take_turns() -> None:
    fairness = parameters(ProgramAwareFairness, lasWeightHeadWait=0)
    picker = Picker(settings(BandSettings(FcfsOrderingPolicy("fcfs"), fairness)), Room(0))
    for name in "aaacccbbb":
        picker.add(name, name)
    assert one_by_one(picker, 9) == "acbacbacb"


@pytest.mark.parametrize("fairness", FAIRNESS)
def test_flows_whose_ids_have_the_same_hash(fairness: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.picker.flow_control.flow.flow_hash", lambda id: 7)
    pickers = {name: Picker(settings(band(fairness)), id=name) for name in ("me", "peer")}
    me = pickers["me"]
    for round in range(3):
        for picker in pickers.values():
            picker.now = round * 10.0
            items = [picker.add(name, name) for name in "abcabc"]
            tell(pickers, now=picker.now)
            assert sorted(picker.dispatch()) == list("aabbcc")
            for item in items:
                picker.finish(item, 10, 5)
        tell(pickers, now=me.now + LINGER)
        assert [len(band.flows) for band in me.controller.bands()] == [0]
    assert me.failures == []


@pytest.mark.parametrize(
    ("half_life", "served", "arrivals", "expected"),
    [
        # b has 25 left
        (60.0, {120.0: "a"}, "ab", "ba"),
        # b has all 100 left
        (0.0, {120.0: "a"}, "ab", "ab"),
        # b has 100 / 2**1060 left, so little that one divided by it is infinite
        (1.0, {530.0: "c", 1060.0: "c"}, "abab", "abab"),
    ],
)
def test_service_fades(half_life: float, served: dict[float, str], arrivals: str, expected: str) -> None:
    fairness = parameters(ProgramAwareFairness, lasHalfLifeSeconds=half_life)
    picker = Picker(settings(BandSettings(FcfsOrderingPolicy("fcfs"), fairness)), Room(0))
    serve(picker, "b", 100)
    for picker.now, name in served.items():
        serve(picker, name, 50)
    for name in arrivals:
        picker.add(name, name)
    assert one_by_one(picker, len(expected)) == expected


def test_service_is_forgotten_after_its_time() -> None:
    fairness = parameters(ProgramAwareFairness, evictionTtlSeconds=100, evictionSweepSeconds=10, lasHalfLifeSeconds=0)
    picker = Picker(settings(BandSettings(FcfsOrderingPolicy("fcfs"), fairness)), Room(0))
    serve(picker, "b", 100)
    assert fairness.state() == {"programs": 1}
    picker.now = 101.0
    serve(picker, "a", 50)
    assert fairness.state() == {"programs": 1}
    for name in "ab":
        picker.add(name, name)
    assert one_by_one(picker, 2) == "ba"


def test_service_counts_for_as_long_as_the_clock_runs() -> None:
    picker = Picker(settings(band(PROGRAM_AWARE)), Room(0))
    for day in range(30):
        picker.now = day * 86_400.0
        serve(picker, "a", 100)
        serve(picker, "b", 99)
        for name in "ab":
            picker.add(name, name)
        assert one_by_one(picker, 2) == "ba"


def test_service_at_peers_counts() -> None:
    pickers = {name: Picker(settings(band(PROGRAM_AWARE)), Room(0), id=name) for name in ("me", "peer")}
    tell(pickers, ["peer"])
    serve(pickers["peer"], "a", 100)
    tell(pickers, ["peer"], 0.01)
    me = pickers["me"]
    serve(me, "b", 60)
    for name in "ab":
        me.add(name, name)
    assert one_by_one(me, 2) == "ba"


@pytest.mark.parametrize(("half_life", "seconds"), [(60.0, 4 * 60), (0.0, 22 * 60)])
def test_what_a_peer_says_shuts_a_program_out_for_a_limited_time(half_life: float, seconds: int) -> None:
    fairness = parameters(ProgramAwareFairness, lasHalfLifeSeconds=half_life, lasWeightHeadWait=0)
    picker = Picker(settings(BandSettings(FcfsOrderingPolicy("fcfs"), fairness)), Room(0))
    for picker.now in range(120):
        serve(picker, "ab"[picker.now % 2], 20_000)
    for _ in range(3):
        fairness.served_elsewhere(flow_hash("a"), 2**31 - 1, picker.now)
    picker.add("a", "a")
    picker.pool.capacity = picker.pool.in_flight
    for picker.now in range(120, 120 + seconds):
        item = picker.add("b", "b")
        if one_by_one(picker, 1) == "a":
            break
        picker.finish(item, 20_000, 0)
    else:
        pytest.fail("it never had a turn")


def test_programs_of_peers_displace_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_aware, "MAX_PROGRAMS", 2)
    fairness = parameters(ProgramAwareFairness)
    picker = Picker(settings(BandSettings(FcfsOrderingPolicy("fcfs"), fairness)), Room(0))
    serve(picker, "a", 100)
    serve(picker, "b", 50)
    for invented in range(10):
        fairness.served_elsewhere(invented, 1, picker.now)
    assert fairness.state() == {"programs": 2}
    for name in "ab":
        picker.add(name, name)
    assert one_by_one(picker, 2) == "ba"


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "fifo"},
        {"evictionTtlSeconds": -1},
        {"evictionSweepSeconds": 0},
        {"lasWeightService": -0.1},
        {"lasWeightHeadWait": -0.1},
        {"lasHalfLifeSeconds": -1},
    ],
)
def test_parameters_out_of_range_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parameters(ProgramAwareFairness, **given)


class _Broken(FlowOrder):
    def activated(self, flow: Flow) -> None:
        raise RuntimeError("activated")

    def pick(self, now: float) -> Flow | None:
        raise RuntimeError("pick")


def test_a_failing_policy_costs_its_turns_and_no_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    how = settings(band(ROUND_ROBIN))
    monkeypatch.setattr(type(how.template.fairness), "flow_order", lambda self: _Broken())
    picker = Picker(how)
    for name in "ab":
        picker.add(name, name)
    assert sorted(picker.dispatch()) == ["a", "b"]
    assert set(picker.failures) == {"activated", "pick"}
