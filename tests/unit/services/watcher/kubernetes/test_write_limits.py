"""What is written less and less often."""

from itertools import pairwise

from services.watcher.kubernetes.write_limits import FREE, MAX_PAUSE, ContestedWrites


def written_in(seconds: int) -> list[float]:
    """When something is written that is taken away at once, each time."""
    contested = ContestedWrites()
    times: list[float] = []
    for now in range(seconds):
        if contested.due("uid", "form") <= now:
            assert contested.wrote("uid", "form", float(now)) is (len(times) == FREE), (
                "that it is contested is told once"
            )
            times.append(float(now))
    return times


def test_a_few_times_it_is_written_at_once_and_then_after_pauses_that_double_up_to_the_longest() -> None:
    times = written_in(3600)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[:FREE] == [1.0] * FREE
    assert pauses[FREE : FREE + 4] == [1.0, 2.0, 4.0, 8.0]
    assert max(pauses) == MAX_PAUSE
    assert len(times) < 25


def test_another_form_and_what_stayed_for_long_begin_anew() -> None:
    contested = ContestedWrites()
    for now in range(10):
        contested.wrote("uid", "form", float(now))
    assert contested.due("uid", "form") > 10.0
    assert contested.due("uid", "another form") == contested.due("another", "form") == 0.0
    contested.wrote("uid", "form", 10.0 + MAX_PAUSE)
    assert contested.due("uid", "form") == 0.0
    assert contested.state() == {}


def test_what_is_no_more_is_forgotten() -> None:
    contested = ContestedWrites()
    for now in range(6):
        for uid in ("a", "b"):
            contested.wrote(uid, "form", float(now))
    contested.keep({"b"})
    assert contested.state() == {"b": 6}
