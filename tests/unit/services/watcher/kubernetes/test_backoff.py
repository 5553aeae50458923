"""Pauses between tries."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from services.watcher.kubernetes.backoff import Backoff, Timing


def certain(value: float) -> Timing:
    return Timing(random=lambda: value)


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 30.0, certain(0.0))
    assert [backoff.next() for _ in range(8)] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert repr(backoff) == "<Backoff 0.5-30 s, 8 failures>"


def test_chance_shortens_a_pause_by_up_to_a_half() -> None:
    backoff = Backoff(0.5, 30.0, certain(1.0))
    assert [backoff.next() for _ in range(3)] == [0.25, 0.5, 1.0]


def test_after_a_success_pauses_begin_anew() -> None:
    backoff = Backoff(0.5, 30.0, certain(0.0))
    backoff.next()
    backoff.next()
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, 0.5)


@given(st.integers(), st.integers(1, 3000))
def test_every_pause_is_within_its_bounds_however_many_failures_there_were(seed: int, failures: int) -> None:
    backoff = Backoff(0.5, 30.0, Timing(random=Random(seed).random))
    backoff.failures = failures
    assert 0.25 <= backoff.next() <= 30.0


@given(st.integers())
def test_spreading_stays_within_its_share(seed: int) -> None:
    assert 240 <= Timing(random=Random(seed).random).spread(300.0) <= 360
