"""One picker's queues: limits, ends of waits, bands."""

import weakref
from collections.abc import Iterable, Sequence
from math import inf

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.band import MAX_FORGOTTEN
from services.picker.flow_control.controller import MAX_AT_ONCE, BlockedBand
from services.picker.flow_control.settings import FlowControlSettings
from services.picker.flow_control.usage_limits.priority_holdback import PriorityHoldbackPolicy
from services.picker.flow_control.waiting import DEFAULT_FLOW, MAX_ID, Outcome, Waiting, flow_id
from shared.bus.columns import flow_hash
from shared.bus.messages import MAX_BANDS
from tests.unit.services.picker.flow_control.flows import Picker, Room, band, drained, parameters, settings
from tests.work import counted

STRICT = "global-strict-fairness-policy"


@pytest.mark.parametrize(
    ("how", "taken", "refused"),
    [
        # (priority, bytes) that are taken, and then one that isn't
        (settings(band(max_requests=2)), [(0, 0), (0, 0)], (0, 0)),
        (settings(band(max_bytes=100)), [(0, 60), (0, 40)], (0, 1)),
        (settings(band(max_bytes=100)), [], (0, 101)),
        (settings(max_requests=2), [(0, 0), (5, 0)], (0, 0)),
        (settings(max_bytes=100), [(0, 60), (5, 40)], (0, 1)),
        (settings(max_bytes=100), [], (0, 101)),
        (settings(bands={5: band(max_requests=1)}), [(0, 0), (0, 0), (5, 0)], (5, 0)),
        (settings(negative_template=band(max_requests=1)), [(0, 0), (0, 0), (-1, 0)], (-1, 0)),
        # of a priority without a band, it counts in band 0
        (settings(bands={0: band(max_requests=1)}), [(77, 0)], (0, 0)),
    ],
)
@pytest.mark.parametrize("empty", [False, True])
def test_limits(how: FlowControlSettings, taken: list[tuple[int, int]], refused: tuple[int, int], empty: bool) -> None:
    picker = Picker(how, Room(0 if empty else 10))
    picker.pool.in_flight = 10
    picker.controller.ensure_bands([5, -1])
    picker.dispatch()
    items = []
    for priority, size in taken:
        items.append(item := Waiting("a", priority, 0.0, bytes=size))
        picker.controller.expire(0.0, empty)
        assert picker.controller.enqueue(item, 0.0) is None
    priority, size = refused
    expected = Outcome.REJECTED_NO_ENDPOINTS if empty else Outcome.REJECTED_CAPACITY
    assert picker.offer(priority, bytes=size) is expected
    assert picker.arrives(Waiting("a", priority, 0.0, bytes=size)) is expected
    if items:  # what leaves makes room at once
        picker.controller.cancel(items[-1], 0.0)
        assert picker.offer(priority, bytes=size) is None


