"""Two senders with one id: the first one heard is believed, until it leaves or is silent."""

import pytest

from shared.bus.codec import SenderLog
from shared.bus.heartbeat import EXPIRY
from shared.bus.incarnations import Incarnations, sender_mismatch
from shared.bus.subjects import Subjects

S = Subjects()


def subject(id: str) -> str:
    return S.load("default_p", id)


def senders(limit: int = 1000) -> tuple[Incarnations, SenderLog]:
    log = SenderLog(lambda: 0.0, "conflicting")
    return Incarnations(log, limit), log


@pytest.mark.parametrize("id", ["p1", "a.b:c", "", "ü", "=41"])
def test_a_message_is_from_whom_its_subject_names(id: str) -> None:
    assert sender_mismatch(subject(id), id) is None
    assert sender_mismatch(subject(f"{id}x"), id) == f"it claims to be from {id!r}"
    assert sender_mismatch(S.frame("default_p", id, 3), id, -2) is None


@pytest.mark.parametrize(
    ("silence", "leaves", "accepted"),
    [(0.1, False, False), (EXPIRY - 0.1, False, False), (EXPIRY, False, True), (0.1, True, True)],
    ids=["at once", "soon", "after its expiry", "after it left"],
)
def test_another_run_is_refused_while_the_first_is_heard(silence: float, leaves: bool, accepted: bool) -> None:
    made, log = senders()
    assert made.accepts(subject("p1"), "p1", 1, 10.0)
    if leaves:
        assert made.accepts(subject("p1"), "p1", 1, 10.0, leaving=True)
    assert made.accepts(subject("p1"), "p1", 2, 10.0 + silence) is accepted
    assert log.total == (not accepted)
    assert made.accepts(subject("p1"), "p1", 1, 10.1 + silence) is not accepted


def test_a_forger_doesnt_keep_itself_in_by_being_refused_nor_the_owner_out() -> None:
    made, log = senders()
    for tick in range(20):
        now = tick / 2
        assert made.accepts(subject("p1"), "p1", 1, now)
        assert not made.accepts(subject("p1"), "p1", 2, now + 0.1, leaving=True)
        assert not made.accepts(subject("p2"), "p1", 1, now + 0.2)
    assert log.total == 40
    assert "two senders have this id" in str(log.note()) or "it claims to be from" in str(log.note())


def test_invented_senders_take_no_more_room_than_they_may() -> None:
    made, log = senders(limit=10)
    accepted = [made.accepts(subject(f"x{number}"), f"x{number}", 1, 0.0) for number in range(1000)]
    assert accepted.count(True) == 10
    assert log.total == 990
    assert made.accepts(subject("x0"), "x0", 1, 0.5)
    assert made.accepts(subject("p1"), "p1", 1, EXPIRY + 0.1), "those that are silent make room"
