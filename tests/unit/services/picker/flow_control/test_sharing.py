"""Several pickers: who dispatches when, with tables in agreement, late, lost or wrong."""

from collections.abc import Sequence
from math import floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.division import PATIENCE
from services.picker.flow_control.peers import EXPIRY
from services.picker.flow_control.shares import quotas
from tests.unit.services.picker.flow_control.flows import ROUND_ROBIN, Picker, Room, band, settings, table, tell
from tests.unit.services.picker.flow_control.simulation import PoolView, simulate

STRICT = "global-strict-fairness-policy"
LONG_AGO = 100.0


def group(queues: Sequence[str], fairness: str = ROUND_ROBIN, priorities: dict[str, int] | None = None) -> list[Picker]:
    """Pickers with these flows in their queues, a letter a request, the letters a second apart over all queues; with a
    full pool, and in agreement."""
    bands = priorities or {}
    pickers = [
        Picker(settings(band(fairness), ttl=0.0), PoolView(1), id=f"picker-{number}") for number in range(len(queues))
    ]
    second = 0.0
    for picker, queue in zip(pickers, queues, strict=True):
        picker.controller.ensure_bands(bands.values())
        for letter in queue:
            second += 1
            picker.now = second
            picker.add(letter, letter, bands.get(letter, 0))
        picker.now = LONG_AGO
    agree(pickers)
    return pickers


def agree(pickers: Sequence[Picker], capacity: float | None = None) -> None:
    """Have all pickers hear each other's queues and load."""
    tell({f"picker-{at}": picker for at, picker in enumerate(pickers)}, now=pickers[0].now)
    for at, picker in enumerate(pickers):
        for other in pickers:
            if other is not picker:
                assert isinstance(other.pool, PoolView)
                other.pool.hear(f"picker-{at}", picker.pool.in_flight, picker.now)
    for picker in pickers:
        picker.pool.capacity = picker.pool.capacity if capacity is None else capacity


def dispatch(pickers: Sequence[Picker]) -> list[str]:
    """What each lets go, without hearing of the others."""
    return ["".join(picker.dispatch()) for picker in pickers]


@pytest.mark.parametrize(
    ("queues", "fairness", "room", "expected"),
    [
        (["aaaa", "bbbb"], ROUND_ROBIN, 4, ["aa", "bb"]),
        (["aaaa", "b"], ROUND_ROBIN, 4, ["aaa", "b"]),
        (["aaaaaaaa", "bb", ""], ROUND_ROBIN, 9, ["aaaaaaa", "bb", ""]),
        # of a, three quarters wait at the first picker; b is as great as a
        (["aaaaaaaaa", "aaa", "bbbbbbbb"], ROUND_ROBIN, 8, ["aaa", "a", "bbbb"]),
        # one request and two who want it: the older
        (["aa", "bb"], ROUND_ROBIN, 1, ["a", ""]),
        (["", "bb", "aa"], ROUND_ROBIN, 1, ["", "b", ""]),
        # 1.5 each, the second one's queue is younger
        (["aaaa", "bbbb"], ROUND_ROBIN, 3, ["aa", "b"]),
        # without flows, by demand
        (["aaaaaa", "bb"], STRICT, 4, ["aaa", "b"]),
        # enough for all
        (["aab", "bb"], ROUND_ROBIN, 5, ["aba", "bb"]),
        (["aab", ""], ROUND_ROBIN, 2, ["ab", ""]),
    ],
)
def test_free_room_is_divided(queues: list[str], fairness: str, room: int, expected: list[str]) -> None:
    pickers = group(queues, fairness)
    agree(pickers, room)
    assert dispatch(pickers) == expected


@pytest.mark.parametrize(
    ("queues", "room", "expected"),
    [
        (["hll", "lll"], 1, ["h", ""]),
        (["lll", "hll"], 1, ["", "h"]),
        (["lll", "h"], 3, ["", "h"]),  # only when the other's has gone
        (["mll", "hm", "l"], 3, ["", "hm", ""]),
        (["lll", "lll"], 2, ["l", "l"]),
    ],
)
def test_a_higher_band_anywhere_goes_first(queues: list[str], room: int, expected: list[str]) -> None:
    pickers = group(queues, priorities={"h": 10, "m": 5, "l": 0})
    agree(pickers, room)
    assert dispatch(pickers) == expected


