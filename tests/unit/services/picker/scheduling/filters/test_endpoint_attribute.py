"""`endpoint-attribute-filter`: endpoints whose attribute compares well with a threshold."""

from typing import Any

import pytest

from services.picker.scheduling.filters.endpoint_attribute import EndpointAttributeFilter
from shared.attributes import CORE, AttributeKey
from tests.unit.services.picker.scheduling.plugins import over, plugin, read

KEY = AttributeKey("GPUUtilization", "mine", float)
PARAMETERS = EndpointAttributeFilter.Parameters
POLICIES = ["saturated", "ignore", "lastKnown"]


def threshold(operator: str, value: float, **further: Any) -> dict[str, Any]:
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": value}}
    return {"attribute": "GPUUtilization", "algorithm": algorithm, **further}


BELOW = threshold("LessThan", 5)
BELOW_OR_FAIL, BELOW_OR_ALL = BELOW | {"onMissing": "Fail"}, BELOW | {"fallbackOnEmpty": True}


def kept(raw: dict[str, Any], values: list[float | None], ages: Any = 0, policy: str = "saturated") -> list[int]:
    """The positions of the values whose endpoints stay."""
    run = over(KEY, values, ages, policy)
    rows: list[int] = plugin(EndpointAttributeFilter, raw, attribute=KEY).filter(run, run.candidates).tolist()
    return rows


@pytest.mark.parametrize(
    ("raw", "values", "ages", "policy", "expected"),
    [
        (threshold("LessThan", 5), [4, 5, 6], 0, "saturated", [0]),
        (threshold("LessThanOrEqual", 5), [4, 5, 6], 0, "saturated", [0, 1]),
        (threshold("GreaterThan", 5), [4, 5, 6], 0, "saturated", [2]),
        (threshold("GreaterThanOrEqual", 5), [4, 5, 6], 0, "saturated", [1, 2]),
        (threshold("Equal", 5), [4, 5, 6], 0, "saturated", [1]),
        (threshold("NotEqual", 5), [4, 5, 6], 0, "saturated", [0, 2]),
        # a stale value doesn't pass where it counts as saturated, is as good as missing where it is ignored
        (BELOW, [4, 4], [0, 9], "saturated", [0]),
        (BELOW_OR_FAIL, [4, 4], [0, 9], "saturated", [0]),
        (BELOW, [4, 4, 6], [0, 9, 9], "ignore", [0, 1, 2]),
        (BELOW_OR_FAIL, [4, 4, 6], [0, 9, 9], "ignore", [0]),
        (BELOW, [4, 4, 6], [0, 9, 9], "lastKnown", [0, 1]),
        # when none is fresh the collectors failed, not the servers: requests go where they went before
        *((BELOW_OR_FAIL, [4, 6, None], 9, policy, [0]) for policy in POLICIES),
        (BELOW, [6, 7], 0, "saturated", []),
        (BELOW_OR_ALL, [6, 7], 0, "saturated", [0, 1]),
        (BELOW_OR_ALL, [6, 4], 0, "saturated", [1]),
    ],
)
def test_the_endpoints_stay_whose_value_compares_well(
    raw: dict[str, Any], values: list[float | None], ages: Any, policy: str, expected: list[int]
) -> None:
    assert kept(raw, values, ages, policy) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operator", ["LessThan", "GreaterThan", "NotEqual"])
def test_a_missing_value_passes_or_fails_as_told(operator: str, policy: str) -> None:
    assert 1 in kept(threshold(operator, 5), [4, None], policy=policy)
    assert 1 not in kept(threshold(operator, 5, onMissing="Fail"), [4, None], policy=policy)


def test_only_rows_that_were_given_are_kept_in_their_order_and_the_values_of_the_others_are_shown_too() -> None:
    run = over(KEY, [1, 9, 1, 1])
    made = plugin(EndpointAttributeFilter, BELOW, attribute=KEY)
    assert made.filter(run, run.candidates[[3, 1, 0]]).tolist() == [3, 0]
    assert run.samples[KEY.wire].values.tolist() == [1, 9, 1]


@pytest.mark.parametrize(("given", "producer"), [({}, CORE), ({"producer": ""}, ""), ({"producer": "x"}, "x")])
def test_the_core_extractor_is_meant_where_no_producer_is_named(given: dict[str, Any], producer: str) -> None:
    parameters, _ = read(PARAMETERS, BELOW | given)
    (need,) = EndpointAttributeFilter.consumes(parameters)
    assert (need.parameter, need.name, need.producer) == ("attribute", "GPUUtilization", producer)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"attribute": "x"}, "at.algorithm: required, and missing"),
        ({"attribute": "x", "algorithm": {"type": "threshold"}}, "at.algorithm.threshold: required, and missing"),
        (BELOW | {"attribute": ""}, "at.attribute: '' is empty"),
        (BELOW | {"onMissing": "Keep"}, "at.onMissing: 'Keep' isn't one of 'Fail', 'Pass'"),
        (
            threshold("Below", 5),
            "at.algorithm.threshold.operator: 'Below' isn't one of "
            "'Equal', 'GreaterThan', 'GreaterThanOrEqual', 'LessThan', 'LessThanOrEqual', 'NotEqual'",
        ),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(PARAMETERS, raw) == (None, [error])
