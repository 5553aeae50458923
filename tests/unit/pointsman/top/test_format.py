"""How numbers are written."""

import pytest

from pointsman.top.format import clock, count, duration, percent


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((None, "–"), (0.00034, "340 µs"), (0.0012, "1.2 ms"), (0.084, "84 ms"), (2.345, "2.3 s")),
        *((99.94, "99.9 s"), (240.0, "240 s")),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
    assert len(text) <= 6


def test_shares_and_times_and_counts() -> None:
    assert (percent(None), percent(0.0), percent(0.256)) == ("–", "0%", "26%")
    assert (clock(0), clock(67.9), clock(3690)) == ("00:00", "01:07", "61:30")
    assert (count(0, "pick"), count(1, "pick"), count(2, "pick")) == ("0 picks", "1 pick", "2 picks")