MAKES_ROOM: dict[str, tuple[FlowControlSettings, list[str], str, list[str] | None]] = {
    # requests as "flow priority bytes": those that wait, one that comes, and who makes room for it; None: it is refused
    "bytes of a lower band, newest first": (settings(max_bytes=8), ["a -9 4", "a -9 3", "a -9 1"], "b 5 1", ["a -9 1"]),
    "also for band 0": (settings(max_bytes=8), ["a -9 4", "a -9 4"], "b 0 1", ["a -9 4"]),
    "also for the same fairness id": (settings(max_bytes=8), ["a -9 8"], "a 0 1", ["a -9 8"]),
    "a place in a lower band": (settings(max_requests=2), ["a -9 1", "a -9 2"], "b 5 9", ["a -9 2"]),
    "both": (settings(max_requests=2, max_bytes=8), ["a -9 5", "a -9 3"], "b 5 6", ["a -9 3", "a -9 5"]),
    "the lowest band first": (settings(max_bytes=8), ["a -9 4", "a 0 4"], "b 5 1", ["a -9 4"]),
    "then the next": (settings(max_bytes=8), ["a -9 4", "a 0 1", "a 0 3"], "b 5 7", ["a -9 4", "a 0 3"]),
    "of a lower band, the fullest flow": (settings(max_bytes=8), ["a -9 6", "b -9 2"], "c 5 1", ["a -9 6"]),
    "a band below has no bytes": (settings(max_bytes=8), ["a -9 0", "a 0 8"], "b 5 1", ["a 0 8"]),
    "too little below": (settings(max_bytes=8), ["a -9 2", "b 5 6"], "b 5 3", None),
    "nothing below": (settings(max_bytes=8), ["a 5 8"], "b 0 1", None),
    "a band's own limit": (settings(band(max_bytes=8), max_bytes=9), ["a -9 1", "b 5 8"], "b 5 1", None),
    "the fullest flow": (settings(max_requests=4), ["a 0 1", "a 0 2", "a 0 3", "b 0 9"], "c 0 1", ["a 0 3"]),
    "its bytes": (settings(max_bytes=9), ["a 0 3", "a 0 3", "b 0 1", "b 0 1", "b 0 1"], "c 0 1", ["a 0 3"]),
    "lower bands, then it": (settings(max_bytes=9), ["d -9 1", *["a 0 2"] * 4], "c 0 3", ["d -9 1", "a 0 2"]),
    "it keeps as much": (settings(max_requests=3), ["a 0 1", "a 0 2", "b 0 1"], "b 0 2", None),
    "however large others are": (settings(max_bytes=15), [*["a 0 2"] * 4, "d 0 7"], "b 0 2", ["a 0 2"]),
    "one flow alone": (settings(max_bytes=20), ["a 0 7", *["a 0 1"] * 3, "b 0 10"], "c 0 3", ["a 0 1"] * 3),
    "it keeps something": (settings(max_bytes=9), ["a 0 9"], "b 0 1", None),
    "one flow": (settings(max_requests=3), ["a 0 1", "a 0 2", "a 0 3"], "a 0 1", None),
    "flows that don't matter": (settings(band(STRICT), max_requests=3), ["a 0 1", "a 0 2", "a 0 3"], "b 0 1", None),
    "the first of a band": (settings(max_requests=1), ["a 5 1"], "b 0 1", None),
}


@pytest.mark.parametrize("case", MAKES_ROOM)
@pytest.mark.parametrize("empty", [False, True])
def test_others_make_room_within_the_limits_of_all_queues(case: str, empty: bool) -> None:
    """Whoever makes room can't take it back, and all is given back in the end."""
    how, waiting, comes, displaced = MAKES_ROOM[case]
    picker = Picker(how, Room(0))
    controller = picker.controller
    controller.ensure_bands([5, -9])
    controller.expire(0.0, empty)
    refused = Outcome.REJECTED_NO_ENDPOINTS if empty else Outcome.REJECTED_CAPACITY

    def offers(request: str) -> Outcome | None:
        flow, priority, size = request.split()
        return picker.offer(int(priority), flow=flow, bytes=int(size), owner=request)

    assert [offers(request) for request in waiting] == [None] * len(waiting)
    assert offers(comes) is (refused if displaced is None else None)
    assert picker.outcomes == [(owner, Outcome.DISPLACED) for owner in displaced or []]
    if displaced:
        held = controller.requests, controller.bytes
        assert offers(displaced[0]) is refused
        assert (controller.requests, controller.bytes) == held
    assert controller.requests == len(waiting) - len(displaced or []) + (displaced is not None)
    assert controller.bytes <= (how.max_bytes or inf)
    while controller.shut_down(0.0):
        pass
    assert len(picker.outcomes) == len(waiting) + (displaced is not None)
    assert (controller.requests, controller.bytes) == (0, 0)
    for queues in controller.bands():
        assert (queues.requests, queues.bytes, queues.tokens) == (0, 0, 0)
        for flow in queues.flows.values():
            assert (flow.requests, flow.bytes, flow.tokens, len(flow.queue), len(flow.arrived)) == (0, 0, 0, 0, 0)
    assert controller.next_wake() == inf


