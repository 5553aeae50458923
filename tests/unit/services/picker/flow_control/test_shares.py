"""How room is divided: every number worked out by hand."""

from math import floor, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.shares import Flows, allowances, apportion, quotas, water_fill
from tests.work import counted


@pytest.mark.parametrize(
    ("capacity", "demands", "weights", "expected"),
    [
        (10, [3, 4], [1, 1], [3, 4]),
        (7, [3, 4], [1, 1], [3, 4]),
        (6, [10, 10], [1, 1], [3, 3]),
        (9, [2, 10, 10], [1, 1, 1], [2, 3.5, 3.5]),
        (9, [10, 2, 3], [1, 1, 1], [4, 2, 3]),
        (9, [10, 10], [2, 1], [6, 3]),
        (9, [4, 10], [2, 1], [4, 5]),
        (8, [1, 10, 10], [1, 3, 1], [1, 5.25, 1.75]),
        (0, [1, 1], [1, 1], [0, 0]),
        (-3, [1, 1], [1, 1], [0, 0]),
        (5, [0, 0], [1, 1], [0, 0]),
        (5, [], [], []),
        (inf, [1, 2], [1, 1], [1, 2]),
    ],
)
def test_what_flows_get(capacity: float, demands: list[float], weights: list[float], expected: list[float]) -> None:
    filled = water_fill(capacity, np.array(demands, float), np.array(weights, float))
    assert filled.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("capacity", "rows", "ages", "weights", "expected"),
    [
        # {flow: demand} of each picker → requests that each may have running
        (10, [{1: 3}, {2: 4}], [0, 0], {}, [3, 4]),  # enough for all
        (8, [{1: 100}, {2: 10}], [0, 0], {}, [4, 4]),  # flows are equal, whoever asks for more
        (8, [{1: 100}, {1: 100}], [0, 0], {}, [4, 4]),  # one flow, by demand
        (8, [{1: 90}, {1: 30}], [0, 0], {}, [6, 2]),
        (8, [{1: 10, 2: 10}, {1: 10}], [0, 0], {}, [6, 2]),  # 2 of flow 1 and 4 of flow 2 are the first picker's
        (9, [{1: 10}, {2: 10}], [0, 0], {1: 2.0}, [6, 3]),
        (9, [{1: 10}, {2: 2}], [0, 0], {}, [7, 2]),  # what a flow doesn't want others get
        (3, [{1: 9}, {2: 9}], [1, 2], {}, [1, 2]),  # 1.5 each: the older one gets what is left over
        (3, [{1: 9}, {2: 9}], [2, 2], {}, [2, 1]),  # of the same age, the first one
        (1, [{1: 9}, {2: 9}, {3: 9}], [1, 3, 2], {}, [0, 1, 0]),
        (2, [{1: 9}, {2: 9}, {3: 9}], [1, 3, 2], {}, [0, 1, 1]),
        (4.9, [{1: 9}, {2: 9}], [0, 0], {}, [2, 2]),  # 2.45 each, and 4 in all
        (0, [{1: 9}, {2: 9}], [0, 0], {}, [0, 0]),
        (4, [{}, {2: 9}], [0, 0], {}, [0, 4]),
    ],
)
def test_what_pickers_may_have_running(
    capacity: float,
    rows: list[dict[int, float]],
    ages: list[float],
    weights: dict[int, float],
    expected: list[int],
) -> None:
    flows = Flows([np.array([*row], np.uint64) for row in rows], weights)
    demands = np.array([demand for row in rows for demand in row.values()], float)
    assert quotas(capacity, flows, demands, ages) == expected


@pytest.mark.parametrize(
    ("room", "owed", "ages", "expected"),
    [
        (5, [2, 3], [0, 0], [2, 3]),
        (9, [2, 3], [0, 0], [2, 3]),
        (1, [0, 3], [9, 0], [0, 1]),
        (1, [1, 3], [0, 9], [0, 1]),
        (1, [1, 3], [9, 0], [1, 0]),  # 0.25 and 0.75: one is left over, for the older
        (4, [2, 6], [0, 0], [1, 3]),
        (4.99, [2, 6], [0, 0], [1, 3]),
        (0.5, [2, 6], [0, 0], [0, 0]),
        (inf, [2, 6], [0, 0], [2, 6]),
        (3, [0, 0], [0, 0], [0, 0]),
    ],
)
def test_how_free_room_is_divided(room: float, owed: list[int], ages: list[float], expected: list[int]) -> None:
    assert allowances(room, owed, ages) == expected


PICKERS = st.lists(
    st.tuples(
        st.dictionaries(st.integers(1, 6), st.integers(0, 40), max_size=4),
        st.floats(0, 100),
        st.integers(0, 30),
    ),
    min_size=1,
    max_size=5,
)


@given(PICKERS, st.floats(0, 60), st.dictionaries(st.integers(1, 6), st.sampled_from([0.1, 1.0, 3.0])))
def test_whole_numbers_add_up(
    pickers: list[tuple[dict[int, int], float, int]], room: float, weights: dict[int, float]
) -> None:
    flows = Flows([np.array([*rows], np.uint64) for rows, _, _ in pickers], weights)
    assert flows.are([np.array([*rows], np.uint64) for rows, _, _ in pickers])
    demands = np.array([row for rows, _, _ in pickers for row in rows.values()], float)
    ages = [age for _, age, _ in pickers]
    running = [min(many, sum(rows.values())) for rows, _, many in pickers]
    capacity = room + sum(running)
    each = quotas(capacity, flows, demands, ages)
    assert sum(each) == floor(min(capacity, demands.sum()) + 1e-6)
    waiting = [sum(rows.values()) - many for (rows, _, _), many in zip(pickers, running, strict=True)]
    owed = [max(0, quota - many) for quota, many in zip(each, running, strict=True)]
    assert all(debt <= wait for debt, wait in zip(owed, waiting, strict=True))
    allowed = allowances(room, owed, ages)
    # never more than there is room for; and all of it, as long as anybody waits
    assert sum(allowed) == min(floor(room + 1e-9), sum(owed))
    assert sum(owed) >= min(floor(room), sum(waiting))
    assert all(may <= debt for may, debt in zip(allowed, owed, strict=True))


@given(st.lists(st.floats(0, 50), min_size=1, max_size=6), st.data())
def test_parts_are_rounded_to_the_next_whole_number(parts: list[float], data: st.DataObject) -> None:
    ages = data.draw(st.lists(st.floats(0, 9), min_size=len(parts), max_size=len(parts)))
    whole = apportion(sum(parts), parts, ages)
    assert sum(whole) == floor(sum(parts) + 1e-8)
    assert all(abs(quota - part) < 1 + 1e-8 for quota, part in zip(whole, parts, strict=True))


def test_the_weights_of_absent_flows_cost_nothing() -> None:
    parts, work = [np.array([3, 2**63, 1], np.uint64), np.array([2**63], np.uint64)], []
    for more in (0, 1000):
        weights = {2**63: 2.0, 3: 0.5, **{2**40 + flow: 7.0 for flow in range(more)}}
        with counted() as done:
            flows = Flows(parts, weights)
        assert flows.weights[flows.which].tolist() == [0.5, 2.0, 1.0, 2.0]
        work.append(done.instructions)
    assert work[0] == work[1]
