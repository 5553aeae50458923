"""How the script of events is spread over the demo."""

import pytest

from pointsman.demo.script import PAUSE, ROUND, STARTS, Pace


def test_without_an_end_rounds_follow_one_another() -> None:
    assert Pace.of(0) == Pace(round=ROUND, rounds=None)


@pytest.mark.parametrize("seconds", [1, 12, 20, 30])
def test_a_short_demo_has_one_round_in_its_time(seconds: float) -> None:
    assert Pace.of(seconds) == Pace(round=seconds, rounds=1)


def test_a_long_demo_has_as_many_rounds_as_fit() -> None:
    assert Pace.of(ROUND + PAUSE) == Pace(round=ROUND, rounds=1)
    assert Pace.of(2 * ROUND + PAUSE) == Pace(round=ROUND, rounds=2)
    assert Pace.of(600) == Pace(round=ROUND, rounds=10)


def test_steps_begin_in_order_within_the_round() -> None:
    assert list(STARTS) == sorted(STARTS)
    assert 0 < STARTS[0]
    assert STARTS[-1] < 1