def test_others_make_room_however_large_a_request_was_that_has_left() -> None:
    picker = Picker(settings(max_bytes=10), Room(0))
    picker.add("stays", flow="a", bytes=1)
    picker.controller.cancel(picker.add("large", flow="a", bytes=9), 0.0)
    for number in range(9):
        picker.add(number, flow="a", bytes=1)
    assert picker.offer(flow="b", bytes=1) is None
    assert [owner for owner, _ in picker.outcomes] == ["large", 8]


def test_many_small_requests_make_room_a_bounded_number_at_a_time() -> None:
    picker = Picker(settings(max_bytes=3 * MAX_AT_ONCE), Room(0))
    picker.controller.ensure_bands([5, -9])
    for number in range(3 * MAX_AT_ONCE):
        picker.add(number, priority=-9, bytes=1)
    large = picker.add("large", priority=5, bytes=2 * MAX_AT_ONCE + 1)
    ended = [len(picker.outcomes)]
    while picker.controller.next_wake() <= 0.0:
        picker.controller.expire(0.0, True)
        ended.append(len(picker.outcomes))
    assert ended == [MAX_AT_ONCE, 2 * MAX_AT_ONCE, 2 * MAX_AT_ONCE + 1]
    assert (large.queued, picker.controller.bytes) == (True, 3 * MAX_AT_ONCE)
    assert [owner for owner, _ in picker.outcomes] == [*range(MAX_AT_ONCE * 3 - 1, MAX_AT_ONCE - 2, -1)]


@pytest.mark.parametrize(("size", "displaced"), [(MAX_AT_ONCE, MAX_AT_ONCE), (MAX_AT_ONCE + 1, 0)])
def test_one_request_has_only_so_many_of_its_band_make_room(size: int, displaced: int) -> None:
    picker = Picker(settings(max_bytes=3 * MAX_AT_ONCE), Room(0))
    for number in range(3 * MAX_AT_ONCE):
        picker.add(number, flow="a", bytes=1)
    assert (picker.offer(flow="b", bytes=size) is None) is (displaced > 0)
    assert len(picker.outcomes) == displaced


def test_to_make_room_costs_no_more_among_many_requests() -> None:
    def work(flows: int, each: int) -> int:
        picker = Picker(settings(max_requests=flows * each), Room(0))
        picker.controller.ensure_bands([5, -9])
        for number in range(flows * each):
            picker.add(number, flow=f"flow-{number % flows}", priority=-9)
        picker.add("first", priority=5)
        with counted() as done:
            picker.add("second", priority=5)
        assert len(picker.outcomes) == 2
        return done.instructions

    assert max(work(2, 2000), work(1000, 4)) < 2 * work(2, 4)


def test_limits_of_zero_in_total_are_none() -> None:
    picker = Picker(settings(max_requests=0, max_bytes=0))
    for _ in range(100):
        assert picker.offer(bytes=10**6) is None
    assert (picker.controller.requests, picker.controller.bytes) == (100, 10**8)


