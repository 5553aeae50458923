"""`utilization-filter`: endpoints within every limit that is given."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD
from services.picker.scheduling.filters.utilization import UtilizationFilter, UtilizationFilterParameters
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from tests.unit.services.picker.world import NOW, cycle, frame, load, pool

POLICIES = ["saturated", "ignore", "lastKnown"]
QUEUE_5 = {"conditions": [{"metric": "waiting-queue", "maxValue": 5}]}
QUEUE_5_KV_HALF = {"conditions": [*QUEUE_5["conditions"], {"metric": "kv-cache-utilization", "maxValue": 0.5}]}
Values = Sequence[float | None]


def read(**raw: Any) -> tuple[UtilizationFilterParameters | None, list[str]]:
    """(the parameters, or None; what is wrong with them)."""
    problems = Problems()
    made = decode(raw, UtilizationFilterParameters, "at", problems, ignore_case=True)
    return (None if made is MISSING else made), [str(one) for one in problems.errors]


def parameters(raw: dict[str, Any]) -> UtilizationFilterParameters:
    made, errors = read(**raw)
    assert made is not None, errors
    return made


def kept(
    raw: dict[str, Any],
    values: Mapping[AttributeKey[Any], Values],
    *,
    ages: Mapping[AttributeKey[Any], Sequence[float]] | None = None,
    in_flight: Sequence[int] = (),
    policy: str = "saturated",
) -> list[int]:
    """The positions of the values whose endpoints stay."""
    names = [f"a{number}" for number in range(max(map(len, [in_flight, *values.values()])))]
    view = pool(*names)
    for key, column in values.items():
        view.apply_frame(frame(names, {key: column}, (ages or {}).get(key, 0.0)), NOW, 0.0)
    if in_flight:
        table = {name: (requests, 0) for name, requests in zip(names, in_flight, strict=True)}
        view.apply_load(load("peer", table), NOW)
    plugin = UtilizationFilter("filter", parameters(raw))
    rows: list[int] = plugin.filter(cycle(view, policy=policy), view.layout.all_rows).tolist()
    return rows


@pytest.mark.parametrize(
    ("metric", "key", "limit", "values", "expected"),
    [
        ("running-requests", RUNNING_REQUESTS_SIZE, 5, [4, 5, 6], [0, 1]),
        ("waiting-queue", WAITING_QUEUE_SIZE, 0, [0, 1, 0], [0, 2]),
        ("kv-cache-utilization", KV_CACHE_USAGE, 0.5, [0.25, 0.5, 0.75], [0, 1]),
        ("kv-cache-utilization", KV_CACHE_USAGE, 1, [1, 0.5, 0.75], [0, 1, 2]),
    ],
)
def test_a_condition_holds_up_to_its_limit(
    metric: str, key: AttributeKey[float], limit: float, values: list[float], expected: list[int]
) -> None:
    assert kept({"conditions": [{"metric": metric, "maxValue": limit}]}, {key: values}) == expected


def test_active_requests_are_those_in_flight_of_all_pickers() -> None:
    raw = {"conditions": [{"metric": "active-requests", "maxValue": 2}]}
    assert kept(raw, {}, in_flight=[0, 2, 3]) == [0, 1]


def test_all_conditions_have_to_hold() -> None:
    raw = {"conditions": [*QUEUE_5_KV_HALF["conditions"], {"metric": "active-requests", "maxValue": 2}]}
    values: dict[AttributeKey[Any], Values] = {WAITING_QUEUE_SIZE: [0, 9, 0, 0], KV_CACHE_USAGE: [0, 0, 0.9, 0]}
    assert kept(raw, values, in_flight=[0, 0, 0, 9]) == [0]


@pytest.mark.parametrize(("policy", "passes"), [("saturated", False), ("ignore", True), ("lastKnown", False)])
def test_an_endpoint_of_which_nothing_is_known_isnt_idle(policy: str, passes: bool) -> None:
    assert kept(QUEUE_5, {WAITING_QUEUE_SIZE: [0, None]}, policy=policy) == ([0, 1] if passes else [0])


@pytest.mark.parametrize("policy", POLICIES)
def test_an_engine_that_doesnt_report_one_metric_is_judged_by_the_others(policy: str) -> None:
    values: dict[AttributeKey[Any], Values] = {WAITING_QUEUE_SIZE: [0, 9, 0], KV_CACHE_USAGE: [None, None, 0.1]}
    assert kept(QUEUE_5_KV_HALF, values, policy=policy) == [0, 2]


@pytest.mark.parametrize(("policy", "expected"), [("saturated", [0]), ("ignore", [0, 1, 2]), ("lastKnown", [0, 1])])
def test_a_stale_value_passes_as_the_policy_says(policy: str, expected: list[int]) -> None:
    ages = {WAITING_QUEUE_SIZE: [0.0, 9.0, 9.0]}
    assert kept(QUEUE_5, {WAITING_QUEUE_SIZE: [0, 0, 9]}, ages=ages, policy=policy) == expected


def test_a_fresh_metric_doesnt_make_up_for_a_stale_one() -> None:
    values: dict[AttributeKey[Any], Values] = {WAITING_QUEUE_SIZE: [0, 0], KV_CACHE_USAGE: [0.1, 0.1]}
    assert kept(QUEUE_5_KV_HALF, values, ages={KV_CACHE_USAGE: [0.0, 9.0]}) == [0]


def test_a_fresh_metric_beyond_its_limit_counts_where_a_stale_one_is_ignored() -> None:
    values: dict[AttributeKey[Any], Values] = {WAITING_QUEUE_SIZE: [0, 9], KV_CACHE_USAGE: [0.1, 0.1]}
    assert kept(QUEUE_5_KV_HALF, values, ages={KV_CACHE_USAGE: [0.0, 9.0]}, policy="ignore") == [0]


@pytest.mark.parametrize("policy", ["saturated", "ignore"])
def test_when_no_metrics_are_fresh_only_requests_in_flight_count(policy: str) -> None:
    """Losing the metrics alone refuses nobody."""
    raw = {"conditions": [*QUEUE_5["conditions"], {"metric": "active-requests", "maxValue": 2}]}
    ages = {WAITING_QUEUE_SIZE: [9.0, 9.0, 9.0]}
    values: dict[AttributeKey[Any], Values] = {WAITING_QUEUE_SIZE: [0, 9, None]}
    assert kept(raw, values, ages=ages, in_flight=[3, 0, 0], policy=policy) == [1, 2]


def test_none_may_be_left() -> None:
    assert kept(QUEUE_5, {WAITING_QUEUE_SIZE: [6, 7]}) == []


def test_all_are_kept_instead_of_none_where_told() -> None:
    assert kept(QUEUE_5 | {"fallbackOnEmpty": True}, {WAITING_QUEUE_SIZE: [6, 7]}) == [0, 1]


def test_only_rows_that_were_given_are_kept_in_their_order() -> None:
    view = pool("a0", "a1", "a2", "a3")
    view.apply_frame(frame(["a0", "a1", "a2", "a3"], {WAITING_QUEUE_SIZE: [1, 9, 1, 1]}), NOW, 0.0)
    plugin = UtilizationFilter("filter", parameters(QUEUE_5))
    assert plugin.filter(cycle(view), view.layout.all_rows[[3, 1, 0]]).tolist() == [3, 0]


def test_the_decision_shows_every_number_that_was_looked_at() -> None:
    view = pool("a0", "a1")
    view.apply_frame(frame(["a0", "a1"], {WAITING_QUEUE_SIZE: [1, 9]}), NOW, 0.0)
    run = cycle(view)
    raw = {"conditions": [*QUEUE_5["conditions"], {"metric": "active-requests", "maxValue": 2}]}
    UtilizationFilter("filter", parameters(raw)).filter(run, view.layout.all_rows)
    assert run.readings[WAITING_QUEUE_SIZE.wire].values.tolist() == [1, 9]
    assert run.readings["InFlightRequests"].values.tolist() == [0, 0]


def test_only_what_the_conditions_read_is_required() -> None:
    assert UtilizationFilter.requires(parameters(QUEUE_5)) == (WAITING_QUEUE_SIZE,)
    both = {"conditions": [{"metric": "active-requests", "maxValue": 2}, {"metric": "running-requests", "maxValue": 2}]}
    assert UtilizationFilter.requires(parameters(both)) == (IN_FLIGHT_LOAD, RUNNING_REQUESTS_SIZE)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({}, "at.conditions: required, and missing"),
        ({"conditions": []}, "at.conditions: no items; at least 1 is expected"),
        (
            {"conditions": [{"metric": "queue", "maxValue": 1}]},
            "at.conditions[0].metric: 'queue' isn't one of "
            "'active-requests', 'kv-cache-utilization', 'running-requests', 'waiting-queue'",
        ),
        ({"conditions": [{"metric": "waiting-queue"}]}, "at.conditions[0].maxValue: required, and missing"),
        ({"conditions": [{"metric": "waiting-queue", "maxValue": -1}]}, "at.conditions[0].maxValue: -1 is negative"),
        (
            {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 80}]},
            "at.conditions[0]: maxValue: 80 is above 1; kv-cache-utilization is a share",
        ),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(**raw) == (None, [error])
