"""What scheduling does and takes, under the Go original's names."""

from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.request_metrics import RequestMetrics
from services.picker.state.histogram import Timings
from services.picker.state.view import View
from shared.service.pages import SLICE

PLUGIN_LABELS = ("extension_point", "plugin_type", "plugin_name")
INDEXER = "approx-prefix-cache-producer"
"""The type of the plugin that looks prompts up."""


class SchedulerCollector(Collector):
    """Makes metrics of the counts when somebody asks."""

    def __init__(
        self,
        requests: RequestMetrics,
        scheduling: Timings,
        plugins: Mapping[tuple[str, str, str], Timings],
        view: View,
        *,
        former_names: bool,
    ) -> None:
        """`plugins` are the times of their calls, by `PLUGIN_LABELS`."""
        self._requests = requests
        self._scheduling = scheduling
        self._plugins = plugins
        self._view = view
        self._prefixes = ("llm_d_epp_", "inference_extension_")[: 1 + former_names]

    def collect(self) -> Iterator[Metric]:
        scheduled, blocks = self._requests.scheduled(), self._view.prefixes.held
        for prefix in self._prefixes:
            scheduling = HistogramMetricFamily(
                f"{prefix}scheduler_e2e_duration_seconds", "Duration of the decision on a routed request", labels=[]
            )
            self._scheduling.add_to(scheduling)
            plugins = HistogramMetricFamily(
                f"{prefix}plugin_duration_seconds", "Duration of a plugin's call", labels=PLUGIN_LABELS
            )
            for labels, histogram in self._plugins.items():
                histogram.add_to(plugins, labels)
            yield from (scheduling, plugins)
            yield from self._attempts(prefix, scheduled)
            yield from self._prefix_index(prefix, blocks)

    def _attempts(self, prefix: str, scheduled: Mapping[tuple[str, str], int]) -> Iterator[Metric]:
        """The plain name of a server, without its rank, and the port: as the Go original calls it.

        In slices: there may be as many series as models times endpoints.
        """
        former = prefix != "llm_d_epp_"
        empty = partial(
            CounterMetricFamily,
            f"{prefix}scheduler_attempts",
            "Scheduling attempts, by the chosen endpoint, or without one if none was left",
            labels=["status", "target_model_name", "pod_name" if former else "endpoint_name", "namespace", "port"],
        )
        layout = self._view.layout
        family = empty()
        for (target, id), count in scheduled.items():
            row = layout.index.get(id)
            if row is not None:
                endpoint = layout.endpoints[row]
                name = endpoint.name.removesuffix(f"-rank-{endpoint.rank}")
                family.add_metric(["success", target, name, endpoint.namespace, str(endpoint.port)], count)
            if len(family.samples) >= SLICE:
                yield family
                family = empty()
        for target, count in self._requests.unscheduled.items():
            family.add_metric(["failure", target, "", "", ""], count)
        yield family

    def _prefix_index(self, prefix: str, blocks: int) -> Iterator[Metric]:
        hits = self._view.prefixes.hits
        labels: tuple[str, ...] = ()
        values: tuple[str, ...] = ()
        if prefix == "llm_d_epp_":
            labels, values = ("plugin_name", "plugin_type"), (hits.plugin, INDEXER)
        size = GaugeMetricFamily(
            f"{prefix}prefix_indexer_size", "Blocks in the prefix index, over all endpoints", labels=labels
        )
        ratio = HistogramMetricFamily(
            f"{prefix}prefix_indexer_hit_ratio",
            "Share of a prompt's blocks that its endpoint already held",
            labels=labels,
        )
        held = HistogramMetricFamily(
            f"{prefix}prefix_indexer_hit_bytes", "Bytes of a prompt that its endpoint already held", labels=labels
        )
        if hits.plugin:
            size.add_metric(values, blocks)
            hits.ratios.add_to(ratio, values)
            hits.bytes.add_to(held, values)
        yield from (size, ratio, held)
