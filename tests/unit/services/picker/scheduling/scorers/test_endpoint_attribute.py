"""`endpoint-attribute-scorer`: any attribute that is a number, placed between two bounds."""

from typing import Any

import pytest

from services.picker.scheduling.scorers.endpoint_attribute import EndpointAttributeScorer
from shared.attributes import CORE, AttributeKey
from tests.unit.services.picker.scheduling.plugins import over, plugin, read

KEY = AttributeKey("GPUUtilization", "mine", float)
LOWER, HIGHER = "linear_lower_is_better", "linear_higher_is_better"
PARAMETERS = EndpointAttributeScorer.Parameters


def algorithm(type: str, **normalization: Any) -> dict[str, Any]:
    return {"attributeKey": "GPUUtilization", "algorithm": {"type": type, "normalization": normalization}}


def fixed(type: str, low: float = 0, high: float = 1) -> dict[str, Any]:
    return algorithm(type, fixedRange={"min": low, "max": high})


@pytest.mark.parametrize(
    ("raw", "values", "ages", "policy", "expected"),
    [
        (fixed(LOWER, 0, 10), [2.5, 20, -5], 0, "saturated", [0.75, 0, 1]),
        (fixed(HIGHER, 10, 20), [12.5, 20, 5], 0, "saturated", [0.25, 1, 0]),
        (algorithm(LOWER), [10, 20, 12.5], 0, "saturated", [1, 0, 0.75]),
        (algorithm(HIGHER), [10, 20, 12.5], 0, "saturated", [0, 1, 0.25]),
        (algorithm(LOWER), [7, 7], 0, "saturated", [1, 1]),
        (algorithm(HIGHER), [7, 7], 0, "saturated", [1, 1]),
        # only fresh values make the adaptive range
        (algorithm(LOWER), [2, 4, -100, 100], [0, 0, 9, 9], "saturated", [1, 0, 0, 0]),
        (algorithm(HIGHER), [2, 4, -100, 100], [0, 0, 9, 9], "saturated", [0, 1, 0, 0]),
        (fixed(LOWER), [0.25, 0.75, 0], [0, 0, 9], "saturated", [0.75, 0.25, 0]),
        (fixed(LOWER), [0.25, 0.75, 0], [0, 0, 9], "ignore", [0.75, 0.25, 0.5]),
        (fixed(LOWER), [0.25, 0.75, 0], [0, 0, 9], "lastKnown", [0.75, 0.25, 1]),
        (fixed(LOWER), [None, None], 0, "saturated", [0, 0]),
        (algorithm(LOWER), [None, None], 0, "saturated", [0, 0]),
        (algorithm(HIGHER), [None, None], 0, "saturated", [0, 0]),
    ],
)
def test_a_value_scores_its_place_in_the_range(
    raw: dict[str, Any], values: list[float | None], ages: Any, policy: str, expected: list[float]
) -> None:
    run = over(KEY, values, ages, policy)
    made = plugin(EndpointAttributeScorer, raw, attributeKey=KEY)
    assert made.score(run, run.candidates).tolist() == expected
    shown = run.samples[KEY.wire].values
    assert [None if value != value else value for value in shown.tolist()] == values, "as they were read"


@pytest.mark.parametrize("raw", [fixed(LOWER), fixed(HIGHER), algorithm(LOWER), algorithm(HIGHER)])
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_an_endpoint_without_the_attribute_scores_0_whatever_the_policy(raw: dict[str, Any], policy: str) -> None:
    run = over(KEY, [0.5, 0.5, None], policy=policy)
    assert plugin(EndpointAttributeScorer, raw, attributeKey=KEY).score(run, run.candidates)[2] == 0


def test_the_adaptive_range_is_that_of_the_candidates() -> None:
    run = over(KEY, [2, 3, 0])
    made = plugin(EndpointAttributeScorer, algorithm(LOWER), attributeKey=KEY)
    assert made.score(run, run.candidates[:2]).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("given", "producer"), [({}, CORE), ({"producer": None}, CORE), ({"producer": ""}, ""), ({"producer": "x"}, "x")]
)
def test_the_core_extractor_is_meant_where_no_producer_is_named(given: dict[str, Any], producer: str) -> None:
    parameters, _ = read(PARAMETERS, {**algorithm(LOWER), **given})
    (need,) = EndpointAttributeScorer.consumes(parameters)
    assert (need.parameter, need.name, need.producer) == ("attributeKey", "GPUUtilization", producer)


def test_the_range_is_adaptive_unless_told_otherwise() -> None:
    plain, _ = read(PARAMETERS, {"attributeKey": "x", "algorithm": {"type": LOWER}})
    assert plain == read(PARAMETERS, {"attributeKey": "x", "algorithm": {"type": LOWER, "normalization": {}}})[0]
    spelled, _ = read(PARAMETERS, algorithm(LOWER, adaptiveRange={}))
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
            "at.algorithm.normalization: fixedRange and adaptiveRange are both given; give only one",
        ),
        (fixed(LOWER, 3, 3), "at.algorithm.normalization.fixedRange: min: 3, max: 3; max has to be greater than min"),
        (algorithm(LOWER, fixedRange={"min": 0}), "at.algorithm.normalization.fixedRange.max: required, and missing"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(PARAMETERS, raw) == (None, [error])


def test_a_name_with_a_slash_is_taken_where_a_producer_is_named() -> None:
    assert read(PARAMETERS, {**algorithm(LOWER), "attributeKey": "/v1/depth", "producer": ""})[1] == []
