"""Endpoints, decisions, plugins and the prefix index, under the Go original's names."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from services.picker.admin.families import Names
from services.picker.admin.request_metrics import RequestMetrics
from services.picker.state.histogram import Histogram
from services.picker.state.object_column import NEVER
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE

PLUGIN_LABELS = ("extension_point", "plugin_type", "plugin_name")
INDEXER = "approx-prefix-cache-producer"
"""The type of the plugin that uses the index."""
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


def scheduler_families(
    requests: RequestMetrics,
    scheduling: Histogram,
    plugins: Mapping[tuple[str, str, str], Histogram],
    view: View,
    names: Names,
) -> Iterator[Metric]:
    """Decisions and plugins' calls, whose times are by `PLUGIN_LABELS`; the choice of endpoints; the prefix index."""
    yield from names(
        HistogramMetricFamily,
        "scheduler_e2e_duration_seconds",
        "Duration of the decision on a routed request",
        (),
        [((), scheduling)],
    )
    yield from names(
        HistogramMetricFamily,
        "plugin_duration_seconds",
        "Duration of a plugin's call",
        PLUGIN_LABELS,
        list(plugins.items()),
    )
    yield from names(
        CounterMetricFamily,
        "scheduler_attempts",
        "Scheduling attempts, by the chosen endpoint, or without one if none was left",
        ("status", "target_model_name", "endpoint_name", "namespace", "port"),
        _attempts(requests, view),
    )
    yield from names(
        CounterMetricFamily,
        "disagg_decision",
        "Routed requests of disaggregated serving, by the stages that serve them",
        ("model_name", "decision_type"),
        list(requests.stages.items()),
    )
    yield from _prefix_index(view, names)


def _attempts(requests: RequestMetrics, view: View) -> Iterator[tuple[tuple[str, ...], int]]:
    """As in the Go original, a server has its name without its rank, and its port."""
    layout = view.layout
    for target, picked in list(requests.scheduled.items()):
        for id, count in list(picked.items()):
            if (row := layout.index.get(id)) is not None:
                endpoint = layout.endpoints[row]
                yield ("success", target, endpoint.pod_name, endpoint.namespace, str(endpoint.port)), count
    for target, count in list(requests.unscheduled.items()):
        yield ("failure", target, "", "", ""), count


def _prefix_index(view: View, names: Names) -> Iterator[Metric]:
    hits = view.prefix_hits
    labels, values = ((), ()) if names.former else (("plugin_name", "plugin_type"), (hits.plugin, INDEXER))
    for kind, name, text, value in (
        (GaugeMetricFamily, "size", "Blocks in the prefix index, over all endpoints", view.prefixes.held),
        (
            HistogramMetricFamily,
            "hit_ratio",
            "Share of a prompt's blocks that its endpoint already held",
            hits.ratios,
        ),
        (HistogramMetricFamily, "hit_bytes", "Bytes of a prompt that its endpoint already held", hits.bytes),
    ):
        yield from names(kind, f"prefix_indexer_{name}", text, labels, [(values, value)] if hits.plugin else [])
