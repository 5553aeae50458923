"""The picker's Prometheus metrics.

What is counted for every request is counted in plain lists and becomes metrics when it is scraped: a decision takes
some tens of microseconds, of which the client library would need a fifth for the timings of half a dozen plugins.
"""

import time
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.pool_metrics import PoolCollector
from services.picker.admin.request_metrics import MODELS, OpenRequest, RequestCollector, RequestMetrics
from services.picker.admin.scheduler_metrics import PLUGIN_LABELS, SchedulerCollector
from services.picker.decision import Decision
from services.picker.request import Route
from services.picker.state.histogram import Timings
from services.picker.state.view import View

SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
LONG = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0)
OBSERVED, LEFT_OUT, NOT_APPLICABLE = "observed", "left_out", "not_applicable"
FOLD_EVERY = 512
"""Decisions whose timings are taken down before they are counted."""


class PickerMetrics:
    """Counts decisions and what became of them. Per-endpoint series end with the endpoint."""

    def __init__(
        self,
        registry: CollectorRegistry,
        view: View,
        clock: Callable[[], float] = time.monotonic,
        *,
        models: int = MODELS,
        former_names: bool = True,
        observe_responses: float = 1.0,
    ) -> None:
        self._view = view
        self._layout = view.layout
        self.observe_responses = observe_responses
        """The share of responses that is asked for where the proxy shows none."""
        self.responses = {OBSERVED: 0, LEFT_OUT: 0, NOT_APPLICABLE: 0}
        self.requests = RequestMetrics(models, named=lambda model: view.rewrites.mentions(model), clock=clock)
        self.statuses: dict[int, int] = {}
        self.served_by: dict[str, int] = {}
        self.decision_seconds = Timings(SHORT)
        self.request_seconds = Timings(LONG)
        self.scheduling_seconds = Timings(SHORT)
        self.plugin_seconds: dict[tuple[str, str, str], Timings] = {}
        self._unfolded = 0
        registry.register(_Collector(view, self, clock))
        registry.register(RequestCollector(self.requests, former_names=former_names))
        registry.register(PoolCollector(view, clock, former_names=former_names))
        registry.register(
            SchedulerCollector(
                self.requests, self.scheduling_seconds, self.plugin_seconds, view, former_names=former_names
            )
        )

    def decided(self, decision: Decision, seconds: float) -> OpenRequest | None:
        """A request was routed or refused, `seconds` after its body ended; what follows of a routed one is told to the
        result."""
        if isinstance(decision.outcome, Route):
            self.answered(200, seconds)
            self.scheduling_seconds.note(decision.seconds)
        else:
            self.answered(decision.outcome.status, seconds)
        return self.requests.decided(decision)

    def refused(self, status: int, seconds: float) -> None:
        """A request was refused before there was a decision."""
        self.answered(status, seconds)
        self.requests.refused(status)

    def answered(self, status: int, seconds: float) -> None:
        """A request got its answer, 200 meaning that it was routed."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.decision_seconds.note(seconds)
        self._unfolded += 1
        if self._unfolded >= FOLD_EVERY:
            self.fold()

    def served(self, by: str) -> None:
        """A routed request's response began: from the first choice, a fallback, another endpoint, or one not told."""
        self.served_by[by] = self.served_by.get(by, 0) + 1

    def response(self, *, readable: bool, observed: bool) -> None:
        """A routed request's response is over; whether its tokens could be read, and whether its body was."""
        self.responses[OBSERVED if observed else LEFT_OUT if readable else NOT_APPLICABLE] += 1

    def completed(self, seconds: float) -> None:
        """A routed request is over, `seconds` after its first message."""
        self.request_seconds.note(seconds)

    def plugin(self, point: str, kind: str, name: str) -> Callable[[float], None]:
        """What takes the seconds of a plugin's calls; the scheduler's `observe`."""
        return self.plugin_seconds.setdefault((point, kind, name), Timings(SHORT)).note

    def fold(self) -> None:
        """Count the timings that were only taken down."""
        self._unfolded = 0
        for timings in (
            self.decision_seconds,
            self.request_seconds,
            self.scheduling_seconds,
            *self.plugin_seconds.values(),
        ):
            timings.fold()

    def forget_endpoints(self) -> None:
        """Drop the counts of endpoints that have gone."""
        layout = self._view.layout
        if layout is not self._layout:
            self._layout = layout
            self.requests.forget_endpoints(layout.index)

    def __repr__(self) -> str:
        return f"<PickerMetrics {sum(self.statuses.values())} requests>"


