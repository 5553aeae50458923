"""Nothing that a client or a model server sends holds the event loop for long."""

from tests.benchmarks.bench_longest import PROMISED, cases, longest

LENIENT = 10 * PROMISED
"""Also on a machine that is slow, or busy with other tests."""


def test_nothing_that_is_read_takes_long_at_its_worst() -> None:
    slow = {}
    for case in cases():
        seconds = longest(case, 1)
        if seconds > LENIENT:
            seconds = min(seconds, longest(case, 3))
        if seconds > LENIENT:
            slow[case.name, case.size] = seconds
    assert slow == {}
