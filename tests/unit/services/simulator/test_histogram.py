import pytest

from services.simulator.histogram import Histogram, one_two_five


def test_an_observation_at_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]
    assert (histogram.count, histogram.sum) == (4, 7.5)


def test_many_alike_can_be_observed_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 10)
    assert (histogram.counts, histogram.count, histogram.sum) == ([10, 0], 10, 5.0)


@pytest.mark.parametrize(
    ("limit", "bounds"), [(1, (1,)), (2048, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)), (5, (1, 2, 5))]
)
def test_token_buckets_go_up_to_the_context_length(limit: int, bounds: tuple[int, ...]) -> None:
    assert one_two_five(limit) == bounds
