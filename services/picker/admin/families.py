"""Families of metrics, and the names of the Go original's series: the present ones, and those that its dashboards know
from before."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.state.histogram import Histogram
from shared.service.pages import SLICE

Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily] | type[HistogramMetricFamily]
Samples: TypeAlias = Iterable[tuple[Iterable[str], float | Histogram]]
"""Label values, and the value that they have."""

PRESENT = "llm_d_epp_"
_SAME_NAMES = {
    "inference_pool_": ("average_kv_cache_utilization", "average_queue_size", "average_running_requests"),
    "inference_extension_": (
        *("model_rewrite_decisions", "scheduler_e2e_duration_seconds", "plugin_duration_seconds", "scheduler_attempts"),
        *("flow_control_request_queue_duration_seconds", "flow_control_queue_size", "flow_control_queue_bytes"),
        *("prefix_indexer_size", "prefix_indexer_hit_ratio", "prefix_indexer_hit_bytes"),
    ),
    "inference_objective_": ("request", "request_error", "request_duration_seconds", "request_ttft_seconds"),
}
_FORMER = {name: prefix + name for prefix, names in _SAME_NAMES.items() for name in names} | {
    "request_running": "inference_objective_running_requests",
    "request_size_bytes": "inference_objective_request_sizes",
    "response_size_bytes": "inference_objective_response_sizes",
    "request_input_tokens": "inference_objective_input_tokens",
    "request_output_tokens": "inference_objective_output_tokens",
    "request_cached_tokens": "inference_objective_prompt_cached_tokens",
    "request_ntpot_seconds": "inference_objective_normalized_time_per_output_token_seconds",
    "request_streaming_tpot_seconds": "inference_objective_request_tpot_seconds",
    "ready_endpoints": "inference_pool_ready_pods",
    "per_endpoint_queue_size": "inference_pool_per_pod_queue_size",
    "disagg_decision": "llm_d_inference_scheduler_disagg_decision",
}
_FORMER_LABELS = {"endpoint_name": "pod_name", "model_server_endpoint": "model_server_pod"}


def family(kind: Kind, name: str, text: str, labels: Iterable[str] = (), samples: Samples = ()) -> Iterator[Metric]:
    """A metric with these series, in slices of some `SLICE` lines. The process does other work between two of them, so
    `samples` iterates over nothing that changes meanwhile."""
    made: Any = kind(name, text, labels=list(labels))
    for values, value in samples:
        if len(made.samples) >= SLICE:
            yield made
            made = kind(name, text, labels=list(labels))
        if isinstance(value, Histogram):
            value.add_to(made, values)
        else:
            made.add_metric(list(values), value)
    yield made


class Names:
    """Makes families of the Go original under its present or its `former` names."""

    def __init__(self, *, former: bool = False) -> None:
        self.former = former

    def __call__(
        self, kind: Kind, name: str, text: str, labels: Iterable[str] = (), samples: Samples = ()
    ) -> Iterator[Metric]:
        """The family, as `family` makes it; none if it had no former name."""
        if not self.former:
            yield from family(kind, PRESENT + name, text, labels, samples)
        elif name in _FORMER:
            yield from family(
                kind, _FORMER[name], text, [_FORMER_LABELS.get(label, label) for label in labels], samples
            )


class Families(Collector):
    """Makes families when somebody asks, under each of the `names`."""

    def __init__(self, make: Callable[[Names], Iterator[Metric]], *, former_names: bool = True) -> None:
        self._make = make
        self._names = [Names(former=former) for former in (False, True)[: 1 + former_names]]

    def collect(self) -> Iterator[Metric]:
        for names in self._names:
            yield from self._make(names)
