"""The picker's Prometheus metrics."""

import time
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.decision import Decision
from services.picker.requests.request import Route
from services.picker.state.view import View

SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
LONG = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0)


class PickerMetrics:
    """Counts decisions and what became of them. Per-endpoint series end with the endpoint."""

    def __init__(self, registry: CollectorRegistry, view: View) -> None:
        self._view = view
        self.picks: dict[str, int] = {}
        """By endpoint id: how often it was the first choice."""
        self._decisions = Counter(
            "pointsman_picker_decisions", "Requests by outcome: 200 is routed", ["status"], registry=registry
        )
        self._served = Counter(
            "pointsman_picker_served",
            "Routed requests by who really served them: first choice, fallback, other, unknown",
            ["by"],
            registry=registry,
        )
        self._decision_seconds = Histogram(
            "pointsman_picker_decision_seconds",
            "From the end of a request's body to its answer",
            buckets=SHORT,
            registry=registry,
        )
        self._request_seconds = Histogram(
            "pointsman_picker_request_seconds",
            "From a request's headers to the end of its response",
            buckets=LONG,
            registry=registry,
        )
        self._plugin_seconds = Histogram(
            "pointsman_picker_plugin_seconds",
            "What a plugin's call took",
            ["extension_point", "plugin_type", "plugin_name"],
            buckets=SHORT,
            registry=registry,
        )
        self._plugin_children: dict[tuple[str, str, str], Histogram] = {}
        self._status_children: dict[int, Counter] = {}
        self.reloads = Counter(
            "pointsman_picker_config_loads", "Configurations taken over or refused", ["result"], registry=registry
        )
        registry.register(_ViewCollector(view, self))

    def decided(self, decision: Decision, seconds: float) -> None:
        """A request was routed or refused, `seconds` after its body ended."""
        status = 200
        if isinstance(decision.outcome, Route):
            endpoint = decision.layout.endpoints[decision.picked[0]].id
            self.picks[endpoint] = self.picks.get(endpoint, 0) + 1
        else:
            status = decision.outcome.status
        self.answered(status, seconds)

    def answered(self, status: int, seconds: float) -> None:
        child = self._status_children.get(status)
        if child is None:
            child = self._status_children[status] = self._decisions.labels(str(status))
        child.inc()
        self._decision_seconds.observe(seconds)

    def served(self, by: str) -> None:
        self._served.labels(by).inc()

    def completed(self, seconds: float) -> None:
        self._request_seconds.observe(seconds)

    def plugin(self, point: str, kind: str, name: str, seconds: float) -> None:
        """Observes a plugin's call; the scheduler's `observe`."""
        key = (point, kind, name)
        child = self._plugin_children.get(key)
        if child is None:
            child = self._plugin_children[key] = self._plugin_seconds.labels(point, kind, name)
        child.observe(seconds)

    def forget_endpoints(self) -> None:
        """Drop the counts of endpoints that have gone."""
        index = self._view.layout.index
        for name in [one for one in self.picks if one not in index]:
            del self.picks[name]


class _ViewCollector(Collector):
    """Gauges that are read off the view when it is scraped, not kept up to date on the request's path."""

    def __init__(self, view: View, metrics: PickerMetrics) -> None:
        self._view = view
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        view, now = self._view, time.monotonic()
        layout = view.layout
        yield GaugeMetricFamily("pointsman_picker_endpoints", "Endpoints in the view", value=len(layout))
        requests = GaugeMetricFamily(
            "pointsman_picker_inflight_requests", "Requests in flight, of all pickers", labels=["endpoint"]
        )
        tokens = GaugeMetricFamily(
            "pointsman_picker_inflight_tokens", "Tokens in flight, of all pickers", labels=["endpoint"]
        )
        age = GaugeMetricFamily(
            "pointsman_picker_attribute_age_seconds",
            "Age of the newest attribute; infinite when there is none",
            labels=["endpoint"],
        )
        picks = CounterMetricFamily(
            "pointsman_picker_picks", "How often an endpoint was the first choice", labels=["endpoint"]
        )
        newest = view.columns.newest()
        for row, one in enumerate(layout.endpoints):
            requests.add_metric([one.id], float(view.in_flight.requests[row]))
            tokens.add_metric([one.id], float(view.in_flight.tokens[row]))
            age.add_metric([one.id], now - float(newest[row]))
            picks.add_metric([one.id], self._metrics.picks.get(one.id, 0))
        yield from (requests, tokens, age, picks)
        own = view.in_flight.own()
        yield GaugeMetricFamily(
            "pointsman_picker_own_inflight_requests",
            "Requests in flight that this picker routed",
            value=sum(requests for requests, _ in own.values()),
        )
        yield GaugeMetricFamily(
            "pointsman_picker_peers", "Other pickers whose load is known", value=len(list(view.in_flight.peers()))
        )
        yield GaugeMetricFamily(
            "pointsman_picker_prefix_blocks", "Prompt blocks in the prefix index", value=len(view.prefixes)
        )
        yield CounterMetricFamily("pointsman_picker_frames", "Attribute frames taken in", value=view.columns.frames)