@pytest.mark.parametrize(
    ("ttl", "no_endpoint_ttl", "regimes", "expected"),
    [
        # (from when, is the pool empty) → when the wait of a request of second 0 is over
        (60, 60, [(0, False)], (60, Outcome.EXPIRED)),
        (60, 5, [(0, True)], (5, Outcome.EXPIRED_NO_ENDPOINTS)),
        (60, 300, [(0, False), (50, True)], (350 - 48, Outcome.EXPIRED_NO_ENDPOINTS)),  # the grace ends it at 302
        (60, 300, [(0, True), (100, False)], (160, Outcome.EXPIRED)),
        (0, 30, [(0, False)], (inf, None)),
        (0, 30, [(0, False), (1000, True)], (1030, Outcome.EXPIRED_NO_ENDPOINTS)),
        (30, 0, [(0, True)], (inf, None)),
        (60, 60, [(at, at % 20 == 0) for at in range(0, 100, 10)], (62, Outcome.EXPIRED_NO_ENDPOINTS)),
    ],
)
def test_times_to_live(
    ttl: float, no_endpoint_ttl: float, regimes: list[tuple[float, bool]], expected: tuple[float, Outcome | None]
) -> None:
    picker = Picker(settings(ttl=ttl, no_endpoint_ttl=no_endpoint_ttl), Room(1))
    picker.pool.in_flight = 1
    picker.add("a")
    over, outcome = expected
    for since, empty in regimes:
        if since < over:
            picker.controller.expire(since, empty)
    assert picker.controller.next_wake() == over
    if outcome is not None:
        last_empty = [empty for since, empty in regimes if since < over][-1]
        picker.controller.expire(over - 0.001, last_empty)
        assert picker.outcomes == []
        picker.controller.expire(over, last_empty)
        assert picker.outcomes == [("a", outcome)]
        assert picker.controller.next_wake() == inf


def test_waits_end_in_the_order_of_their_ends() -> None:
    picker = Picker(settings(ttl=10.0))
    for name, second, deadline in (("a", 0, inf), ("b", 1, 30.0), ("c", 2, 5.0), ("d", 3, inf)):
        picker.now = second
        picker.add(name, deadline=deadline)
    ends = []
    while (wake := picker.controller.next_wake()) < inf:
        before = len(picker.outcomes)
        picker.controller.expire(wake, False)
        ends += [(wake, owner) for owner, _ in picker.outcomes[before:]]
    assert ends == [(5.0, "c"), (10.0, "a"), (11.0, "b"), (13.0, "d")]


def test_a_pool_that_scales_from_zero_serves_its_queue() -> None:
    picker = Picker(pool=Room(0))
    picker.add("a")
    picker.add("b")
    assert picker.dispatch() == []
    picker.pool.capacity = 1
    assert picker.dispatch() == ["a"]


class Owner:
    """Of a request."""


def test_requests_that_have_left_are_let_go_while_another_waits_on() -> None:
    picker = Picker(settings(ttl=0.0), Room(0))
    picker.add("patient", deadline=10.0**6)
    owners: list[weakref.ref[Owner]] = []
    for _ in range(1000):
        item = picker.add(Owner(), deadline=10.0**7)
        owners.append(weakref.ref(item.owner))
        picker.controller.cancel(item, 0.0)
        picker.outcomes.clear()
    assert sum(owner() is not None for owner in owners) < 200


def test_a_cancelled_request_leaves_at_once_and_once() -> None:
    picker = Picker(pool=Room(0))
    first, second = picker.add("a", bytes=10, tokens=3), picker.add("b", bytes=5)
    assert picker.controller.cancel(first, 0.0)
    assert not picker.controller.cancel(first, 0.0)
    assert (picker.controller.requests, picker.controller.bytes) == (1, 5)
    picker.pool.capacity = 5
    assert picker.dispatch() == ["b"]
    assert not picker.controller.cancel(second, 0.0)
    assert picker.outcomes == [("a", Outcome.CANCELLED), ("b", Outcome.DISPATCHED)]


def test_a_request_is_queued_once() -> None:
    picker = Picker()
    item = picker.add("a")
    with pytest.raises(ValueError, match="queued before"):
        picker.controller.enqueue(item, 0.0)


def test_finishing_twice_counts_once() -> None:
    picker = Picker()
    item = picker.add("a")
    picker.dispatch()
    picker.finish(item)
    picker.controller.finished(item, 0.0)
    assert [band.running for band in picker.controller.bands()] == [0]


