from collections.abc import Callable, Sequence
from functools import partial
from math import inf, nan
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.controller import BlockedBand
from services.picker.flow_control.eviction.evictor import Evictor
from services.picker.flow_control.eviction.feedback import MAX_PAUSE, PAUSE, Feedback
from services.picker.flow_control.eviction.priority_then_time import PriorityThenTimeEvictionOrderPolicy
from services.picker.flow_control.eviction.reclamation import CONFIRMATION_TIMEOUT, Reclamation
from services.picker.flow_control.eviction.sheddable import SheddableEvictionFilter
from services.picker.flow_control.eviction.victims import MAX_LOOKS, count, victims
from services.picker.flow_control.interfaces import Running
from services.picker.flow_control.stages import FullestStage
from services.picker.state.inflight import Charge, InFlight
from services.picker.state.layout import Layout


@pytest.mark.parametrize(
    ("saturation", "ceiling", "in_flight", "pending", "expected"),
    [
        (1.0, 1.0, 10, 0.0, 1),  # at the ceiling: one less is below
        (1.05, 1.0, 10, 0.0, 1),  # a request weighs 0.105
        (1.2, 1.0, 10, 0.0, 2),  # 0.2 of 0.12 each
        (2.0, 1.0, 10, 0.0, 2),  # 5, but not at once
        (1.2, 1.0, 10, 0.12, 1),
        (1.0, 1.0, 10, 0.1, 0),
        (1.1, 1.0, 11, 0.2, 0),
        (1.0, 1.0, 0, 0.0, 0),
        (0.0, 0.0, 5, 0.0, 0),
        (nan, 1.0, 5, 0.0, 0),
        (inf, 1.0, 5, 0.0, 0),
    ],
)
def test_how_many_go(saturation: float, ceiling: float, in_flight: int, pending: float, expected: int) -> None:
    assert count(saturation, ceiling, in_flight, pending) == expected


RUNNING = [
    Running("old", -1, 1.0),
    Running("new", -1, 9.0),
    Running("lowest", -5, 2.0),
    Running("normal", 0, 8.0),
    Running("high", 10, 9.0),
]


@pytest.mark.parametrize(
    ("most", "below", "expected"),
    [
        (1, 10, ["lowest"]),
        (2, 10, ["lowest", "new"]),
        (9, 10, ["lowest", "new", "old"]),  # what isn't sheddable stays
        (9, -1, ["lowest"]),  # for a band that is sheddable itself, only lower ones go
        (9, -5, []),
        (0, 10, []),
    ],
)
def test_who_goes(most: int, below: int, expected: list[str]) -> None:
    accepts, order = SheddableEvictionFilter("filter"), PriorityThenTimeEvictionOrderPolicy("order")
    chosen = victims(sorted(RUNNING, key=order.key), most, below, accepts, lambda _: True)
    assert chosen is not None
    assert [victim.id for victim in chosen] == expected


def test_the_next_decision_waits_until_the_last_one_shows() -> None:
    reclamation = Reclamation(grace=0.5)
    assert reclamation.open(0.0)
    reclamation.evicted("a", 0.1, 0.0)
    reclamation.evicted("b", 0.1, 0.0)
    reclamation.ended("a", 1.0)
    reclamation.ended("nobody", 1.0)
    assert not reclamation.open(2.0)  # b hasn't ended
    assert reclamation.pending == pytest.approx(0.1)
    reclamation.ended("b", 3.0)
    assert not reclamation.open(3.4)
    assert reclamation.next_look() == 3.5
    assert reclamation.open(3.5)
    assert (reclamation.pending, reclamation.next_look()) == (0, inf)


def test_a_stream_that_never_ends_counts_as_ended_after_a_while() -> None:
    reclamation = Reclamation(grace=0.5)
    reclamation.evicted("a", 0.1, 0.0)
    assert not reclamation.open(CONFIRMATION_TIMEOUT - 0.1)
    assert not reclamation.open(CONFIRMATION_TIMEOUT)
    assert reclamation.open(CONFIRMATION_TIMEOUT + 0.5)


CHARGE = InFlight().charge("a1", 10)
EMPTY = Layout()


def full(
    saturation: float = 1.0,
    holds: Callable[[Charge], bool] = lambda _: True,
    layout: Layout = EMPTY,
    name: str = "pool",
) -> Callable[[], FullestStage]:
    """A stage with ten requests."""
    return lambda: FullestStage(name, layout, saturation, 10, holds)


def test_what_has_shown_needs_no_look_although_nobody_is_blocked() -> None:
    filter, order = SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o")
    evictor = Evictor(filter, order, 0.5, lambda *_: None)
    evicted = list[int]()
    ids = [evictor.track(-1, 0.0, CHARGE, partial(evicted.append, number)) for number in range(3)]
    assert evictor.make_room([BlockedBand(0, 1.0)], full(1.0), 1.0) == 1
    evictor.ended(ids[evicted[0]], 1.0)
    assert evictor.next_look() == 1.5
    assert evictor.make_room([], lambda: pytest.fail("nobody needs a stage"), 1.5) == 0
    assert evictor.next_look() == inf