def test_a_lower_band_goes_on_when_the_higher_has_gone() -> None:
    pickers = group(["lll", "h"], priorities={"h": 10})
    agree(pickers, 3)
    assert dispatch(pickers) == ["", "h"]
    agree(pickers)
    assert dispatch(pickers) == ["ll", ""]


@pytest.mark.parametrize("age", [0.04, 2.085, 30.007])
def test_a_remainder_is_taken_when_requests_came_at_once_everywhere(age: float) -> None:
    pickers = [Picker(settings(ttl=0.0), PoolView(1), id=f"picker-{at}") for at in range(3)]
    for picker in pickers:
        picker.now = 0.48
        for name in "ab":
            picker.add(name)
        picker.now += age
    agree(pickers, capacity=2)
    assert sorted(map(len, dispatch(pickers))) == [0, 1, 1]


def test_what_a_picker_releases_is_its_own() -> None:
    """Nobody need be told: the other still believes that there is no room."""
    pickers = group(["a" * 20, "b" * 20])
    agree(pickers, 10)
    assert dispatch(pickers) == ["aaaaa", "bbbbb"]
    for picker in pickers:
        picker.now += 0.05
    agree(pickers)
    for picker, letter in zip(pickers, "ab", strict=True):
        for item in picker.running[:3]:
            picker.finish(item)
        assert picker.dispatch() == [letter] * 3


def test_dispatches_that_peers_cannot_know_of_count() -> None:
    pickers = group(["a" * 20, "b" * 20])
    agree(pickers, 6)
    assert dispatch(pickers) == ["aaa", "bbb"]
    for _ in range(5):  # no news of each other, and each thinks that three more would fit
        for picker in pickers:
            picker.now += 0.005
        assert dispatch(pickers) == ["", ""]


@pytest.mark.parametrize(("after", "expected"), [(EXPIRY - 0.01, ""), (EXPIRY, "l")])
def test_a_silent_pickers_queue_stops_counting(after: float, expected: str) -> None:
    me, _ = group(["l", "h"], priorities={"h": 10})
    me.dispatch()
    me.pool.capacity = 1
    me.now += after
    assert "".join(me.dispatch()) == expected


def test_partitioned_pickers_go_on_alone_and_merge() -> None:
    pickers = group(["a" * 20, "b" * 20])
    for picker in pickers:
        picker.now += 2 * EXPIRY
        picker.pool.expire(picker.now)  # type: ignore[attr-defined]
        picker.pool.capacity = 4
    assert dispatch(pickers) == ["aaaa", "bbbb"]  # each has the pool for itself
    agree(pickers)
    assert dispatch(pickers) == ["", ""]
    for item in list(pickers[0].running):
        pickers[0].finish(item)
    pickers[1].finish(pickers[1].running[0])
    for picker in pickers:
        picker.now += 0.05
    agree(pickers)
    assert dispatch(pickers) == ["a", ""]  # one is free, and it is the first one's part


def test_a_picker_whose_peers_use_nothing_takes_a_request_after_a_while() -> None:
    me, _ = group(["ab", "cc"])
    me.pool.capacity = 1
    me.now += 0.01
    assert me.dispatch() == ["a"]  # it has the oldest
    me, other = reversed(group(["cc", "ab"]))
    me.pool.capacity = 1
    assert me.dispatch() == []
    wake = me.controller.next_wake()
    assert wake == pytest.approx(me.now + 2 * PATIENCE)  # it is the second of the two
    me.now = wake
    assert me.dispatch() == ["a"]
    assert other.outcomes == []


