from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.flow_control.utilization import UtilizationDetector, UtilizationParameters
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import Invalid, load
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, cycle, pool, report
from tests.unit.services.picker.world import load as table

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
HUNG: Row = (26, 0.0, 0)
EMPTY: Row = (0, 0.0, 0)


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
        # no endpoint alone fills the pool, whatever it reports: it counts at most 1.5 among others
        ((HUNG, *[EMPTY] * 5), {}, 1.5 / 6),
        (((1e9, 1.0, 0), EMPTY), {}, 0.75),
        (((7, 0.0, 0), EMPTY), {}, 0.7),
        ((HUNG, HUNG, EMPTY), {}, 1.0),
        (((1, 0.0, 0), (26, 0.0, 9)), {"policy": "lastKnown"}, (0.2 + 1.5) / 2),
        ((HUNG, (0, 0.0, 9)), {}, (1.5 + 1) / 2),
        ((HUNG, (0, 0.0, 9)), {"policy": "ignore"}, 5.2),
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


Server = tuple[float | None, float | None, int, int]
"""Queue, KV usage, requests in flight when these came, and later."""
IDLE: Server = (0, 0.0, 0, 0)


def room(
    servers: tuple[Server, ...], ceiling: float = 1.0, ages: Any = 0.0, policy: str = "saturated", **more: Any
) -> float:
    view = pool(*(f"a{number}" for number in range(len(servers))))
    then = {f"a{number}": (server[2], 0) for number, server in enumerate(servers)}
    later = {f"a{number}": (server[3], 0) for number, server in enumerate(servers)}
    assert view.apply_load(table("peer", then), NOW)
    queues, usages = ([server[at] for server in servers] for at in range(2))
    report(view, {WAITING_QUEUE_SIZE: queues, KV_CACHE_USAGE: usages}, ages)
    assert view.apply_load(table("peer", later, sent=0.1), NOW + 0.1)
    detector, run = UtilizationDetector("detector", UtilizationParameters(**more)), cycle(view, policy=policy)
    found = {detector.room(run, rows, ceiling, 100.0) for rows in (run.candidates, run.candidates.copy())}
    assert len(found) == 1  # a copy has the same rows, and is none of the view's arrays
    return found.pop()


@pytest.mark.parametrize(
    ("servers", "more", "expected"),
    [
        # without a queue: the limit of the queue, and as much again, or as much as runs
        ((IDLE,), {}, 5 + 5),
        (((0, 0.1, 20, 20),), {}, 20 + 5),
        # the cache has room for as many as run
        (((0, 0.4, 20, 20),), {}, 20),
        (((0, 0.1, 1, 1),), {}, 7),
        # with a queue: no slot is free
        (((2, 0.2, 10, 10),), {}, 5 - 2),
        # what was dispatched since counts, and what has finished
        (((0, 0.4, 20, 35),), {}, 20 - 15),
        (((0, 0.4, 20, 50),), {}, 0),
        (((2, 0.2, 10, 7),), {}, 3 + 3),
        # an endpoint below the ceiling takes one
        (((2, 0.79, 12, 12),), {}, 1),
        (((2, 0.79, 12, 13),), {}, 0),
        # the endpoints' sum, where one that is full has only what finishes
        ((IDLE, (5, 0.1, 13, 13)), {}, 10),
        ((IDLE, (5, 0.1, 13, 10)), {}, 10 + 3),
        ((IDLE, (0, 0.9, 0, 0)), {}, 10),
        ((IDLE, (0, 0.4, 20, 35), (2, 0.2, 10, 10)), {}, 10 + 5 + 3),
        # the saturation isn't below
        (((5, 0.1, 13, 0),), {}, 0),
        ((IDLE, (8, 0.1, 18, 18), (8, 0.1, 18, 18)), {}, 0),
        (((2, 0.4, 10, 0),), {"ceiling": 0.5}, 0),
        # one endpoint alone doesn't fill the pool
        ((IDLE, (1e9, 0.1, 18, 18)), {}, 10),
        ((), {}, 0),
        # a lower ceiling is a shorter queue and a smaller cache
        (((0, 0.1, 20, 20),), {"ceiling": 0.6}, 20 + 3),
        (((0, 0.2, 10, 10),), {"ceiling": 0.5}, 10),
        (((2, 0.1, 12, 12),), {"ceiling": 0.5}, 1),
        (((4, 0.1, 14, 14),), {"queue_depth_threshold": 10}, 6),
        (((0, 0.1, 10, 10),), {"kv_cache_util_threshold": 0.11}, 1),
        # an engine that doesn't report something
        (((1, None, 5, 5),), {}, 4),
        (((None, 0.4, 10, 10),), {}, 10),
        (((None, 0.0, 10, 10),), {}, 10 + 5),
        (((0, 5e-324, 10, 10),), {}, 10 + 5),
        (((0, 0.4, 12, 12),), {}, 12),
        (((2, 0.4, 4, 4),), {}, 2),
        # stale endpoints are full, or left out, or as they were
        (((1, 0.0, 1, 1), (2, 0.0, 2, 0)), {"ages": [0, 9]}, 4),
        (((1, 0.0, 1, 1), (2, 0.0, 2, 0)), {"ages": [0, 9], "policy": "ignore"}, 4),
        (((1, 0.0, 1, 1), (2, 0.0, 2, 0)), {"ages": [0, 9], "policy": "lastKnown"}, 4 + 5),
        # without fresh metrics, the requests in flight decide
        (((9, 0.9, 0, 3), (9, 0.9, 0, 0)), {"ages": 9, "max_concurrency": 4}, 8 - 3),
        (((9, 0.9, 0, 3), (9, 0.9, 0, 0)), {"ages": 9, "max_concurrency": 4, "ceiling": 0.5}, 4 - 3),
        (((9, 0.9, 0, 8), (9, 0.9, 0, 0)), {"ages": 9, "max_concurrency": 4}, 0),
    ],
)
def test_how_many_requests_fit(servers: tuple[Server, ...], more: dict[str, Any], expected: float) -> None:
    assert room(servers, **more) == pytest.approx(expected)


