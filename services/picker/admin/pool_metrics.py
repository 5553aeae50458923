"""Metrics of the pool's endpoints, under the Go original's names."""

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from services.picker.admin.families import Names
from services.picker.state.object_column import NEVER
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE

FRESH = 2.0
"""Seconds: the averages leave out older values (the Go original's figure)."""
_AVERAGES = {
    "kv_cache_utilization": KV_CACHE_USAGE,
    "queue_size": WAITING_QUEUE_SIZE,
    "running_requests": RUNNING_REQUESTS_SIZE,
}


def pool_families(view: View, now: float, names: Names) -> Iterator[Metric]:
    """Averages over the endpoints, and the queue of every endpoint that has ever reported it."""
    layout = view.layout  # changed endpoints first
    pool = view.pool.name if view.pool is not None else ""
    fresh = view.columns.newest() >= now - FRESH
    ready = [((pool,), float(fresh.sum()))]
    yield from names(GaugeMetricFamily, "ready_endpoints", "Endpoints with fresh metrics", ("name",), ready)
    for what, key in _AVERAGES.items():
        column, words = view.columns.numbers(key.wire), what.replace("_", " ")
        known = column.values[column.at >= now - FRESH]
        for name, text, value in (
            ("average", f"Mean {words} of the endpoints", known.mean),
            ("std_dev", f"Standard deviation of the endpoints' {words}", known.std),
        ):
            samples = [((pool,), float(value()))] if len(known) else []
            yield from names(GaugeMetricFamily, f"{name}_{what}", text, ("name",), samples)
    column = view.columns.numbers(WAITING_QUEUE_SIZE.wire)
    queues = [
        ((pool, endpoint.name), float(column.values[row]))
        for row, endpoint in enumerate(layout.endpoints)
        if column.at[row] > NEVER
    ]
    labels = ("name", "model_server_endpoint")
    yield from names(GaugeMetricFamily, "per_endpoint_queue_size", "An endpoint's queue", labels, queues)