def test_each_call_is_bounded_and_says_that_there_is_more() -> None:
    picker = Picker(settings(ttl=1.0))
    for number in range(2 * MAX_AT_ONCE + 1):
        picker.add(number)
    assert picker.controller.dispatch(0.5, picker.pool) == MAX_AT_ONCE
    assert picker.controller.next_wake() == 0.5
    assert picker.controller.expire(2.0, False) == MAX_AT_ONCE
    assert picker.controller.next_wake() <= 2.0
    assert picker.controller.expire(2.0, False) == 1
    for number in range(MAX_AT_ONCE + 1):
        picker.add(number)
    assert [picker.controller.shut_down(3.0) for _ in range(3)] == [MAX_AT_ONCE, 1, 0]


def test_shutdown_ends_every_wait_and_takes_nobody() -> None:
    picker = Picker(settings(bands={7: band()}), Room(0))
    picker.add("a")
    picker.add("b", priority=7)
    picker.controller.shut_down(1.0)
    assert picker.outcomes == [("b", Outcome.SHUT_DOWN), ("a", Outcome.SHUT_DOWN)]
    assert picker.offer() is Outcome.SHUT_DOWN
    assert picker.arrives(Waiting("a", 0, 1.0)) is Outcome.SHUT_DOWN


def test_higher_bands_go_first_and_one_at_a_time() -> None:
    picker = Picker(settings(bands={10: band(), -5: band()}), Room(0))
    for name, priority in (("low", -5), ("none", 0), ("high", 10), ("low too", -5), ("high too", 10)):
        picker.add(name, priority=priority)
    picker.pool.capacity = 3
    assert picker.dispatch() == ["high", "high too", "none"]
    picker.finish(picker.running[0])
    picker.add("last", priority=10)
    assert picker.dispatch() == ["last"]
    picker.pool.capacity = 9
    assert picker.dispatch() == ["low", "low too"]


def test_bands_of_objectives_stay_until_they_are_empty() -> None:
    picker = Picker(pool=Room(1))
    picker.controller.ensure_bands([3])
    running, waiting = picker.add("running", priority=3), picker.add("waiting", priority=3)
    picker.dispatch()
    picker.controller.ensure_bands([])
    assert [band.priority for band in picker.controller.bands()] == [3, 0]
    assert picker.add("later", priority=3).priority == 0
    picker.finish(running)
    assert picker.dispatch() == ["waiting"]
    picker.finish(waiting)
    assert [band.priority for band in picker.controller.bands()] == [0]
    assert picker.dispatch() == ["later"]


def bands_of(configured: Iterable[int], known: Sequence[int]) -> dict[int, int]:
    """The band of a request of each known priority, whether it waits, needn't, or is refused."""
    picker = Picker(settings(bands={priority: band() for priority in configured}), Room(0))
    picker.controller.ensure_bands(known)
    found = {priority: picker.add(priority, priority=priority).priority for priority in known}
    for how, pool in ((band(max_requests=0), Room(0)), (band(), Room())):
        other = Picker(settings(how, dict.fromkeys(configured, how)), pool)
        other.controller.ensure_bands(reversed(known))
        items = [Waiting("a", priority, 0.0) for priority in known]
        assert {other.arrives(item) for item in items} == {
            Outcome.DISPATCHED if pool.capacity else Outcome.REJECTED_NO_ENDPOINTS
        }
        assert {known[at]: item.priority for at, item in enumerate(items)} == found
    return found


@pytest.mark.parametrize(
    ("configured", "known", "shared"),
    [
        ([], range(-49, 51), {}),
        ([], range(-50, 51), {-50: -50, -49: -50, -48: -48, 1: 1}),
        ([], range(1, 121), {2: 1, 22: 1, 23: 23}),
        ([], range(-120, 0), {-119: -120, -99: -120, -98: -98}),
        ([], [-7, -5, *range(1, 121)], {-7: -7, -5: -7, 22: 0, 23: 23}),
        ([50], range(-10, 200), {-9: -10, 49: 0, 50: 50, 102: 50, 103: 103}),
        (range(200), [*range(200, 210), -1, -2], {205: 199, -1: -2, -2: -2}),
    ],
)
def test_priorities_beyond_the_most_bands_share_the_next_lower_one(
    configured: Sequence[int], known: Sequence[int], shared: dict[int, int]
) -> None:
    found = bands_of(configured, known)
    assert {priority: found[priority] for priority in shared} == shared
    assert len({0, *configured, *found.values()}) <= max(MAX_BANDS, len(configured) + 1)