def test_metrics_that_come_while_a_cycle_asks_count() -> None:
    view, detector = view_of((0, 0.0, 0)), UtilizationDetector("detector", UtilizationParameters())
    run = cycle(view)
    assert (detector.saturation(run, run.candidates), detector.room(run, run.candidates, 1.0, 1.0)) == (0.0, 10.0)
    report(view, {WAITING_QUEUE_SIZE: [5], KV_CACHE_USAGE: [0.0]}, now=NOW + 0.1)
    assert (detector.room(run, run.candidates, 1.0, 1.0), detector.saturation(run, run.candidates)) == (0.0, 1.0)


def test_a_sample_is_used_up_once() -> None:
    """Frames repeat samples; only a new one shows what was dispatched meanwhile."""
    view = pool("a0", "a1")
    detector = UtilizationDetector("detector")
    rooms: list[float] = []
    servers: dict[Any, list[Any]] = {WAITING_QUEUE_SIZE: [0, 3], KV_CACHE_USAGE: [0.0, 0.1]}

    def asked() -> float:
        run = cycle(view, now=NOW + 0.2)
        return detector.room(run, run.candidates, 1.0, 1.0)

    report(view, servers)
    while asked() >= 1 and len(rooms) < 99:
        rooms.append(asked())
        view.in_flight.charge(f"a{len(rooms) % 2}", 1)
    assert rooms == [12, 11, 10, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]
    report(view, servers, ages=0.1, now=NOW + 0.1)
    assert asked() < 1
    report(view, servers, now=NOW + 0.2)
    assert asked() == (10 + 5) + 2, "what was dispatched runs by now"


@given(
    servers=st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1), st.integers(0, 300)), min_size=1, max_size=5),
    ceiling=st.floats(0.01, 1),
)
def test_there_is_room_at_first_exactly_while_the_saturation_is_below(
    servers: list[tuple[int, float, int]], ceiling: float
) -> None:
    view = pool(*(f"a{number}" for number in range(len(servers))))
    assert view.apply_load(table("peer", {f"a{at}": (server[2], 0) for at, server in enumerate(servers)}), NOW)
    queues, usages = ([server[at] for server in servers] for at in range(2))
    report(view, {WAITING_QUEUE_SIZE: queues, KV_CACHE_USAGE: usages})
    detector, run = UtilizationDetector("detector"), cycle(view)
    found = detector.room(run, run.candidates, ceiling, 1.0)
    assert (found >= 1) == (detector.saturation(run, run.candidates) < ceiling)
    assert found < 1e6
    assert found >= 1 or found == 0


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
