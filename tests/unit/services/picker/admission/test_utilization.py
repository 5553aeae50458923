from typing import Any

import pytest

from services.picker.admission.utilization import UtilizationDetector, UtilizationParameters
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import Invalid, load
from shared.plugin import Registry
from tests.unit.services.picker.world import cycle, pool, report

Row = tuple[float | None, float | None, float]
"""Queue, KV usage, age."""


def view_of(*rows: Row) -> View:
    view = pool(*(f"a{number}" for number in range(len(rows))))
    queues, usages, ages = ([row[at] for row in rows] for at in range(3))
    report(view, {WAITING_QUEUE_SIZE: queues, KV_CACHE_USAGE: usages}, [age or 0.0 for age in ages])
    return view


def detect(rows: tuple[Row, ...], policy: str = "saturated", **parameters: Any) -> tuple[float, list[int]]:
    """(the saturation, the rows that it keeps as a filter)."""
    view, detector = view_of(*rows), UtilizationDetector("detector", UtilizationParameters(**parameters))
    run = cycle(view, policy=policy)
    return detector.saturation(run, run.candidates), detector.filter(run, run.candidates).tolist()


STALE: tuple[Row, ...] = ((1, 0.0, 0), (2, 0.0, 9))
NEVER: tuple[Row, ...] = ((1, 0.0, 0), (None, None, 0))
AGED: tuple[Row, ...] = ((1, 0.0, 0.5), (2, 0.0, 0))


@pytest.mark.parametrize(
    ("rows", "more", "expected"),
    [
        # the fuller of queue and cache counts, and endpoints are averaged
        (((5, 0.4, 0), (0, 0.8, 0), (1, 0.1, 9)), {}, 1.0),
        (((1, 0.0, 0), (0, 0.4, 0)), {}, (0.2 + 0.5) / 2),
        (((20, 0.0, 0),), {}, 4.0),
        (((2, 0.5, 0),), {"queue_depth_threshold": 4, "kv_cache_util_threshold": 0.5}, 1.0),
        (STALE, {}, 0.6),
        (STALE, {"policy": "ignore"}, 0.2),
        (STALE, {"policy": "lastKnown"}, 0.3),
        (NEVER, {}, 0.6),
        (NEVER, {"policy": "ignore"}, 0.2),
        (NEVER, {"policy": "lastKnown"}, 0.6),
        # an engine that reports only one of the two is judged by it
        (((1, None, 0), (None, 0.4, 0)), {}, (0.2 + 0.5) / 2),
        # staleness can be the detector's own
        (AGED, {}, 0.3),
        (AGED, {"metrics_staleness_threshold": 0.2}, 0.7),
        (((7, 0.5, 0),), {"headroom": 0.5}, 1.4),
        ((), {}, 1.0),
    ],
)
def test_the_saturation_of_a_pool(rows: tuple[Row, ...], more: dict[str, Any], expected: float) -> None:
    assert detect(rows, **more)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "more", "left"),
    [
        # fresh, and below both limits
        (((0, 0.5, 0), (5, 0.1, 0), (4, 0.8, 0), (4, 0.79, 0), (0, 0.0, 9), (None, None, 0)), {}, [0, 3]),
        (((1, None, 0), (9, None, 0), (None, 0.4, 0), (None, 0.9, 0)), {}, [0, 2]),
        (((9, 0.9, 0), (0, 0.0, 9)), {}, [0, 1]),  # never nobody
        (((7, 0.5, 0), (8, 0.5, 0), (0, 0.99, 0)), {"headroom": 0.5}, [0, 2]),
    ],
)
def test_as_a_filter_it_keeps_the_endpoints_that_have_room(
    rows: tuple[Row, ...], more: dict[str, Any], left: list[int]
) -> None:
    assert detect(rows, **more)[1] == left


def test_one_of_the_two_gone_stale_makes_the_endpoint_stale() -> None:
    view = pool("a0", "a1")
    report(view, {WAITING_QUEUE_SIZE: [1, 1]})
    report(view, {KV_CACHE_USAGE: [0.0, 0.0]}, ages=[0, 9])
    assert UtilizationDetector("d").saturation(cycle(view), view.layout.all_rows) == pytest.approx((0.2 + 1) / 2)


@pytest.mark.parametrize("policy", ["saturated", "ignore"])
@pytest.mark.parametrize("row", [(9, 1.0, 9.0), (None, None, 0.0)])
def test_when_no_metrics_are_fresh_the_requests_in_flight_decide(policy: str, row: Row) -> None:
    view = view_of(row, row)
    detector = UtilizationDetector("detector", UtilizationParameters(max_concurrency=4))
    run = cycle(view, policy=policy)
    assert detector.saturation(run, view.layout.all_rows) == 0.0
    charges = [view.in_flight.charge("a0", 1) for _ in range(8)]
    assert detector.saturation(run, view.layout.all_rows) == pytest.approx(1.0)
    assert run.samples["InFlightRequests"].values.tolist() == [8, 0]
    for charge in charges:
        charge.release()


def test_what_it_read_is_there_to_be_explained() -> None:
    view = view_of((1, 0.5, 0))
    run = cycle(view)
    UtilizationDetector("detector").saturation(run, view.layout.all_rows)
    assert run.samples[WAITING_QUEUE_SIZE.wire].values.tolist() == [1]
    assert run.samples[KV_CACHE_USAGE.wire].values.tolist() == [0.5]


@pytest.mark.parametrize(
    "parameters",
    ["queueDepthThreshold: 0", "kvCacheUtilThreshold: 1.1", "headroom: -1", "metricsStalenessThreshold: 0s"],
)
def test_parameters_out_of_range_are_refused(parameters: str) -> None:
    text = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: utilization-detector
  parameters: {{{parameters}}}
"""
    with pytest.raises(Invalid, match=parameters.partition(":")[0]):
        load(text, Registry.installed())