@given(
    configured=st.lists(st.integers(-200, 200), max_size=120, unique=True),
    known=st.lists(st.integers(-200, 200), min_size=1, max_size=400, unique=True),
)
@hypothesis.settings(max_examples=30)
def test_requests_that_share_bands_keep_their_order(configured: list[int], known: list[int]) -> None:
    found = bands_of(configured, known)
    assert all(band <= priority and (band < 0) is (priority < 0) for priority, band in found.items())
    assert [found[priority] for priority in sorted(known)] == sorted(found.values())
    if len({0, *configured, *known}) <= MAX_BANDS:
        assert all(band == priority for priority, band in found.items())


def test_a_band_that_is_shared_from_now_on_keeps_its_requests() -> None:
    picker = Picker(pool=Room(0))
    picker.controller.ensure_bands(range(1, MAX_BANDS))
    waiting = picker.add("waiting", priority=3)
    picker.controller.ensure_bands(range(1, 2 * MAX_BANDS))
    assert picker.controller.without_band == MAX_BANDS
    assert (waiting.priority, picker.add("later", priority=3).priority) == (3, 1)
    picker.pool.capacity = 10
    assert picker.dispatch() == ["waiting", "later"]


class Steady(Room):
    """A pool whose saturation stays for a while."""

    saturation = 0.5


def test_bands_without_requests_cost_a_request_nothing() -> None:
    work = []
    for known in ([1, 2], range(1, MAX_BANDS)):
        picker = Picker(pool=Steady(0))
        picker.controller.ensure_bands(known)
        for _ in range(2):
            with counted() as done:
                picker.add("a", priority=1)
                picker.add("b", "new", priority=2)
                picker.dispatch()
                picker.pool.capacity = inf
                picker.dispatch()
                picker.controller.blocked()
                picker.arrives(Waiting("a", 1, 0.0))
                picker.finish(picker.running[0])
            picker.pool.capacity = 0
        work.append(done.instructions)
    assert work[0] == work[1]


def test_an_idle_queue_is_passed() -> None:
    picker = Picker(settings(bands={5: band()}, usage_limits=parameters(PriorityHoldbackPolicy, minCeiling=0.5)))
    picker.pool.capacity = 2
    offered = [Waiting("a", priority, 0.0) for priority in (0, 0, 5, 5)]
    outcomes = []
    for item in offered:
        outcomes.append(picker.arrives(item))
        if outcomes[-1] is Outcome.DISPATCHED:
            picker.pool.in_flight += 1
            picker.running.append(item)
    # a low one fills half of the pool, a second has to wait, and while it does, so do others
    assert outcomes == [Outcome.DISPATCHED, None, None, None]
    assert picker.outcomes == []
    assert picker.controller.dispatch(0.0, picker.pool) == 1
    for item in list(picker.running):
        picker.finish(item)
    picker.dispatch()
    assert picker.controller.requests == 1
    assert [band.requests for band in picker.controller.bands()] == [0, 1]


def test_a_caller_may_call_back() -> None:
    picker = Picker(pool=Room(1))

    def finish_at_once(item: Waiting) -> None:
        picker.finish(item)
        picker.controller.dispatch(picker.now, picker.pool)

    picker.when_dispatched = finish_at_once
    for name in "abc":
        picker.add(name)
    assert picker.controller.dispatch(0.0, picker.pool) == 3
    assert [owner for owner, _ in picker.outcomes] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("header", "id"),
    [("", DEFAULT_FLOW), ("tenant", "tenant"), ("x" * MAX_ID, "x" * MAX_ID)],
)
def test_the_id_of_a_flow(header: str, id: str) -> None:
    assert flow_id(header) == id


