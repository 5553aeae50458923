"""What the formulas make of any numbers: no endpoint's value is more than its own."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.picker.scheduling.formulas import MOST_FULL, mean_fullness

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
