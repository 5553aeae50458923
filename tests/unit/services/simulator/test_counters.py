import pytest

from services.simulator.counters import one_two_five


@pytest.mark.parametrize(
    ("limit", "bounds"), [(1, (1,)), (2048, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)), (5, (1, 2, 5))]
)
def test_token_buckets_go_up_to_the_context_length(limit: int, bounds: tuple[int, ...]) -> None:
    assert one_two_five(limit) == bounds