class _Collector(Collector):
    """Reads counts and view when they are scraped."""

    def __init__(self, view: View, metrics: PickerMetrics, clock: Callable[[], float]) -> None:
        self._view = view
        self._metrics = metrics
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield from self._requests()
        yield from self._endpoints()
        view = self._view
        yield GaugeMetricFamily(
            "pointsman_picker_own_inflight_requests",
            "Requests in flight that were routed by this picker",
            value=sum(requests for requests, _ in view.in_flight.own().values()),
        )
        yield GaugeMetricFamily(
            "pointsman_picker_peers", "Other pickers whose load is known", value=len(list(view.in_flight.peers()))
        )
        yield GaugeMetricFamily(
            "pointsman_picker_prefix_blocks", "Prompt blocks in the prefix index", value=len(view.prefixes)
        )
        yield CounterMetricFamily("pointsman_picker_frames", "Attribute frames received", value=view.columns.frames)

    def _requests(self) -> Iterator[Metric]:
        metrics = self._metrics
        decisions = CounterMetricFamily(
            "pointsman_picker_decisions", "Requests by outcome: 200 is routed", labels=["status"]
        )
        for status, count in metrics.statuses.items():
            decisions.add_metric([str(status)], count)
        served = CounterMetricFamily(
            "pointsman_picker_served",
            "Routed requests by serving endpoint: first choice, fallback, other, unknown",
            labels=["by"],
        )
        for by, count in metrics.served_by.items():
            served.add_metric([by], count)
        responses = CounterMetricFamily(
            "pointsman_picker_responses",
            "Responses by observation of their body, which gives first token and token counts: "
            "observed, left_out (readable, but not observed), not_applicable (errors and unreadable "
            "responses)",
            labels=["observation"],
        )
        for observation, count in metrics.responses.items():
            responses.add_metric([observation], count)
        yield GaugeMetricFamily(
            "pointsman_picker_observe_responses_ratio",
            "The setting --observe-responses",
            value=metrics.observe_responses,
        )
        decision = HistogramMetricFamily(
            "pointsman_picker_decision_seconds", "Time from the end of a request's body to its answer", labels=[]
        )
        metrics.decision_seconds.add_to(decision)
        request = HistogramMetricFamily(
            "pointsman_picker_request_seconds", "Time from a request's headers to the end of its response", labels=[]
        )
        metrics.request_seconds.add_to(request)
        plugins = HistogramMetricFamily(
            "pointsman_picker_plugin_seconds",
            "Duration of a plugin's call",
            labels=PLUGIN_LABELS,
        )
        for labels, histogram in metrics.plugin_seconds.items():
            histogram.add_to(plugins, labels)
        yield from (decisions, served, responses, decision, request, plugins)

    def _endpoints(self) -> Iterator[Metric]:
        view, now = self._view, self._clock()
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
            "Age of the newest attribute; infinite if there is none",
            labels=["endpoint"],
        )
        picks = CounterMetricFamily(
            "pointsman_picker_picks", "How often an endpoint was the first choice", labels=["endpoint"]
        )
        healthy = GaugeMetricFamily(
            "pointsman_picker_endpoint_healthy",
            "0 while decisions rank an endpoint last because it seems to be down",
            labels=["endpoint"],
        )
        newest = view.columns.newest()
        picked = self._metrics.requests.picks
        for row, endpoint in enumerate(layout.endpoints):
            requests.add_metric([endpoint.id], float(view.in_flight.requests[row]))
            tokens.add_metric([endpoint.id], float(view.in_flight.tokens[row]))
            age.add_metric([endpoint.id], now - float(newest[row]))
            picks.add_metric([endpoint.id], picked.get(endpoint.id, 0))
            healthy.add_metric([endpoint.id], row not in view.health.unhealthy)
        yield from (requests, tokens, age, picks, healthy)
