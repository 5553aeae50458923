"""`metric-scorer`: Linear and Softmax over a metric of the user's choice."""

from math import exp
from typing import Any

import pytest

from services.picker.scheduling.scorers.metric import MetricParameters, MetricScorer
from shared.attributes import ANY, AttributeKey
from tests.unit.services.picker.scheduling.plugins import over, plugin, read

KEY = AttributeKey("gpu_temperature", "temperature", float)
NAME = {"metricName": "gpu_temperature"}
LINEAR = {**NAME, "min": 0, "max": 100}
SOFTMAX = {**NAME, "normalizationAlgo": "Softmax"}
MAXIMIZE = {"optimizationMode": "Maximize"}
LARGEST = ANY.maximum


def scores(raw: dict[str, Any], values: list[float | None], ages: Any = 0, policy: str = "saturated") -> list[float]:
    run = over(KEY, values, ages, policy)
    made: list[float] = plugin(MetricScorer, raw, metricName=KEY).score(run, run.candidates).tolist()
    return made


def shares(*powers: float) -> list[float]:
    """`e^p` of each over their sum."""
    return [exp(power) / sum(map(exp, powers)) for power in powers]


@pytest.mark.parametrize(
    ("raw", "values", "ages", "policy", "expected"),
    [
        (LINEAR, [20, 150, -5], 0, "saturated", [0.8, 0, 1]),
        (LINEAR | MAXIMIZE, [20, 150, -5], 0, "saturated", [0.2, 1, 0]),
        (LINEAR | {"min": -10, "max": 30}, [-10, 0, 30], 0, "saturated", [1, 0.75, 0]),
        (NAME | {"max": 10}, [4, -4], 0, "saturated", [0.6, 1]),
        (SOFTMAX, [0, 1, 3], 0, "saturated", shares(0, -1, -3)),
        (SOFTMAX | MAXIMIZE, [0, 1, 3], 0, "saturated", shares(0, 1, 3)),
        (SOFTMAX | MAXIMIZE, [1, 1], 0, "saturated", [0.5, 0.5]),
        (SOFTMAX | {"min": 0, "max": 2}, [-3, 0, 9], 0, "saturated", shares(0, 0, -2)),
        (SOFTMAX | {"max": 2}, [-3, 0, 9], 0, "saturated", shares(3, 0, -2)),
        (SOFTMAX, [LARGEST, -LARGEST, 0], 0, "saturated", [0, 1, 0]),
        (SOFTMAX | MAXIMIZE, [LARGEST, -LARGEST, 0], 0, "saturated", [1, 0, 0]),
        # only fresh values share; a stale one scores as the policy says
        (SOFTMAX, [1, 1, 0], [0, 0, 9], "saturated", [0.5, 0.5, 0]),
        (LINEAR, [20, 60, 0], [0, 0, 9], "ignore", [0.8, 0.4, 0.6]),
        (LINEAR, [20, 60, 0], [0, 0, 9], "lastKnown", [0.8, 0.4, 1]),
        (LINEAR, [None, None], 0, "saturated", [0, 0]),
        (SOFTMAX, [None, None], 0, "saturated", [0, 0]),
    ],
)
def test_a_value_scores_its_place_between_the_bounds_or_its_share(
    raw: dict[str, Any], values: list[float | None], ages: Any, policy: str, expected: list[float]
) -> None:
    assert scores(raw, values, ages, policy) == pytest.approx(expected)


@pytest.mark.parametrize("raw", [LINEAR, SOFTMAX, SOFTMAX | LINEAR])
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_an_endpoint_that_was_never_scraped_is_never_the_only_best(raw: dict[str, Any], policy: str) -> None:
    first, second, never = scores(raw, [0.5, 0.6, None], policy=policy)
    assert never <= max(first, second)
    assert never < max(first, second) or policy == "ignore"


def test_softmax_is_shared_among_the_candidates_alone_whose_values_the_decision_shows() -> None:
    run = over(KEY, [2, 2, 0])
    assert plugin(MetricScorer, SOFTMAX, metricName=KEY).score(run, run.candidates[:2]).tolist() == [0.5, 0.5]
    assert run.samples["gpu_temperature/temperature"].values.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("raw", "parameters"),
    [
        ({"max": 1}, MetricParameters("gpu_temperature", "Minimize", None, 1.0, "Linear")),
        (
            {"OptimizationMode": "maximize", "normalizationalgo": "SOFTMAX"},
            MetricParameters("gpu_temperature", "Maximize", None, None, "Softmax"),
        ),
    ],
)
def test_less_is_better_on_a_line_unless_told_otherwise_in_any_case(
    raw: dict[str, Any], parameters: MetricParameters
) -> None:
    assert read(MetricParameters, NAME | raw) == (parameters, [])


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
    assert read(MetricParameters, NAME | raw) == (None, [error])
