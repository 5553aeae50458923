"""What is written less and less often."""

from itertools import pairwise

import pytest

from services.watcher.kubernetes.write_limits import FREE, LASTING, MAX_PAUSE, ContestedWrites


def written(times: int, every: float) -> list[float]:
    """When something is written that is taken away at once, each time, by a writer that looks `every` seconds."""
    contested = ContestedWrites()
    writes: list[float] = []
    now = 0.0
    while len(writes) < times:
        if contested.due("uid", "form") <= now:
            assert contested.wrote("uid", "form", now) is (len(writes) == FREE), "that it is contested is told once"
            writes.append(now)
        now += every
    return writes


@pytest.mark.parametrize("every", [1.0, 1.003])
def test_a_few_times_it_is_written_at_once_and_then_after_pauses_that_double_and_stay_at_the_longest(
    every: float,
) -> None:
    pauses = [after - before for before, after in pairwise(written(30, every))]
    assert pauses[:FREE] == pytest.approx([every] * FREE)
    assert pauses[FREE : FREE + 4] == pytest.approx([1.0, 2.0, 4.0, 8.0], abs=every)
    longest = pauses[FREE + 9 :]
    assert len(longest) == 17
    assert longest == pytest.approx([MAX_PAUSE] * 17, abs=every)


def test_it_is_written_any_number_of_times() -> None:
    assert len(written(1100, MAX_PAUSE)) == 1100


def test_another_form_and_what_stayed_for_long_begin_anew() -> None:
    contested = ContestedWrites()
    for now in range(10):
        contested.wrote("uid", "form", float(now))
    assert contested.due("uid", "form") > 10.0
    assert contested.due("uid", "another form") == contested.due("another", "form") == 0.0
    contested.wrote("uid", "form", 10.0 + LASTING)
    assert contested.due("uid", "form") == 0.0
    assert contested.state() == {}


def test_what_is_no_more_is_forgotten() -> None:
    contested = ContestedWrites()
    for now in range(6):
        for uid in ("a", "b"):
            contested.wrote(uid, "form", float(now))
    contested.keep({"b"})
    assert contested.state() == {"b": 6}
