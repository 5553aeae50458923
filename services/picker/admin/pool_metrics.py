"""What the endpoints of the pool report, under the Go original's names."""

from collections.abc import Callable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.state.object_column import NEVER
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey

FRESH = 2.0
"""Seconds: older values have no part in the averages (the Go original's figure)."""
_AVERAGES: tuple[tuple[str, AttributeKey[float]], ...] = (
    ("kv_cache_utilization", KV_CACHE_USAGE),
    ("queue_size", WAITING_QUEUE_SIZE),
    ("running_requests", RUNNING_REQUESTS_SIZE),
)


class PoolCollector(Collector):
    """Reads the view when somebody asks."""

    def __init__(self, view: View, clock: Callable[[], float], *, former_names: bool = True) -> None:
        self._view = view
        self._clock = clock
        self._former = former_names

    def collect(self) -> Iterator[Metric]:
        _ = self._view.layout  # changed endpoints first
        pool = self._view.pool
        name = pool.name if pool is not None else ""
        fresh = self._view.columns.newest() >= self._clock() - FRESH
        for prefix, ready in (("llm_d_epp_", "ready_endpoints"), ("inference_pool_", "ready_pods"))[: 1 + self._former]:
            count = GaugeMetricFamily(f"{prefix}{ready}", "Endpoints with fresh metrics", labels=["name"])
            count.add_metric([name], float(fresh.sum()))
            yield count
            for what, key in _AVERAGES:
                column = self._view.columns.numbers(key.wire)
                known = column.values[column.at >= self._clock() - FRESH]
                words = what.replace("_", " ")
                mean = GaugeMetricFamily(f"{prefix}average_{what}", f"Mean {words} of the endpoints", labels=["name"])
                if len(known):
                    mean.add_metric([name], float(known.mean()))
                yield mean
                if prefix == "llm_d_epp_":
                    spread = GaugeMetricFamily(
                        f"{prefix}std_dev_{what}", f"Standard deviation of the endpoints' {words}", labels=["name"]
                    )
                    if len(known):
                        spread.add_metric([name], float(known.std()))
                    yield spread
        yield from self._queues(name)

    def _queues(self, pool: str) -> Iterator[Metric]:
        """The queue of every endpoint that ever reported it, also long ago."""
        layout = self._view.layout
        column = self._view.columns.numbers(WAITING_QUEUE_SIZE.wire)
        known = [
            (endpoint.name, float(column.values[row]))
            for row, endpoint in enumerate(layout.endpoints)
            if column.at[row] > NEVER
        ]
        for name, label in (
            ("llm_d_epp_per_endpoint_queue_size", "model_server_endpoint"),
            ("inference_pool_per_pod_queue_size", "model_server_pod"),
        )[: 1 + self._former]:
            family = GaugeMetricFamily(name, "An endpoint's queue", labels=["name", label])
            for endpoint, queue in known:
                family.add_metric([pool, endpoint], queue)
            yield family