def test_all_pickers_know_a_flow_by_the_same_hash() -> None:
    """BLAKE2b of 64 bits, little-endian."""
    assert flow_hash("tenant") == 0xAF20B309BD126329


def test_long_ids_are_cut_and_stay_different() -> None:
    band, two = flow_id("x" * 65536), flow_id("x" * 65535 + "\ud800")
    assert len(band) == len(two) == MAX_ID
    assert band != two


def test_a_million_ids_take_the_memory_of_as_many_as_are_allowed() -> None:
    picker = Picker(settings(max_flows=10), Room(0))
    items = [picker.add(number, f"flow-{number}") for number in range(1000)]
    (only,) = picker.controller.bands()
    assert len(only.flows) == 11  # one is that of the others
    assert sum(flow.requests for flow in only.flows.values()) == 1000
    for item in items:
        picker.controller.cancel(item, 0.0)
    for number in range(1000, 2000):  # idle flows make room for others
        picker.controller.cancel(picker.add(number, f"flow-{number}"), 0.0)
    assert len(only.flows) <= 11
    picker.controller.table(10.0)
    assert not only.flows


def test_a_table_forgets_some_idle_flows_at_a_time() -> None:
    picker = Picker()
    for number in range(2 * MAX_FORGOTTEN + 1):
        picker.controller.cancel(picker.add(number, f"flow-{number}"), 0.0)
    left = []
    for _ in range(3):
        picker.controller.table(10.0)
        left.append(len(picker.controller.bands()[0].flows))
    assert left == [MAX_FORGOTTEN + 1, 1, 0]


def test_changes_only_grow() -> None:
    picker = Picker()
    picker.controller.ensure_bands([3])
    seen = [picker.controller.changes]
    item = picker.add("a", priority=3)
    seen.append(picker.controller.changes)
    picker.controller.ensure_bands([])
    picker.controller.cancel(item, 0.0)
    seen.append(picker.controller.changes)
    assert [band.priority for band in picker.controller.bands()] == [0]
    assert seen == sorted(set(seen))


def test_what_is_blocked_is_told_for_evictions() -> None:
    how = settings(bands={5: band(), -5: band()}, usage_limits=parameters(PriorityHoldbackPolicy, minCeiling=0.0))
    picker = Picker(how, Room(10))
    picker.pool.in_flight = 10
    for priority in (5, -5):
        picker.add(priority, priority=priority)
    picker.dispatch()
    # the ceilings are 1, 0.5 and 0: nothing waits in band 0, and the lowest may never dispatch
    assert picker.controller.blocked() == [BlockedBand(5, 1.0)]
    picker.pool.in_flight = 9
    assert picker.dispatch() == [5]
    assert picker.controller.blocked() == []


def test_what_an_explanation_needs() -> None:
    picker = Picker(pool=Room(0))
    for name in "ab":
        picker.add(name)
    picker.now, picker.pool.capacity = 3.0, 5
    picker.controller.dispatch(picker.now, picker.pool, "layout")
    last = picker.running[-1]
    assert (last.ahead, last.enqueued_at, last.released_by) == (1, 0.0, "layout")


def test_retry_after_follows_the_drain_rate() -> None:
    picker = Picker(pool=Room(0))
    assert picker.controller.retry_after(0.0) == 1
    picker.add("first")
    assert picker.controller.retry_after(0.0) == 60  # nothing has drained yet
    picker.pool.capacity = inf
    for second in range(100):
        picker.now = float(second)
        for _ in range(2):
            picker.add("x")
        picker.dispatch()
    picker.pool.capacity = 0
    for _ in range(20):
        picker.add("y")
    assert 9 <= picker.controller.retry_after(picker.now) <= 11  # two a second


def test_everything_drains() -> None:
    picker = Picker(settings(band(STRICT)), Room(7))
    for number in range(100):
        picker.add(number, priority=0)

    def take() -> list[int]:
        for item in list(picker.running):
            picker.finish(item)
        return picker.dispatch()

    assert drained(take) == list(range(100))
