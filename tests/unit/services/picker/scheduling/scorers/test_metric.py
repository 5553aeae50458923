"""`metric-scorer`: Linear and Softmax over a metric of the user's choice."""

from math import exp
from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.scorers.metric import MetricParameters, MetricScorer
from shared.attributes import AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from tests.unit.services.picker.world import cycle, pool, report

KEY = AttributeKey("gpu_temperature", "temperature", float)
LINEAR = {"min": 0, "max": 100}
SOFTMAX = {"normalizationAlgo": "Softmax"}


def read(**raw: Any) -> tuple[MetricParameters | None, list[str]]:
    """(the parameters, or None; what is wrong with them)."""
    problems = Problems()
    made = decode({"metricName": "gpu_temperature", **raw}, MetricParameters, "at", problems, ignore_case=True)
    return (None if made is MISSING else made), [str(one) for one in problems.errors]


def scorer(**raw: Any) -> MetricScorer:
    parameters, errors = read(**raw)
    assert parameters is not None, errors
    made = MetricScorer("scorer", parameters)
    made.inputs = {"metricName": KEY}
    return made


def scores(
    raw: dict[str, Any], *values: float | None, ages: float | list[float] = 0.0, policy: str = "saturated"
) -> list[float]:
    view = pool(*(f"a{number}" for number in range(len(values))))
    report(view, {KEY: values}, ages)
    made: list[float] = scorer(**raw).score(cycle(view, policy=policy), view.layout.all_rows).tolist()
    return made


def shares(*powers: float) -> Any:
    """`e^p` of each over their sum."""
    return pytest.approx([exp(one) / sum(map(exp, powers)) for one in powers])


def test_linear_minimize_is_the_distance_from_max_clamped() -> None:
    assert scores(LINEAR, 20, 150, -5) == [0.8, 0, 1]


def test_linear_maximize_is_the_distance_from_min_clamped() -> None:
    assert scores({**LINEAR, "optimizationMode": "Maximize"}, 20, 150, -5) == [0.2, 1, 0]


def test_linear_takes_a_range_that_doesnt_begin_at_0() -> None:
    assert scores({"min": -10, "max": 30}, -10, 0, 30) == [1, 0.75, 0]


def test_min_is_0_where_linear_is_only_told_max() -> None:
    assert scores({"max": 10}, 4, -4) == [0.6, 1]


def test_softmax_minimize_is_the_share_of_the_power_of_the_negative_value() -> None:
    assert scores(SOFTMAX, 0, 1, 3) == shares(0, -1, -3)


def test_softmax_maximize_is_the_share_of_the_power_of_the_value() -> None:
    assert scores({**SOFTMAX, "optimizationMode": "Maximize"}, 0, 1, 3) == shares(0, 1, 3)


def test_equal_values_share_softmax_equally() -> None:
    assert scores({**SOFTMAX, "optimizationMode": "Maximize"}, 1, 1) == [0.5, 0.5]


def test_softmax_sums_to_1() -> None:
    assert sum(scores({**SOFTMAX, **LINEAR}, 3, 1, 4, 1, 5)) == pytest.approx(1)


def test_softmax_clamps_where_a_range_is_given() -> None:
    assert scores({**SOFTMAX, "min": 0, "max": 2}, -3, 0, 9) == shares(0, 0, -2)


def test_softmax_has_no_bound_that_isnt_given() -> None:
    assert scores({**SOFTMAX, "max": 2}, -3, 0, 9) == shares(3, 0, -2)


@pytest.mark.parametrize("mode", ["Minimize", "Maximize"])
def test_softmax_of_the_largest_numbers_is_sound(mode: str) -> None:
    largest = float(np.finfo(np.float64).max)
    assert sorted(scores({**SOFTMAX, "optimizationMode": mode}, largest, -largest, 0)) == [0, 0, 1]


@pytest.mark.parametrize("raw", [LINEAR, SOFTMAX, {**SOFTMAX, **LINEAR}])
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_an_endpoint_that_was_never_scraped_is_never_the_only_best(raw: dict[str, Any], policy: str) -> None:
    first, second, never = scores(raw, 0.5, 0.6, None, policy=policy)
    assert never <= max(first, second)
    assert never < max(first, second) or policy == "ignore"


def test_softmax_is_shared_among_fresh_values_alone() -> None:
    assert scores(SOFTMAX, 1, 1, 0, ages=[0, 0, 9]) == [0.5, 0.5, 0]


def test_a_stale_value_scores_the_mean_of_the_others_where_it_is_ignored() -> None:
    assert scores(LINEAR, 20, 60, 0, ages=[0, 0, 9], policy="ignore") == pytest.approx([0.8, 0.4, 0.6])


def test_a_stale_value_counts_where_the_last_known_one_does() -> None:
    assert scores(LINEAR, 20, 60, 0, ages=[0, 0, 9], policy="lastKnown") == [0.8, 0.4, 1]


@pytest.mark.parametrize("raw", [LINEAR, SOFTMAX])
def test_when_nothing_was_ever_scraped_all_score_alike(raw: dict[str, Any]) -> None:
    assert len(set(scores(raw, None, None))) == 1


def test_softmax_is_shared_among_the_candidates_alone() -> None:
    view = pool("a0", "a1", "a2")
    report(view, {KEY: [2, 2, 0]})
    assert scorer(**SOFTMAX).score(cycle(view), view.layout.all_rows[:2]).tolist() == [0.5, 0.5]


def test_the_decision_shows_the_values_as_they_were_read() -> None:
    view = pool("a0", "a1")
    report(view, {KEY: [20, 150]})
    run = cycle(view)
    scorer(**LINEAR).score(run, view.layout.all_rows)
    assert run.readings["gpu_temperature/temperature"].values.tolist() == [20, 150]


def test_less_is_better_on_a_line_unless_told_otherwise() -> None:
    parameters, _ = read(max=1)
    assert parameters == MetricParameters("gpu_temperature", "Minimize", None, 1.0, "Linear")


def test_names_and_words_are_known_in_any_case() -> None:
    parameters, _ = read(OptimizationMode="maximize", normalizationalgo="SOFTMAX")
    assert parameters == MetricParameters("gpu_temperature", "Maximize", None, None, "Softmax")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({}, "at: max: required, and missing; Linear places values between min and max"),
        ({"min": 5, "max": 5}, "at: min: 5, max: 5; max has to be greater than min"),
        ({"max": -1}, "at: min: 0, max: -1; max has to be greater than min"),
        ({**SOFTMAX, "min": 5, "max": 1}, "at: min: 5, max: 1; max has to be greater than min"),
        ({"min": -1.5e308, "max": 1.5e308}, "at: min: -1.5e+308, max: 1.5e+308; they are too far apart"),
        ({"max": 1, "optimizationMode": "Least"}, "at.optimizationMode: 'Least' isn't one of 'Maximize', 'Minimize'"),
        ({"max": 1, "normalizationAlgo": "Log"}, "at.normalizationAlgo: 'Log' isn't one of 'Linear', 'Softmax'"),
        ({"max": 1, "metricName": ""}, "at.metricName: '' is empty"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(**raw) == (None, [error])
