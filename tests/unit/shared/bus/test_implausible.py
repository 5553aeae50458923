"""Messages that say what can't be true: forged, or of a sender that is out of its mind."""

import math
from typing import Any

import pytest
from structlog.testing import capture_logs

from shared.bus import queueing_delay
from shared.bus.codec import MalformedLog, decode, encode
from shared.bus.epochs import MAX_AHEAD, plausible_epoch
from shared.bus.errors import Malformed
from shared.bus.frame_reader import OVERTAKEN, FrameSequence
from shared.bus.messages import Frame, Load, Synced
from shared.bus.queueing_delay import QueueingDelays


def used_to() -> QueueingDelays:
    """Of a sender of which a message came every half second for ten, 100 s after it was sent by its clock."""
    delays = QueueingDelays()
    for tick in range(21):
        assert delays.observe("a", 1, tick / 2, 100 + tick / 2) == 0.0
    return delays


@pytest.mark.parametrize("ahead", [0.6, 5.0, 1e6, 1e300])
def test_a_message_from_the_future_changes_nothing(ahead: float) -> None:
    delays = used_to()
    for moment in (10.1, 10.2, 10.3):
        assert delays.observe("a", 1, moment + ahead, 100 + moment) == (
            0.0 if ahead < queueing_delay.MAX_AHEAD else None
        )
    assert delays.observe("a", 1, 10.5, 110.5) == pytest.approx(0.0), "the sender's next sound message"
    assert delays.observe("a", 1, 11.0, 111.4) == pytest.approx(0.4)


def test_messages_from_the_future_change_nothing_as_long_as_sound_ones_come_too() -> None:
    delays = used_to()
    for tick in range(21, 70):
        for part in range(5):
            assert delays.observe("a", 1, tick / 2 + 1e6, 100 + tick / 2 + part / 100) is None
        assert delays.observe("a", 1, tick / 2, 100.1 + tick / 2) == pytest.approx(0.1)


def test_what_is_a_little_quicker_is_the_base_delay_after_a_second() -> None:
    delays = used_to()
    assert delays.observe("a", 1, 10.5, 110.1) == 0.0
    assert delays.observe("a", 1, 11.0, 110.7) == 0.0
    assert delays.observe("a", 1, 11.5, 111.2) == pytest.approx(0.1)


def test_clocks_that_have_moved_are_believed_when_nothing_contradicts_them() -> None:
    """The reader's machine stood still for a minute, and its clock with it."""
    delays = used_to()
    ages = [delays.observe("a", 1, 70 + tick / 2, 110 + tick / 2) for tick in range(8)]
    assert ages == [None, None, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_a_first_message_that_had_waited_is_no_measure() -> None:
    delays = QueueingDelays()
    delays.observe("a", 1, 0.0, 105.0)
    assert [delays.observe("a", 1, sent, sent + 100.0) for sent in (5.1, 5.6, 6.1)] == [0.0, 0.0, 0.0]
    assert delays.observe("a", 1, 6.2, 107.2) == pytest.approx(1.0)


def frame(sequence: int, **fields: Any) -> Frame:
    return Frame(**{"sender": "c1", "sent": 1.0, "sequence": sequence, "run": 1, "ids": (), **fields})


@pytest.mark.parametrize("forged", [2**62, 2**63 - 1, OVERTAKEN + 10])
def test_a_number_that_a_sender_never_gave_holds_until_its_next_frame(forged: int) -> None:
    order = FrameSequence()
    order.live("c1.0", frame(5), 10.0)
    order.live("c1.0", frame(forged), 10.0)
    assert not order.news("c1.0", frame(7))
    order.live("c1.0", frame(6), 10.1)
    assert [order.news("c1.0", frame(number)) for number in (6, 7)] == [False, True]


@pytest.mark.parametrize("sent", [math.nan, math.inf, -math.inf])
def test_a_message_has_a_time_at_which_it_was_sent(sent: float) -> None:
    for message in (
        frame(1, sent=sent),
        Load(sender="p1", sent=sent, sequence=1, ids=b"", requests=b"", tokens=b""),
    ):
        with pytest.raises(Malformed, match=f"it was sent at {sent}"):
            decode(type(message), encode(message))


@pytest.mark.parametrize("age", [math.nan, math.inf, -1.0])
def test_an_age_is_a_time_that_has_passed(age: float) -> None:
    with pytest.raises(Malformed, match=f"confirmed {age} s ago"):
        decode(Synced, encode(Synced(epoch=1, sequence=1, count=0, digest=0, age=age)))


def test_an_epoch_that_is_too_far_ahead_of_the_clock_comes_after_all_others() -> None:
    now = 1_700_000_000.0
    latest = int((now + MAX_AHEAD) * 1000)
    known = [0, 5, latest - 86_400_000, latest]
    assert [plausible_epoch(epoch, now) for epoch in known] == known
    forged = [plausible_epoch(epoch, now) for epoch in (latest + 1, 2**63, 2**64 - 1)]
    assert sorted(forged) == forged
    assert max(forged) < 0
    assert plausible_epoch(latest + 1, now + 1) == latest + 1


def test_what_cant_be_true_is_counted_apart_and_mentioned_for_a_minute() -> None:
    now = [100.0]
    log = MalformedLog(lambda: now[0])
    assert log.note() is None
    with capture_logs() as lines:
        log.report("c1", "no Frame", subject="s")
        now[0] += 30.0
        log.implausible.report("c" * 10_000, "x" * 10_000, subject="s")
        log.implausible.report("c2", "epoch 7")
    assert [line["event"] for line in lines] == ["bus.message.malformed", *["bus.message.implausible"] * 2]
    assert (log.total, log.implausible.total) == (1, 2)
    now[0] += 10.0
    assert log.note() == (
        "1 malformed messages, the last 40 s ago from 'c1': no Frame; "
        "2 implausible messages, the last 10 s ago from 'c2': epoch 7"
    )
    now[0] += 30.0
    assert log.note() == "2 implausible messages, the last 40 s ago from 'c2': epoch 7"
    now[0] += 30.0
    assert log.note() is None
