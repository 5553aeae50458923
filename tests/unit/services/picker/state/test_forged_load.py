"""Load rows from the future."""

import pytest

from services.picker.state.inflight import EXPIRY, InFlight
from services.picker.state.layout import Layout
from tests.unit.services.picker.world import endpoint, load


@pytest.mark.parametrize("ahead", [11.0, 1e6])
@pytest.mark.parametrize("leaving", [False, True])
def test_a_row_that_cant_have_been_sent_then_isnt_taken_and_the_next_sound_one_is(ahead: float, leaving: bool) -> None:
    made = InFlight()
    made.relayout(Layout([endpoint("a1")]))
    for tick in range(6):
        assert made.apply(load("p1", {"a1": (tick, 0)}, sent=tick / 2), 100 + tick / 2)
    for moment in (2.6, 2.7, 2.8):
        assert not made.apply(load("p1", {"a1": (99, 0)}, sent=moment + ahead, leaving=leaving), 100 + moment)
    assert made.requests.tolist() == [5.0]
    assert made.apply(load("p1", {"a1": (7, 0)}, sent=3.0), 103.0)
    assert made.requests.tolist() == [7.0]
    assert made.expire(104.4) == []
    assert made.expire(104.6) == ["p1"]


def test_of_pickers_that_somebody_invents_only_some_are_counted_until_they_are_silent() -> None:
    made = InFlight()
    made.relayout(Layout([endpoint("a1")]))
    made.apply(load("peer", {"a1": (1, 1)}), 0.0)
    for number in range(5000):
        made.apply(load(f"invented {number}", {}), 0.0)
    assert len(list(made.peers())) <= 2000
    assert "peer" in made.peers()
    made.expire(EXPIRY + 0.1)
    made.apply(load("peer", {"a1": (2, 2)}, sent=2.0), 2.0)
    assert made.requests.tolist() == [2]
