"""`endpoint-attribute-scorer`: any attribute that is a number, placed between two bounds."""

from typing import Any

import pytest

from services.picker.scheduling.scorers.endpoint_attribute import (
    EndpointAttributeScorer,
    EndpointAttributeScorerParameters,
)
from shared.attributes import CORE, AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from tests.unit.services.picker.world import cycle, pool, report

KEY = AttributeKey("GPUUtilization", "dcgm-extractor", float)
LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"


def read(**raw: Any) -> tuple[EndpointAttributeScorerParameters | None, list[str]]:
    """(the parameters, or None; what is wrong with them)."""
    problems = Problems()
    made = decode(raw, EndpointAttributeScorerParameters, "at", problems, ignore_case=True)
    return (None if made is MISSING else made), [str(one) for one in problems.errors]


def algorithm(type: str, **normalization: Any) -> dict[str, Any]:
    return {"attributeKey": "GPUUtilization", "algorithm": {"type": type, "normalization": normalization}}


def fixed(type: str, low: float = 0, high: float = 1) -> dict[str, Any]:
    return algorithm(type, fixedRange={"min": low, "max": high})


def scorer(raw: dict[str, Any]) -> EndpointAttributeScorer:
    parameters, errors = read(**raw)
    assert parameters is not None, errors
    made = EndpointAttributeScorer("scorer", parameters)
    made.inputs = {"attributeKey": KEY}
    return made


def scores(
    raw: dict[str, Any], *values: float | None, ages: float | list[float] = 0.0, policy: str = "saturated"
) -> list[float]:
    view = pool(*(f"a{number}" for number in range(len(values))))
    report(view, {KEY: values}, ages)
    made: list[float] = scorer(raw).score(cycle(view, policy=policy), view.layout.all_rows).tolist()
    return made


def test_in_a_fixed_range_lower_is_better() -> None:
    assert scores(fixed(LOWER, 0, 10), 2.5, 20, -5) == [0.75, 0, 1]


def test_in_a_fixed_range_higher_is_better() -> None:
    assert scores(fixed(HIGHER, 10, 20), 12.5, 20, 5) == [0.25, 1, 0]


def test_in_an_adaptive_range_lower_is_better() -> None:
    assert scores(algorithm(LOWER), 10, 20, 12.5) == [1, 0, 0.75]


def test_in_an_adaptive_range_higher_is_better() -> None:
    assert scores(algorithm(HIGHER), 10, 20, 12.5) == [0, 1, 0.25]


@pytest.mark.parametrize("type", [LOWER, HIGHER])
def test_in_an_adaptive_range_equal_values_score_1(type: str) -> None:
    assert scores(algorithm(type), 7, 7) == [1, 1]


@pytest.mark.parametrize("type", [LOWER, HIGHER])
def test_only_fresh_values_make_the_adaptive_range(type: str) -> None:
    made = scores(algorithm(type), 2, 4, -100, 100, ages=[0, 0, 9, 9])
    assert sorted(made[:2]) == [0, 1]
    assert made[2:] == [0, 0]


@pytest.mark.parametrize("raw", [fixed(LOWER), fixed(HIGHER), algorithm(LOWER), algorithm(HIGHER)])
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_an_endpoint_without_the_attribute_scores_0_whatever_the_policy(raw: dict[str, Any], policy: str) -> None:
    assert scores(raw, 0.5, 0.5, None, policy=policy)[2] == 0


@pytest.mark.parametrize(("policy", "score"), [("saturated", 0.0), ("ignore", 0.5), ("lastKnown", 1.0)])
def test_a_stale_value_scores_as_the_policy_says(policy: str, score: float) -> None:
    assert scores(fixed(LOWER), 0.25, 0.75, 0.0, ages=[0, 0, 9], policy=policy) == [0.75, 0.25, score]


@pytest.mark.parametrize("raw", [fixed(LOWER), algorithm(LOWER), algorithm(HIGHER)])
def test_when_nothing_was_ever_seen_all_score_0(raw: dict[str, Any]) -> None:
    assert scores(raw, None, None) == [0, 0]


def test_the_adaptive_range_is_that_of_the_candidates() -> None:
    view = pool("a0", "a1", "a2")
    report(view, {KEY: [2, 3, 0]})
    assert scorer(algorithm(LOWER)).score(cycle(view), view.layout.all_rows[:2]).tolist() == [1, 0]


def test_the_decision_shows_the_values_as_they_were_read() -> None:
    view = pool("a0")
    report(view, {KEY: [0.25]})
    run = cycle(view)
    scorer(fixed(LOWER)).score(run, view.layout.all_rows)
    assert run.readings["GPUUtilization/dcgm-extractor"].values.tolist() == [0.25]


@pytest.mark.parametrize(
    ("given", "producer"), [({}, CORE), ({"producer": None}, CORE), ({"producer": ""}, ""), ({"producer": "x"}, "x")]
)
def test_the_core_extractor_is_meant_where_no_producer_is_named(given: dict[str, Any], producer: str) -> None:
    parameters, _ = read(**algorithm(LOWER), **given)
    assert parameters is not None
    (need,) = EndpointAttributeScorer.needs(parameters)
    assert (need.parameter, need.name, need.producer) == ("attributeKey", "GPUUtilization", producer)


def test_the_range_is_adaptive_unless_told_otherwise() -> None:
    plain, _ = read(attributeKey="x", algorithm={"type": LOWER})
    empty, _ = read(attributeKey="x", algorithm={"type": LOWER, "normalization": {}})
    spelled, _ = read(attributeKey="x", algorithm={"type": LOWER, "normalization": {"adaptiveRange": {}}})
    assert plain == empty
    assert spelled is not None
    assert spelled.algorithm.normalization.fixed_range is None


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"attributeKey": "x"}, "at.algorithm: required, and missing"),
        ({"attributeKey": "x", "algorithm": {}}, "at.algorithm.type: required, and missing"),
        (algorithm("linear"), f"at.algorithm.type: 'linear' isn't one of '{HIGHER}', '{LOWER}'"),
        ({**algorithm(LOWER), "attributeKey": ""}, "at.attributeKey: '' is empty"),
        (
            algorithm(LOWER, fixedRange={"min": 0, "max": 1}, adaptiveRange={}),
            "at.algorithm.normalization: fixedRange and adaptiveRange are both given; there is one range",
        ),
        (fixed(LOWER, 3, 3), "at.algorithm.normalization.fixedRange: min: 3, max: 3; max has to be greater than min"),
        (
            algorithm(LOWER, fixedRange={"min": 0}),
            "at.algorithm.normalization.fixedRange.max: required, and missing",
        ),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(**raw) == (None, [error])


def test_a_name_with_a_slash_is_taken_where_a_producer_is_named() -> None:
    parameters, _ = read(**{**algorithm(LOWER), "attributeKey": "/v1/depth", "producer": ""})
    assert parameters is not None
