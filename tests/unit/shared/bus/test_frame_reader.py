"""Which frames of a snapshot say more than what came live."""

from shared.bus.frame_reader import FrameSequence
from shared.bus.messages import Frame


def frame(sequence: int, *, run: int = 1) -> Frame:
    return Frame(sender="c1", sent=float(sequence), sequence=sequence, run=run, ids=())


def test_a_frame_is_news_until_it_or_a_later_one_has_come_live() -> None:
    order = FrameSequence()
    assert order.news("c1.0", frame(5))
    order.live("c1.0", frame(5), 10.0)
    assert [order.news("c1.0", frame(number)) for number in (4, 5, 6)] == [False, False, True]
    assert order.news("c1.1", frame(4)), "each key has an order of its own"


def test_a_live_frame_that_a_later_one_overtook_is_not_the_last_one() -> None:
    order = FrameSequence()
    order.live("c1.0", frame(6), 10.0)
    order.live("c1.0", frame(5), 10.0)
    assert not order.news("c1.0", frame(6))


def test_a_sender_that_started_again_counts_anew() -> None:
    order = FrameSequence()
    order.live("c1.0", frame(500, run=1), 10.0)
    assert order.news("c1.0", frame(1, run=2))
    order.live("c1.0", frame(1, run=2), 11.0)
    assert [order.news("c1.0", frame(number, run=2)) for number in (1, 2)] == [False, True]


def test_keys_of_which_nothing_comes_are_forgotten() -> None:
    order = FrameSequence()
    order.live("c1.0", frame(1), 10.0)
    order.live("c2.0", frame(1), 20.0)
    order.prune(15.0)
    assert len(order) == 1
    assert order.news("c1.0", frame(1))
    assert not order.news("c2.0", frame(1))
