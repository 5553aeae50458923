"""Time on the way beyond the usual."""

from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.bus.queueing_delay import AHEAD, MAX_AHEAD, QueueingDelays


def test_an_even_way_adds_no_age_however_far_the_clocks_are_apart() -> None:
    delays = QueueingDelays()
    assert [delays.observe("a", 1, sent, sent + 5000.0) for sent in (1.0, 2.0, 3.0)] == [0.0, 0.0, 0.0]


def test_what_a_message_waited_beyond_the_usual_is_its_age() -> None:
    delays = QueueingDelays()
    delays.observe("a", 1, 10.0, 110.0)
    assert delays.observe("a", 1, 10.5, 113.0) == pytest.approx(2.5)
    assert delays.observe("a", 1, 13.0, 113.001) == pytest.approx(0.001)
    assert delays.observe("b", 1, 10.0, 500.0) == 0.0, "another sender has a way of its own"
    assert delays.observe("a", 1, 14.0, 113.5) == 0.0, "a quicker message shows what the usual way is"
    assert delays.observe("a", 1, 14.9, 114.6) == pytest.approx(0.2)


def test_a_sender_that_started_again_is_judged_anew_whatever_its_clock_says() -> None:
    delays = QueueingDelays()
    delays.observe("a", 1, 1000.0, 1000.0)
    assert delays.observe("a", 2, 5.0, 1001.0) == 0.0
    assert delays.observe("a", 2, 6.0, 1002.5) == pytest.approx(0.5)
    assert delays.observe("a", 3, 1001.0, 1090.0) == 0.0


def test_a_message_that_a_later_one_overtook_is_as_late_as_it_is_and_so_are_those_that_follow() -> None:
    """Such as those that a connection still held when another one took its place."""
    delays = QueueingDelays()
    delays.observe("a", 1, 10.0, 110.0)
    assert delays.observe("a", 1, 15.0, 115.0) == 0.0
    assert delays.observe("a", 1, 11.0, 115.0) == pytest.approx(4.0)
    assert delays.observe("a", 1, 11.5, 115.1) == pytest.approx(3.6)
    assert delays.observe("a", 1, 15.1, 115.1) == pytest.approx(0.0)


def test_what_an_earlier_run_still_had_on_its_way_is_as_late_as_it_is() -> None:
    delays = QueueingDelays()
    delays.observe("a", 1, 10.0, 110.0)
    delays.observe("a", 2, 7.0, 115.0)
    assert delays.observe("a", 1, 11.0, 115.0) == pytest.approx(4.0)
    assert delays.observe("a", 2, 8.0, 116.0) == 0.0


def test_a_way_that_became_longer_for_good_is_usual_after_the_window() -> None:
    delays = QueueingDelays(window=60.0)
    delays.observe("a", 1, 0.0, 0.0)
    ages = [delays.observe("a", 1, float(sent), sent + 1.0) for sent in range(1, 121)]
    assert ages[0] == pytest.approx(1.0)
    assert all(age == pytest.approx(1.0) for age in ages[:28])
    assert all(age == 0.0 for age in ages[60:])


def test_after_a_long_silence_the_usual_way_still_holds() -> None:
    """A stall that is longer than the window: the first message that gets through is late, and must not look fresh."""
    delays = QueueingDelays(window=60.0)
    for sent in range(100):
        delays.observe("a", 1, float(sent), float(sent))
    assert delays.observe("a", 1, 100.0, 300.0) == pytest.approx(200.0)
    assert delays.observe("a", 1, 101.0, 300.0) == pytest.approx(199.0)


def test_senders_that_are_gone_are_forgotten() -> None:
    delays = QueueingDelays()
    delays.observe("a", 1, 0.0, 0.0)
    delays.observe("b", 1, 0.0, 50.0)
    delays.prune(10.0)
    assert delays.observe("a", 1, 1.0, 100.0) == 0.0


@given(st.lists(st.tuples(st.integers(0, 1200), st.floats(0, 0.49), st.floats(0, 30)), max_size=50))
def test_messages_that_claim_to_be_quicker_do_not_make_others_look_old(forged: list[tuple[int, float, float]]) -> None:
    """However many they are, and whatever they claim."""
    delays = QueueingDelays()
    messages = [(beat * 0.5, beat * 0.5) for beat in range(1200)]
    messages += [(beat * 0.5 + after + ahead, beat * 0.5 + after) for beat, after, ahead in forged]
    genuine = frozenset(messages[:1200])
    for sent, received in sorted(messages, key=itemgetter(1)):
        late = delays.observe("a", 1, sent, received)
        if (sent, received) in genuine:
            assert late is not None
            assert late <= AHEAD


@pytest.mark.parametrize("slope", [0.1, 0.3, 0.49, 0.9])
@pytest.mark.parametrize("before", [1.0, 3.0, 9.0])
def test_what_drains_from_a_queue_is_used(before: float, slope: float) -> None:
    """The first messages had waited, and the following ones ever less."""
    delays = QueueingDelays()
    for tick in range(1200):
        waited = max(before - max(tick - 20, 0) / 10 * slope, 0.0)
        assert delays.observe("a", 1, tick / 10, tick / 10 + waited) == pytest.approx(0.0)
    assert delays.observe("a", 1, 120.0, 120.3) == pytest.approx(0.3)


def test_a_clock_that_has_moved_is_believed_once_nothing_contradicts() -> None:
    delays = QueueingDelays()
    for sent in range(10):
        delays.observe("a", 1, float(sent), sent + MAX_AHEAD + 1)
    found = [delays.observe("a", 1, sent + 11.0, sent + 11.0) for sent in (10.0, 10.5, 11.0, 11.5)]
    assert found == [None, None, 0.0, 0.0]


@given(st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 5)), max_size=60), st.floats(-1e6, 1e6))
def test_the_age_is_never_negative_nor_more_than_the_real_delay(
    steps: list[tuple[float, float]], offset: float
) -> None:
    """Whatever the order in which messages come."""
    delays = QueueingDelays(window=30.0)
    sent = 0.0
    ways: list[tuple[float, float]] = []
    for step, delay in steps:
        sent += step
        ways.append((sent + offset + delay, sent))
    for arrived, sent in sorted(ways):
        age = delays.observe("a", 1, sent, arrived)
        if age is None:
            continue  # it was quicker than those before by too much
        assert 0.0 <= age <= arrived - sent - offset + 1e-6


def test_of_senders_that_somebody_invents_only_some_are_kept_in_mind_and_who_goes_on_stays() -> None:
    delays = QueueingDelays()
    for second in range(5):
        assert delays.observe("a", 1, float(second), second + 10.0) == 0.0
        for number in range(4000):
            delays.observe(f"invented {second} {number}", 1, 0.0, second + 10.0)
    assert len(delays) <= 10_000
    assert delays.observe("a", 1, 4.5, 16.5) == 2.0
