"""Pauses between tries."""

import pytest

from services.watcher.kubernetes.backoff import Backoff, Timing


def certain(value: float) -> Timing:
    return Timing(random=lambda: value)


@pytest.mark.parametrize(
    ("random", "pauses"),
    [(0.0, [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]), (1.0, [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0])],
)
def test_pauses_double_up_to_the_longest_and_begin_anew(random: float, pauses: list[float]) -> None:
    backoff = Backoff(0.5, 30.0, certain(random))
    assert [backoff.next() for _ in pauses] == pauses
    backoff.reset()
    assert (backoff.failures, backoff.next()) == (0, pauses[0])


@pytest.mark.parametrize(("random", "pause", "spread"), [(0.0, 30.0, 240.0), (0.5, 22.5, 300.0), (1.0, 15.0, 360.0)])
def test_chance_stays_within_its_share_however_many_failures_there_were(
    random: float, pause: float, spread: float
) -> None:
    backoff = Backoff(0.5, 30.0, certain(random))
    backoff.failures = 3000
    assert (backoff.next(), certain(random).jitter(300.0)) == (pause, spread)
