"""`endpoint-attribute-filter`: endpoints whose attribute compares well with a threshold."""

from typing import Any

import pytest

from services.picker.scheduling.filters.endpoint_attribute import (
    EndpointAttributeFilter,
    EndpointAttributeFilterParameters,
)
from shared.attributes import CORE, AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from tests.unit.services.picker.world import cycle, pool, report

KEY = AttributeKey("GPUUtilization", "dcgm-extractor", float)
POLICIES = ["saturated", "ignore", "lastKnown"]


def read(**raw: Any) -> tuple[EndpointAttributeFilterParameters | None, list[str]]:
    """(the parameters, or None; what is wrong with them)."""
    problems = Problems()
    made = decode(raw, EndpointAttributeFilterParameters, "at", problems, ignore_case=True)
    return (None if made is MISSING else made), [str(one) for one in problems.errors]


def threshold(operator: str, value: float, **further: Any) -> dict[str, Any]:
    algorithm = {"type": "threshold", "threshold": {"operator": operator, "value": value}}
    return {"attribute": "GPUUtilization", "algorithm": algorithm, **further}


BELOW = threshold("LessThan", 5)


def made(raw: dict[str, Any]) -> EndpointAttributeFilter:
    parameters, errors = read(**raw)
    assert parameters is not None, errors
    plugin = EndpointAttributeFilter("filter", parameters)
    plugin.inputs = {"attribute": KEY}
    return plugin


def kept(
    raw: dict[str, Any], *values: float | None, ages: float | list[float] = 0.0, policy: str = "saturated"
) -> list[int]:
    """The positions of the values whose endpoints stay."""
    view = pool(*(f"a{number}" for number in range(len(values))))
    report(view, {KEY: values}, ages)
    rows: list[int] = made(raw).filter(cycle(view, policy=policy), view.layout.all_rows).tolist()
    return rows


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("LessThan", [0]),
        ("LessThanOrEqual", [0, 1]),
        ("GreaterThan", [2]),
        ("GreaterThanOrEqual", [1, 2]),
        ("Equal", [1]),
        ("NotEqual", [0, 2]),
    ],
)
def test_an_operator_compares_the_value_with_the_threshold(operator: str, expected: list[int]) -> None:
    assert kept(threshold(operator, 5), 4, 5, 6) == expected


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("operator", ["LessThan", "GreaterThan", "NotEqual"])
def test_a_missing_value_passes_or_fails_as_told(operator: str, policy: str) -> None:
    assert 1 in kept(threshold(operator, 5), 4, None, policy=policy)
    assert 1 not in kept(threshold(operator, 5, onMissing="Fail"), 4, None, policy=policy)


@pytest.mark.parametrize("missing", ["Pass", "Fail"])
def test_a_stale_value_doesnt_pass_where_it_counts_as_saturated(missing: str) -> None:
    assert kept(BELOW | {"onMissing": missing}, 4, 4, ages=[0, 9]) == [0]


@pytest.mark.parametrize(("missing", "expected"), [("Pass", [0, 1, 2]), ("Fail", [0])])
def test_a_stale_value_counts_as_missing_where_it_is_ignored(missing: str, expected: list[int]) -> None:
    raw = BELOW | {"onMissing": missing}
    assert kept(raw, 4, 4, 6, ages=[0, 9, 9], policy="ignore") == expected


def test_a_stale_value_is_judged_where_the_last_known_one_counts() -> None:
    assert kept(BELOW, 4, 4, 6, ages=[0, 9, 9], policy="lastKnown") == [0, 1]


@pytest.mark.parametrize("policy", POLICIES)
def test_when_no_value_is_fresh_the_last_ones_count(policy: str) -> None:
    """The collectors failed, not the servers: requests go where they went before."""
    assert kept(BELOW | {"onMissing": "Fail"}, 4, 6, None, ages=9, policy=policy) == [0]


def test_none_may_be_left() -> None:
    assert kept(BELOW, 6, 7) == []


def test_all_are_kept_instead_of_none_where_told() -> None:
    assert kept(BELOW | {"fallbackOnEmpty": True}, 6, 7) == [0, 1]
    assert kept(BELOW | {"fallbackOnEmpty": True}, 6, 4) == [1]


def test_only_rows_that_were_given_are_kept_in_their_order() -> None:
    view = pool("a0", "a1", "a2", "a3")
    report(view, {KEY: [1, 9, 1, 1]})
    assert made(BELOW).filter(cycle(view), view.layout.all_rows[[3, 1, 0]]).tolist() == [3, 0]


def test_the_decision_shows_the_values_of_those_that_were_removed_too() -> None:
    view = pool("a0", "a1")
    report(view, {KEY: [9, 1]})
    run = cycle(view)
    made(BELOW).filter(run, view.layout.all_rows)
    assert run.readings["GPUUtilization/dcgm-extractor"].values.tolist() == [9, 1]


@pytest.mark.parametrize(("given", "producer"), [({}, CORE), ({"producer": ""}, ""), ({"producer": "x"}, "x")])
def test_the_core_extractor_is_meant_where_no_producer_is_named(given: dict[str, Any], producer: str) -> None:
    parameters, _ = read(**BELOW, **given)
    assert parameters is not None
    (need,) = EndpointAttributeFilter.needs(parameters)
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
    assert read(**raw) == (None, [error])
