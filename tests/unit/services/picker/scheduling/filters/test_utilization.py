"""`utilization-filter`: endpoints within every limit that is given."""

from typing import Any

import pytest

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, Cycle
from services.picker.scheduling.filters.utilization import UtilizationFilter
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import NOW, cycle, frame, load, pool

PARAMETERS = UtilizationFilter.Parameters
KEYS = {"q": WAITING_QUEUE_SIZE, "kv": KV_CACHE_USAGE, "running": RUNNING_REQUESTS_SIZE}


def limits(fallback: bool = False, **most: float) -> dict[str, Any]:
    """Parameters with these limits."""
    metrics = {
        "q": "waiting-queue",
        "kv": "kv-cache-utilization",
        "running": "running-requests",
        "active": "active-requests",
    }
    conditions = [{"metric": metrics[name], "maxValue": value} for name, value in most.items()]
    return {"conditions": conditions, **({"fallbackOnEmpty": True} if fallback else {})}


def on(values: dict[str, Any], policy: str = "saturated") -> Cycle:
    """A cycle on endpoints that report these values of `KEYS`, as old as `q_ages` says; `active` are in flight."""
    names = [f"a{number}" for number in range(len(next(iter(values.values()))))]
    view = pool(*names)
    for name, key in KEYS.items():
        if name in values:
            view.apply_frame(frame(names, {key: values[name]}, values.get(f"{name}_ages", 0.0)), NOW, 0.0)
    if "active" in values:
        view.apply_load(
            load("peer", {name: (count, 0) for name, count in zip(names, values["active"], strict=True)}), NOW
        )
    return cycle(view, policy=policy)


ACTIVE_2 = {"metric": "active-requests", "maxValue": 2}


@pytest.mark.parametrize(
    ("raw", "values", "policy", "expected"),
    [
        (limits(running=5), {"running": [4, 5, 6]}, "saturated", [0, 1]),
        (limits(q=0), {"q": [0, 1, 0]}, "saturated", [0, 2]),
        (limits(kv=0.5), {"kv": [0.25, 0.5, 0.75]}, "saturated", [0, 1]),
        (limits(kv=1), {"kv": [1, 0.5, 0.75]}, "saturated", [0, 1, 2]),
        (limits(active=2), {"active": [0, 2, 3]}, "saturated", [0, 1]),
        ({"conditions": 2 * [*limits(active=9)["conditions"], ACTIVE_2]}, {"active": [0, 3]}, "saturated", [0]),
        # all have to hold
        (
            limits(q=5, kv=0.5, active=2),
            {"q": [0, 9, 0, 0], "kv": [0, 0, 0.9, 0], "active": [0, 0, 0, 9]},
            "saturated",
            [0],
        ),
        # an endpoint of which nothing is known isn't idle
        (limits(q=5), {"q": [0, None]}, "saturated", [0]),
        (limits(q=5), {"q": [0, None]}, "ignore", [0, 1]),
        (limits(q=5), {"q": [0, None]}, "lastKnown", [0]),
        # an engine that doesn't report one metric is judged by the others
        *(
            (limits(q=5, kv=0.5), {"q": [0, 9, 0], "kv": [None, None, 0.1]}, policy, [0, 2])
            for policy in ("saturated", "ignore", "lastKnown")
        ),
        (limits(q=5), {"q": [0, 0, 9], "q_ages": [0, 9, 9]}, "saturated", [0]),
        (limits(q=5), {"q": [0, 0, 9], "q_ages": [0, 9, 9]}, "ignore", [0, 1, 2]),
        (limits(q=5), {"q": [0, 0, 9], "q_ages": [0, 9, 9]}, "lastKnown", [0, 1]),
        # a fresh metric doesn't make up for a stale one, and counts beside one that is ignored
        (limits(q=5, kv=0.5), {"q": [0, 0], "kv": [0.1, 0.1], "kv_ages": [0, 9]}, "saturated", [0]),
        (limits(q=5, kv=0.5), {"q": [0, 9], "kv": [0.1, 0.1], "kv_ages": [0, 9]}, "ignore", [0]),
        # losing all metrics refuses nobody: only requests in flight count
        *(
            (limits(q=5, active=2), {"q": [0, 9, None], "q_ages": 9, "active": [3, 0, 0]}, policy, [1, 2])
            for policy in ("saturated", "ignore")
        ),
        (limits(q=5), {"q": [6, 7]}, "saturated", []),
        (limits(q=5, fallback=True), {"q": [6, 7]}, "saturated", [0, 1]),
    ],
)
def test_the_endpoints_within_all_limits_stay(
    raw: dict[str, Any], values: dict[str, Any], policy: str, expected: list[int]
) -> None:
    run = on(values, policy)
    assert plugin(UtilizationFilter, raw).filter(run, run.candidates).tolist() == expected


def test_only_rows_that_were_given_are_kept_in_their_order_and_every_number_that_was_looked_at_is_shown() -> None:
    run = on({"q": [1, 9, 1, 1]})
    assert plugin(UtilizationFilter, limits(q=5, active=2)).filter(run, run.candidates[[3, 1, 0]]).tolist() == [3, 0]
    assert run.samples[WAITING_QUEUE_SIZE.wire].values.tolist() == [1, 9, 1]
    assert run.samples["InFlightRequests"].values.tolist() == [0, 0, 0]


def test_only_what_the_conditions_read_is_required() -> None:
    for raw, required in (
        (limits(q=5), (WAITING_QUEUE_SIZE,)),
        (limits(active=2, running=2), (IN_FLIGHT_LOAD, RUNNING_REQUESTS_SIZE)),
    ):
        assert tuple(need.key for need in UtilizationFilter.consumes(read(PARAMETERS, raw)[0])) == required


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
        (limits(q=-1), "at.conditions[0].maxValue: -1 is negative"),
        (limits(kv=80), "at.conditions[0]: maxValue: 80 is above 1; kv-cache-utilization is a share"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(raw: dict[str, Any], error: str) -> None:
    assert read(PARAMETERS, raw) == (None, [error])