def test_requests_that_are_not_below_the_band_are_not_looked_at() -> None:
    looked = list[Charge]()

    def holds(charge: Charge) -> bool:
        looked.append(charge)
        return True

    evictor = Evictor(SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o"), 0.5, lambda *_: None)
    for number in range(3):
        evictor.track(-1, 0.0, CHARGE, lambda: None)
        evictor.ended(evictor.track(-5, 0.0, CHARGE, lambda: None), 0.0)
        assert evictor.make_room([BlockedBand(-1, 1.0)], full(1.0, holds), number) == 0
    assert looked == []
    evictor.track(-2, 0.0, CHARGE, lambda: None)
    assert evictor.make_room([BlockedBand(-1, 1.0)], full(1.0, holds), 3.0) == 1
    assert len(looked) == 1


def test_charges_are_looked_at_again_only_if_others_may_make_room() -> None:
    looked = list[Charge]()

    def holds(charge: Charge) -> bool:
        looked.append(charge)
        return False

    filter, order = SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o")
    evictor, other, layout = Evictor(filter, order, 0.5, lambda *_: None), [BlockedBand(20, 1.0)], Layout()
    id = evictor.track(-1, 0.0, CHARGE, lambda: None)

    def look(bands: list[BlockedBand], stage: Callable[[], FullestStage]) -> int:
        """How many charges are looked at."""
        looked.clear()
        assert evictor.make_room(bands, stage, 1.0) == 0
        return len(looked)

    ten = [BlockedBand(10, 1.0)]
    assert [look(ten, full(saturation, holds)) for saturation in (1.0, 1.1, 1.0)] == [1, 0, 0]
    assert [look(other, full(1.0, holds)) for _ in range(2)] == [0, 0]
    assert [look(other, full(1.0, holds, layout)) for _ in range(2)] == [1, 0]
    assert [look(other, full(1.0, holds, layout, "prefill")) for _ in range(2)] == [1, 0]
    evictor.track(-1, 0.0, CHARGE, lambda: None)
    assert [look(other, full(1.0, holds, layout, "prefill")) for _ in range(2)] == [1, 0]
    evictor.use(filter, order, 0.5)
    evictor.moved()  # to the same endpoint: what is known of its charge stays
    assert [look(other, full(1.0, holds, layout, "prefill")) for _ in range(2)] == [2, 0]
    evictor.use(filter, order, 0.5)
    evictor.ended(id, 1.0)
    assert [look(other, full(1.0, holds, layout, "prefill")) for _ in range(2)] == [1, 0]


def test_a_request_that_has_moved_to_the_full_stage_may_go() -> None:
    in_flight = InFlight()
    charge = in_flight.charge("d1", 10)
    evictor = Evictor(SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o"), 0.5, lambda *_: None)
    evictor.track(-1, 0.0, charge, lambda: None)
    stage = full(1.0, lambda charge: charge.endpoint_id == "p1")
    assert evictor.make_room([BlockedBand(10, 1.0)], stage, 1.0) == 0
    charge.move("p1")
    evictor.moved()
    assert evictor.make_room([BlockedBand(10, 1.0)], stage, 1.0) == 1


@pytest.mark.parametrize(
    ("saturation", "holding", "looks"),
    [
        (0.5, [], [0]),  # nothing has to go
        (1.0, range(3 * MAX_LOOKS), [1]),
        (1.5, range(3 * MAX_LOOKS), [2]),
        (1.5, [0, 9], [10]),
        (1.5, [0, MAX_LOOKS], [MAX_LOOKS, 2]),  # what takes room is looked at again
        (1.5, [], [MAX_LOOKS] * 3),
    ],
)
def test_charges_are_looked_at_until_enough_are_found_some_at_a_time(
    saturation: float, holding: Sequence[int], looks: list[int]
) -> None:
    evictor = Evictor(SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o"), 0.5, lambda *_: None)
    in_flight, seen, looked = InFlight(), set(holding), list[int]()
    for number in range(3 * MAX_LOOKS):
        evictor.track(-1, -number, in_flight.charge("a1", number), lambda: None)

    def holds(charge: Charge) -> bool:
        looked[-1] += 1
        return charge.tokens in seen

    def step() -> tuple[int, bool]:
        """(how many go, whether the decision has to be continued)."""
        looked.append(0)
        return evictor.make_room([BlockedBand(0, 1.0)], full(saturation, holds), 1.0), evictor.next_look() == 0

    assert [step() for _ in looks[1:]] == [(0, True)] * (len(looks) - 1)
    assert step() == (min(len(holding), count(saturation, 1.0, 10)), False)
    assert looked == looks


GROUPS = st.lists(
    st.tuples(st.integers(-4, -1), st.integers(0, 3), st.sampled_from(["full", "other"]), st.integers(1, 4)),
    min_size=1,
    max_size=6,
)
"""(priority, when they were dispatched, endpoint, requests)"""


@given(groups=GROUPS, later=GROUPS, below=st.integers(-3, 1), saturation=st.sampled_from([1.0, 1.5]), data=st.data())
def test_those_go_that_are_the_first_of_all_that_take_room(
    groups: list[tuple[int, int, str, int]],
    later: list[tuple[int, int, str, int]],
    below: int,
    saturation: float,
    data: st.DataObject,
) -> None:
    """Whatever was looked at before, and although requests come, end and move."""
    order = PriorityThenTimeEvictionOrderPolicy("o")
    evictor = Evictor(SheddableEvictionFilter("f"), order, 0.0, lambda *_: None)
    in_flight, running, gone = InFlight(), dict[str, tuple[Running, Charge]](), list[str]()

    def begin(groups: list[tuple[int, int, str, int]]) -> None:
        for priority, at, name, requests in groups:
            for _ in range(requests):
                charge, number = in_flight.charge(name, 1), len(running) + len(gone)
                id = evictor.track(priority, at, charge, partial(lambda id: gone.append(id), str(number)))
                running[id] = Running(id, priority, at), charge

    def decide() -> list[str]:
        """Those that go."""
        before, stage = len(gone), full(saturation, lambda charge: charge.endpoint_id == "full")
        with patch("services.picker.flow_control.eviction.victims.MAX_LOOKS", 3):
            while not evictor.make_room([BlockedBand(below, 1.0)], stage, 1.0) and not evictor.next_look():
                pass
        evictor.make_room([], stage, 1.0)
        return gone[before:]

    def expected() -> list[str]:
        taking = [request for request, charge in running.values() if charge.endpoint_id == "full"]
        first = sorted(taking, key=order.key)[: count(saturation, 1.0, 10)]
        return [request.id for request in first if request.priority < below]

    begin(groups)
    for _ in range(3):
        chosen = expected()
        assert decide() == chosen
        for id in chosen:
            evictor.ended(id, 0.0)
            del running[id]
        if running:
            for id in data.draw(st.sets(st.sampled_from(sorted(running)), max_size=3)):
                running[id][1].move("full")
            id = data.draw(st.sampled_from(sorted(running)))
            evictor.ended(id, 0.0)
            gone.append(id)
            del running[id]
        begin(later)


@pytest.mark.parametrize(
    ("before", "least", "running", "futile"),
    [
        (1.5, 1.5, 100, True),
        (1.0, 1.0, 100, True),
        (1.5, 1.6, 100, True),  # others come all the same
        (1.5, 1.4998, 100, True),  # 0.0001 each
        (1.5, 1.48, 47, True),  # 48 such requests would do
        (1.5, 1.48, 49, False),
        (1.5, 1.0, 1, False),
        (1.0, 0.99, 0, False),  # there was room, and a request took it
    ],
)
def test_evictions_pause_if_all_that_run_are_too_few(before: float, least: float, running: int, futile: bool) -> None:
    feedback = Feedback()
    assert not feedback.futile(before, 1.0, running, 0.0)
    feedback.evicted(2, before)
    feedback.observe(least)
    feedback.observe(before)
    assert feedback.futile(least, 1.0, running, 0.1) is futile


def test_each_pause_is_twice_as_long_and_ends_early_if_so_little_would_do() -> None:
    feedback, now = Feedback(), 0.0
    for pause in (PAUSE, 2 * PAUSE, 4 * PAUSE, 8 * PAUSE, 16 * PAUSE, MAX_PAUSE, MAX_PAUSE):
        feedback.evicted(2, 1.5)
        feedback.observe(1.48)
        assert [feedback.futile(1.48, 1.0, 10, now + later) for later in (0.0, pause - 0.1, pause)] == [1, 1, 0]
        now += pause
    feedback.evicted(2, 1.5)
    feedback.observe(1.48)
    assert feedback.futile(1.48, 1.0, 10, now)
    assert not feedback.futile(1.05, 1.0, 10, now)


@pytest.mark.parametrize("change", ["nothing", "room", "a request begins", "another stage", "another band"])
def test_a_pause_is_of_one_stage_and_ends_with_room(change: str) -> None:
    evictor = Evictor(SheddableEvictionFilter("f"), PriorityThenTimeEvictionOrderPolicy("o"), 0.5, lambda *_: None)
    ids = list[str]()
    for _ in range(10):
        ids.append(evictor.track(-1, 0.0, CHARGE, partial(lambda at: evictor.ended(ids[at], 0.0), len(ids))))
    blocked = [BlockedBand(0, 1.0)]
    assert [evictor.make_room(blocked, full(1.5), now) for now in (0.0, 0.5, 0.6)] == [2, 0, 0]
    if change == "room":
        assert evictor.make_room([], full(0.9), 0.7) == 0
    if change == "a request begins":
        evictor.track(-1, 0.7, CHARGE, lambda: None)
    stage = full(1.5, name="prefill" if change == "another stage" else "pool")
    band = BlockedBand(5 if change == "another band" else 0, 1.0)
    assert evictor.make_room([band], stage, 0.8) == (0 if change in ("nothing", "another band") else 2)
