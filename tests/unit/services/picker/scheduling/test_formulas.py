"""What the formulas make of any numbers: no endpoint's value is more than its own."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.scheduling.formulas import MOST_FULL, USUAL, least_is_best, mean_fullness, most_is_best

COUNTS = st.floats(0, 1e9)


def floats(values: Any) -> Any:
    return np.array(values, np.float64)


@given(others=st.lists(st.floats(0, 1), min_size=1, max_size=9), one=COUNTS)
def test_one_endpoint_adds_at_most_its_share_to_the_fullness_of_a_pool(others: list[float], one: float) -> None:
    found = mean_fullness(floats([*others, one]))
    assert found <= (sum(others) + MOST_FULL) / (len(others) + 1) + 1e-9
    assert mean_fullness(floats([*[0.0] * len(others), one])) < 1


@given(COUNTS)
def test_an_endpoint_that_is_alone_counts_as_it_is(one: float) -> None:
    assert mean_fullness(floats([one])) == one


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 50, 100], [1, 0.5, 0]),
        ([0, 50, 1e9], [1, 0.5, 0]),
        ([0, 0, 20, 1e9], [1, 1, 0.8, 0]),
        ([0, 80, 1e9], [1, 0.5, 0]),  # twice the second highest
        ([0, 100, 150, 200], [1, 0.5, 0.25, 0]),
        ([100, 150, 300], [1, 0.75, 0]),
        ([200, 200, 1e9], [1, 1, 0]),
        ([-300, -100, 1e9], [1, 0.5, 0]),
        ([0, 1e9, 1e9], [1, 0, 0]),
        ([1e9, 1e9], [1, 1]),
        ([0, 1e9], [1, 0]),
        ([1e9], [1]),
        ([0, 50, np.inf], [1, 0.5, 0]),
        ([], []),
    ],
)
def test_one_value_that_is_far_off_does_not_make_the_others_equal(values: list[float], expected: list[float]) -> None:
    given = floats(values)
    assert least_is_best(given).tolist() == expected
    assert most_is_best(-given).tolist() == expected
    assert given.tolist() == values, "not changed"


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=9))
def test_scores_keep_the_order_and_are_shares(values: list[float]) -> None:
    found = least_is_best(floats(values))
    assert ((found >= 0) & (found <= 1)).all()
    assert (np.diff(found[np.argsort(values)]) <= 0).all()
    assert found.max() == 1
    assert max(values) == min(values) or found[int(np.argmax(values))] == 0


@given(st.lists(st.floats(-1e9, USUAL), min_size=1, max_size=9))
def test_usual_values_score_as_in_the_go_original(values: list[float]) -> None:
    low, high = min(values), max(values)
    expected = [1.0 if high == low else (high - value) / (high - low) for value in values]
    assert least_is_best(floats(values)).tolist() == expected
