"""The choices of the three pickers, by their distributions: fixed seeds, 1 in 10 000 as the significance level."""

from collections import Counter
from collections.abc import Sequence
from math import exp, lgamma, log

import numpy as np
import pytest

from services.picker.scheduling.interfaces import Picker, PickerParameters
from services.picker.scheduling.pickers.max_score import FEW, MaxScorePicker
from services.picker.scheduling.pickers.random import RandomPicker, WeightedRandomPicker
from tests.unit.services.picker.world import cycle, pool

DRAWS = 6_000
ROWS = np.array([4, 2, 9, 7, 5], np.intp)
VIEW = pool(*(f"a{at}" for at in range(10)))
KINDS: list[type[Picker]] = [MaxScorePicker, RandomPicker, WeightedRandomPicker]


def picker(kind: type[Picker], wanted: int = 1) -> Picker:
    return kind("picker", PickerParameters(max_num_of_endpoints=wanted))


def draws(made: Picker, totals: Sequence[float], count: int = DRAWS) -> list[list[int]]:
    run = cycle(VIEW, seed=42)
    values = np.array(totals, np.float64)
    rows = ROWS[: len(totals)]
    return [made.pick(run, rows, values) for _ in range(count)]


def p_value(counts: Sequence[int], shares: Sequence[float]) -> float:
    """Of Pearson's chi-square test: how likely a fit as bad as this one is when the shares are right."""
    total = sum(counts)
    statistic = sum((count - total * share) ** 2 / (total * share) for count, share in zip(counts, shares, strict=True))
    return 1.0 - _lower_gamma((len(counts) - 1) / 2, statistic / 2)


def _lower_gamma(a: float, x: float) -> float:
    """The regularised lower incomplete gamma function, by its power series."""
    if x <= 0:
        return 0.0
    term = total = 1.0 / a
    step = a
    while term > total * 1e-12:
        step += 1
        term *= x / step
        total += term
    return min(total * exp(a * log(x) - x - lgamma(a)), 1.0)


def test_the_test_of_a_distribution_can_fail() -> None:
    assert p_value([3000, 3000], [0.5, 0.5]) > 0.99
    assert p_value([3841, 3841 + 171], [0.5, 0.5]) == pytest.approx(0.0537, abs=0.001)
    assert p_value([3300, 2700], [0.5, 0.5]) < 1e-4


@pytest.mark.parametrize("wanted", [1, 3])
def test_the_best_total_wins(wanted: int) -> None:
    for picked in draws(picker(MaxScorePicker, wanted), [1, 5, 3, 2, 4], 20):
        assert picked == [2, 5, 9][:wanted]


@pytest.mark.parametrize("wanted", [1, 3, FEW + 1])
def test_ties_are_broken_uniformly_at_every_place(wanted: int) -> None:
    picked = draws(picker(MaxScorePicker, wanted), [3, 1, 3, 3, 0])
    assert p_value([Counter(choice[0] for choice in picked)[row] for row in (4, 9, 7)], [1 / 3] * 3) > 1e-4
    if wanted > 1:
        orders = Counter(tuple(choice[:3]) for choice in picked)
        assert len(orders) == 6
        assert p_value(list(orders.values()), [1 / 6] * 6) > 1e-4
    if wanted > 3:
        assert {tuple(choice[3:]) for choice in picked} == {(2, 5)}


@pytest.mark.parametrize("wanted", [1, 3, FEW + 1])
@pytest.mark.parametrize("size", [5, FEW + 2])
def test_of_equal_totals_the_fewest_requests_in_flight_win(wanted: int, size: int) -> None:
    view = pool(*(f"a{at}" for at in range(size)))
    for at, requests in enumerate([2, 0, 1, 3, 1] + [4] * (size - 5)):
        for _ in range(requests):
            view.in_flight.charge(f"a{at}", 10)
    run, made = cycle(view), picker(MaxScorePicker, wanted)
    rows, totals = view.layout.all_rows, np.array([1.0, 0.5, 1.0, 1.0, 1.0] + [0.0] * (size - 5))
    picked = [made.pick(run, rows, totals) for _ in range(40)]
    assert {choice[0] for choice in picked} == {2, 4}
    if wanted > 1:
        assert {choice[2] for choice in picked} == {0}


def test_the_random_picker_is_uniform_whatever_the_totals() -> None:
    picked = draws(picker(RandomPicker), [100, 0, 0, 0, 1])
    assert p_value([Counter(choice[0] for choice in picked)[row] for row in ROWS.tolist()], [0.2] * 5) > 1e-4


def test_the_random_picker_draws_without_replacement_in_any_order() -> None:
    orders = Counter(map(tuple, draws(picker(RandomPicker, 2), [0, 0, 0])))
    assert len(orders) == 6
    assert p_value(list(orders.values()), [1 / 6] * 6) > 1e-4


@pytest.mark.parametrize("totals", [[1, 2, 3, 4], [0.001, 0.001, 0.002], [1e-300, 3e-300], [5, 0, 5]])
def test_the_weighted_picker_takes_shares_of_the_totals(totals: list[float]) -> None:
    counts = Counter(choice[0] for choice in draws(picker(WeightedRandomPicker), totals))
    chosen = [(row, total) for row, total in zip(ROWS.tolist(), totals, strict=False) if total]
    assert set(counts) == {row for row, _ in chosen}
    whole = sum(total for _, total in chosen)
    assert p_value([counts[row] for row, _ in chosen], [total / whole for _, total in chosen]) > 1e-4


def test_the_weighted_pickers_fallbacks_are_drawn_from_the_rest() -> None:
    """First i with probability w_i / W, then j with w_j / (W - w_i)."""
    totals = {4: 1.0, 2: 2.0, 9: 3.0}
    orders = Counter(map(tuple, draws(picker(WeightedRandomPicker, 2), list(totals.values()))))
    pairs = [(total, other) for total in totals for other in totals if total != other]
    shares = [totals[first] / 6 * totals[other] / (6 - totals[first]) for first, other in pairs]
    assert p_value([orders[pair] for pair in pairs], shares) > 1e-4


def test_where_all_total_0_the_weighted_picker_is_uniform() -> None:
    counts = Counter(choice[0] for choice in draws(picker(WeightedRandomPicker), [0, 0, 0, 0]))
    assert p_value([counts[row] for row in ROWS[:4].tolist()], [0.25] * 4) > 1e-4


def test_what_totals_0_comes_after_everything_that_doesnt_and_is_ordered_by_chance() -> None:
    picked = draws(picker(WeightedRandomPicker, 4), [0, 1e-9, 0, 3])
    assert {frozenset(choice[:2]) for choice in picked} == {frozenset({2, 7})}
    last = Counter(choice[2] for choice in picked)
    assert p_value([last[4], last[9]], [0.5, 0.5]) > 1e-4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [-1, 0, 1, 2, 5, 9, 50])
def test_a_list_has_as_many_endpoints_as_wanted_and_none_twice(kind: type[Picker], wanted: int) -> None:
    for picked in draws(picker(kind, wanted), [1, 0, 2, 2, 5], 20):
        assert len(picked) == len(set(picked)) == min(max(wanted, 1), 5)
        assert set(picked) <= set(ROWS.tolist())
        assert all(type(row) is int for row in picked)


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_candidate_is_picked(kind: type[Picker]) -> None:
    assert draws(picker(kind, 3), [0], 5) == [[4]] * 5