@pytest.mark.parametrize(("rows", "refreshes"), [(1, 10), (2000, 8), (9000, 5)])
def test_quotas_of_long_tables_are_computed_less_often(
    rows: int, refreshes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most every 20 ms, and 2 µs a row."""
    computed = []

    def counting(*arguments: Any) -> list[int]:
        computed.append(arguments)
        return quotas(*arguments)

    monkeypatch.setattr("services.picker.flow_control.division.quotas", counting)
    picker = Picker(settings(ttl=0.0), Room(1))
    for _ in range(300):
        picker.add("mine")
    for step in range(1, 201):
        picker.now = step / 1000
        each = min(rows, 1000)
        for sender in range(rows // each):
            told = ((0, flow, 1, 1, 1, 0, step, 0) for flow in range(1, each + 1))
            if step % 10 == 1:
                picker.controller.apply(str(sender), 1, picker.now, table(*told), picker.now)
        picker.pool.capacity += 1
        picker.dispatch()
    assert len(computed) == pytest.approx(refreshes, abs=1)


QUEUES = st.lists(st.text("abcdef", max_size=12), min_size=2, max_size=4)
ROOMS = st.integers(0, 300).map(lambda tenths: tenths / 10)


@given(QUEUES, st.integers(0, 12), ROOMS, st.sampled_from([ROUND_ROBIN, STRICT, "program-aware-fairness"]))
def test_pickers_in_agreement_use_all_room_and_no_more(
    queues: list[str], running: int, room: float, fairness: str
) -> None:
    pickers = group(queues, fairness)
    agree(pickers, running)
    dispatch(pickers)
    for picker in pickers:
        picker.now += 0.05
    agree(pickers)
    in_flight = sum(picker.pool.in_flight for picker in pickers)
    waiting = sum(picker.controller.requests for picker in pickers)
    agree(pickers, in_flight + room)
    assert sum(map(len, dispatch(pickers))) == min(floor(room), waiting)


@given(st.lists(st.text("lmh", max_size=6), min_size=2, max_size=4), st.integers(0, 10))
def test_no_lower_band_while_anybody_has_a_higher_one(queues: list[str], room: int) -> None:
    bands = {"h": 10, "m": 5, "l": 0}
    pickers = group(queues, priorities=bands)
    agree(pickers, room)
    highest = max((bands[letter] for queue in queues for letter in queue), default=None)
    for picker in pickers:
        above = {bands[name] for other in pickers if other is not picker for name in queues[pickers.index(other)]}
        for letter in picker.dispatch():
            assert bands[letter] == highest or not above or bands[letter] >= max(above)


SPREAD = {
    "a": [80.0, 0.0, 0.0, 0.0],
    "b": [0.0, 40.0, 4.0, 0.0],
    "c": [0.0, 0.0, 8.0, 40.0],
    "d": [24.0, 24.0, 24.0, 24.0],
}


@pytest.mark.parametrize(
    ("fairness", "weights", "service", "least"),
    [
        (ROUND_ROBIN, {}, 0.5, 0.99),
        (ROUND_ROBIN, {"a": 2.0}, 0.5, 0.99),
        ("program-aware-fairness", {}, 0.5, 0.95),
        (ROUND_ROBIN, {}, 0.1, 0.99),
    ],
)
def test_flows_are_equal_over_pickers(fairness: str, weights: dict[str, float], service: float, least: float) -> None:
    how = [settings(band(fairness, max_requests=10**6), weights=weights) for _ in range(4)]
    rates = {flow: [rate * 0.5 / service for rate in each] for flow, each in SPREAD.items()}
    result = simulate(how, rates, capacity=40, seconds=5.0, service=service)
    assert result.jain(weights) >= least
    assert result.used >= 0.98
    assert result.excess <= 4


def test_without_tables_the_busiest_picker_gets_the_most() -> None:
    how = [settings(band(max_requests=10**6)) for _ in range(4)]
    result = simulate(how, SPREAD, capacity=40, seconds=5.0, share=False)
    assert result.jain() < 0.9


def test_a_pool_of_one_knows_no_peers() -> None:
    picker = Picker(pool=Room(2))
    for name in "abc":
        picker.add(name)
    assert picker.dispatch() == ["a", "b"]
    assert picker.controller.next_wake() == 60.0


def test_a_peer_whose_demand_and_progress_are_false_leaves_most_of_the_pool_to_others() -> None:
    picker = Picker(settings(band(ROUND_ROBIN), ttl=0.0), Room(100))
    for number in range(200):
        picker.add(number, "a")
    for step in range(500):
        picker.now = step * 0.02
        false = table(*((0, flow, 1000, 1, 10**9, 0, step, 0) for flow in range(1, 201)))
        picker.controller.apply("peer", 1, picker.now, false, picker.now)
        picker.dispatch()
    assert picker.pool.in_flight >= 75
