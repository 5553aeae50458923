"""How long peers' requests of a higher band keep lower ones from dispatch."""

from collections import deque

import pytest

from services.picker.flow_control.peers import EXPIRY
from services.picker.flow_control.strict_priority import OVERDUE, RESPITE
from services.picker.flow_control.waiting import Outcome, Waiting
from tests.unit.services.picker.flow_control.flows import Picker, Room, settings, table

STEP = 0.125
SERVICE = 4 * STEP


class BesidePeer:
    """A picker with requests of band 0, each of which runs for `SERVICE` seconds, and a peer that says that a request
    waits in band 10."""

    def __init__(self, slots: int) -> None:
        self.picker = Picker(settings(ttl=0.0), Room(slots))
        self.claimed, self.dispatched = 1, 0
        self.steps = 0
        self.added: list[Waiting] = []
        self.begun: deque[tuple[float, Waiting]] = deque()
        self.picker.when_dispatched = lambda item: self.begun.append((self.picker.now, item))

    def go(self, seconds: float, a_step: int = 0, own: bool = True) -> float:
        """Of so many seconds, those that passed until a request was dispatched first; while the peer dispatches
        `a_step` requests each step."""
        picker, first = self.picker, seconds
        for step in range(int(seconds / STEP)):
            self.steps += 1
            picker.now = self.steps * STEP
            self.dispatched += a_step
            claim = table((10, 7, self.claimed, 1, 1000, 0, self.dispatched, 0))
            picker.controller.apply("peer", 1, picker.now, claim, picker.now)
            while self.begun and picker.now - self.begun[0][0] >= SERVICE:
                picker.finish(self.begun.popleft()[1])
            while own and picker.controller.requests < 10:
                self.added.append(picker.add("low"))
            if picker.dispatch():
                first = min(first, step * STEP)
        return first


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("a_step", [0, 1])
def test_peers_that_leave_room_unused_are_overdue_once(slots: int, a_step: int) -> None:
    """Whatever they say that they have dispatched. The pool, which is full then, doesn't restore their claim."""
    beside = BesidePeer(slots)
    assert beside.go(60.0, a_step) == OVERDUE
    held_back = (OVERDUE + STEP) * (1 + a_step)
    assert len(beside.picker.outcomes) >= (60.0 - held_back) / SERVICE * slots - 2 * slots


def test_peers_that_dispatch_again_keep_lower_bands_back_again() -> None:
    beside = BesidePeer(1)
    beside.go(RESPITE + OVERDUE + STEP)
    assert beside.go(STEP, 1, own=False) == STEP
    assert OVERDUE <= beside.go(2 * OVERDUE) <= OVERDUE + SERVICE


def test_a_claim_ends_with_the_peers_requests() -> None:
    beside = BesidePeer(1)
    assert beside.go(OVERDUE / 2) == OVERDUE / 2
    beside.claimed = 0
    assert beside.go(2 * SERVICE) == 0.0
    beside.claimed = 1
    assert OVERDUE / 2 <= beside.go(2 * OVERDUE) <= OVERDUE / 2 + SERVICE  # what was left unused before counts on


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_peers_that_claim_another_band_each_time_are_overdue_once(seconds: float) -> None:
    picker, held_back = Picker(settings(ttl=0.0), Room(1000)), 0
    for step in range(int(30 / STEP)):
        picker.now = step * STEP
        band = 10 + int(picker.now / seconds)
        picker.controller.apply("peer", 1, picker.now, table((band, 7, 1, 1, 1000, 0, 0, 0)), picker.now)
        picker.add("low")
        held_back += not picker.dispatch()
    assert held_back == OVERDUE / STEP


@pytest.mark.parametrize(("before", "after"), [(8, 9), (0, 10)])
def test_peers_that_use_room_keep_lower_bands_back(before: int, after: int) -> None:
    """They dispatch what room there is a while after it came."""
    beside = BesidePeer(10)
    picker = beside.picker
    for _ in range(100):
        picker.pool.in_flight = before
        assert beside.go(3 * STEP) == 3 * STEP
        picker.pool.in_flight = after
        assert beside.go(STEP, 1) == STEP


def test_requests_of_the_highest_band_do_not_prolong_the_wait_of_the_lowest() -> None:
    beside = BesidePeer(100)
    picker = beside.picker
    picker.controller.ensure_bands([20])
    kept_back = 0
    while ("low", Outcome.DISPATCHED) not in picker.outcomes and kept_back < 1000:
        kept_back += 1
        picker.add("high", priority=20)
        beside.go(STEP)
    assert kept_back == OVERDUE / STEP + 1


def test_only_time_in_which_something_is_kept_back_counts() -> None:
    beside = BesidePeer(1)
    assert beside.go(OVERDUE / 2) == OVERDUE / 2
    for item in beside.added:
        beside.picker.controller.cancel(item, beside.picker.now)
    beside.go(2 * OVERDUE, own=False)
    assert beside.go(2 * OVERDUE) == OVERDUE / 2 + STEP


def test_the_next_look_is_when_peers_are_overdue_or_gone() -> None:
    picker = Picker(settings(ttl=0.0), Room(1))
    picker.controller.apply("peer", 1, 0.0, table((10, 7, 1, 1, 1000, 0, 0, 0)), 0.0)
    picker.add("low")
    assert picker.dispatch() == []
    assert picker.controller.next_wake() == EXPIRY
    for picker.now in (1.0, 2.0):
        picker.controller.apply("peer", 1, picker.now, table((10, 7, 1, 1, 1000, 0, 0, 0)), picker.now)
        assert picker.dispatch() == []
    assert picker.controller.next_wake() == OVERDUE
    picker.now = OVERDUE
    assert picker.dispatch() == ["low"]
