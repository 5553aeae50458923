"""The picker's Prometheus metrics.

Requests are counted in plain lists, which become metrics when they are scraped. A decision takes some tens of
microseconds; the client library would need a fifth of that for the timings of half a dozen plugins.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.families import Families, Names, Samples, family
from services.picker.admin.request_metrics import MODELS, OpenRequest, RequestMetrics, request_families
from services.picker.admin.scheduler_metrics import PLUGIN_LABELS, pool_families, scheduler_families
from services.picker.decision import Decision, RoutedRequest
from services.picker.request import Refusal
from services.picker.state.histogram import Histogram
from services.picker.state.view import View

SHORT = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5)
LONG = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1200.0)
OBSERVED, LEFT_OUT, NOT_APPLICABLE = "observed", "left_out", "not_applicable"
FOLD_EVERY = 512
"""Decisions after which noted timings are counted."""


class PluginTimings:
    """What the calls of one configuration's plugins take. It may be filled in any thread, until the configuration is
    used."""

    def __init__(self, former: "PluginTimings | None" = None) -> None:
        """Timings of plugins that the `former` configuration has, too, go on."""
        self._former: Mapping[tuple[str, str, str], Histogram] = {} if former is None else former.seconds
        self.seconds: dict[tuple[str, str, str], Histogram] = {}

    def observe(self, point: str, kind: str, name: str) -> Callable[[float], None]:
        """A function that takes the seconds of a plugin's calls: the scheduler's `observe`."""
        key = point, kind, name
        return self.seconds.setdefault(key, self._former.get(key) or Histogram(SHORT)).note

    def __repr__(self) -> str:
        return f"<PluginTimings of {len(self.seconds)} plugins>"


class PickerMetrics(Collector):
    """Counts decisions and their outcomes. The series of an endpoint end with the endpoint."""

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
        self._clock = clock
        self._layout = view.layout
        self._unforgotten = 0
        """Target models whose counts may have endpoints that are gone."""
        self.observe_responses = observe_responses
        """The share of responses that the picker requests from proxies that don't show them."""
        self.responses = {OBSERVED: 0, LEFT_OUT: 0, NOT_APPLICABLE: 0}
        self.requests = RequestMetrics(models, named=lambda model: view.rewrites.mentions(model), clock=clock)
        self.statuses: dict[int, int] = {}
        self.served_by: dict[str, int] = {}
        self.skipped_stages: dict[tuple[str, str], int] = {}
        """Routed requests that lacked a stage of disaggregated serving, by stage and reason."""
        self.decision_seconds = Histogram(SHORT)
        self.request_seconds = Histogram(LONG)
        self.scheduling_seconds = Histogram(SHORT)
        self.plugins = PluginTimings()
        """Of the configuration in use."""
        self._unfolded = 0
        registry.register(self)
        registry.register(Families(self._families, former_names=former_names))

    def decided(self, decision: Decision, routed: RoutedRequest | None, seconds: float) -> OpenRequest | None:
        """Count a decision that was made `seconds` after the request's body ended. The result counts what follows."""
        if routed is not None:
            self.answered(200, seconds)
            self.scheduling_seconds.note(decision.seconds)
            for skipped in decision.skipped_stages.items():
                self.skipped_stages[skipped] = self.skipped_stages.get(skipped, 0) + 1
        elif isinstance(decision.outcome, Refusal):
            self.answered(decision.outcome.status, seconds)
        return self.requests.decided(decision, routed)

    def refused(self, status: int, seconds: float) -> None:
        """Count a request that was refused without a decision."""
        self.answered(status, seconds)
        self.requests.refused(status)

    def answered(self, status: int, seconds: float) -> None:
        """Count an answer to a proxy; 200 means that the request was routed."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.decision_seconds.note(seconds)
        self._unfolded += 1
        if self._unfolded >= FOLD_EVERY:
            self.fold()

    def served(self, by: str) -> None:
        """Count a response that began, by who serves it: `first choice`, `fallback`, `other` or `unknown`."""
        self.served_by[by] = self.served_by.get(by, 0) + 1

    def response(self, *, readable: bool, observed: bool) -> None:
        """Count a response that ended: whether its tokens could be read, and whether its body was."""
        self.responses[OBSERVED if observed else LEFT_OUT if readable else NOT_APPLICABLE] += 1

    def completed(self, seconds: float) -> None:
        """Count a routed request that ended `seconds` after its first message."""
        self.request_seconds.note(seconds)

    def fold(self) -> None:
        """Count the noted timings."""
        self._unfolded = 0
        for timings in (
            self.decision_seconds,
            self.request_seconds,
            self.scheduling_seconds,
            *self.plugins.seconds.values(),
        ):
            timings.fold()
        self.requests.fold()

    def forget_endpoints(self) -> None:
        """Drop the counts of endpoints that have gone, some at a time. Called from time to time."""
        layout, requests = self._view.layout, self.requests
        if layout is not self._layout:
            self._layout = layout
            requests.picks = {id: count for id, count in requests.picks.items() if id in layout.index}
            self._unforgotten = len(requests.scheduled)
        if self._unforgotten:
            self._unforgotten = requests.forget_endpoints(layout.index, self._unforgotten)

    def _families(self, names: Names) -> Iterator[Metric]:
        """The series of the Go original."""
        yield from request_families(self.requests, names)
        yield from pool_families(self._view, self._clock(), names)
        yield from scheduler_families(self.requests, self.scheduling_seconds, self.plugins.seconds, self._view, names)

    def collect(self) -> Iterator[Metric]:
        """Pointsman's own series."""
        yield from self._own_requests()
        yield from self._endpoints()
        view, layout = self._view, self._view.layout
        own = sum(requests for requests, _ in view.in_flight.own().values())
        for name, text, value in (
            ("own_inflight_requests", "Requests in flight that were routed by this picker", own),
            ("peers", "Other pickers whose load is known", len(list(view.in_flight.peers()))),
            ("prefix_blocks", "Prompt blocks in the prefix index", len(view.prefixes)),
            ("observe_responses_ratio", "The setting --observe-responses", self.observe_responses),
            ("endpoints", "Endpoints in the view", len(layout)),
            (
                "attribute_values_left_out",
                "Lists and other values that aren't numbers, for which --max-attribute-bytes leaves no room",
                sum(view.columns.left_out.values()),
            ),
            ("draining_endpoints", "Endpoints that are draining: they get no new requests", layout.draining.sum()),
            (
                "draining_requests",
                "Requests in flight at draining endpoints, of all pickers",
                view.in_flight.requests[layout.draining].sum(),
            ),
            (
                "slow_start_endpoints",
                "Endpoints that don't get their full share of the load yet (--slow-start)",
                view.slow_start.count(self._clock()),
            ),
        ):
            yield from family(GaugeMetricFamily, f"pointsman_picker_{name}", text, (), [((), float(value))])
        frames = [((), view.columns.frames)]
        yield from family(CounterMetricFamily, "pointsman_picker_frames", "Attribute frames received", (), frames)

    def _own_requests(self) -> Iterator[Metric]:
        responses = (
            "Responses by observation of their body, which gives first token and token counts: "
            "observed, left_out (readable, but not observed), not_applicable (errors and unreadable responses)"
        )
        served = "Routed requests by serving endpoint: first choice, fallback, other, unknown"
        counts: tuple[tuple[str, str, str, Mapping[Any, int]], ...] = (
            ("decisions", "Requests by outcome: 200 is routed", "status", self.statuses),
            ("served", served, "by", self.served_by),
            ("responses", responses, "observation", self.responses),
        )
        for name, text, label, counted in counts:
            by_label = [((str(value),), count) for value, count in counted.items()]
            yield from family(CounterMetricFamily, f"pointsman_picker_{name}", text, (label,), by_label)
        skipped = "Routed requests that had to do without a stage, such as prefill: no endpoint, or down"
        yield from family(
            CounterMetricFamily,
            "pointsman_picker_skipped_stages",
            skipped,
            ("stage", "reason"),
            list(self.skipped_stages.items()),
        )
        decision = "Time from the end of a request's body to its answer"
        request = "Time from a request's headers to the end of its response"
        plugin = "Duration of a plugin's call"
        timings: tuple[tuple[str, str, tuple[str, ...], Samples], ...] = (
            ("decision", decision, (), [((), self.decision_seconds)]),
            ("request", request, (), [((), self.request_seconds)]),
            ("plugin", plugin, PLUGIN_LABELS, list(self.plugins.seconds.items())),
        )
        for name, text, labels, samples in timings:
            yield from family(HistogramMetricFamily, f"pointsman_picker_{name}_seconds", text, labels, samples)

    def _endpoints(self) -> Iterator[Metric]:
        view, now, picks = self._view, self._clock(), self.requests.picks
        ids = [endpoint.id for endpoint in view.layout.endpoints]  # first: it brings the columns up to date
        in_flight, newest, unhealthy = view.in_flight, view.columns.newest(), view.health.unhealthy
        for kind, name, text, values in (
            (GaugeMetricFamily, "inflight_requests", "Requests in flight, of all pickers", in_flight.requests.tolist()),
            (GaugeMetricFamily, "inflight_tokens", "Tokens in flight, of all pickers", in_flight.tokens.tolist()),
            (
                GaugeMetricFamily,
                "attribute_age_seconds",
                "Age of the newest attribute; infinite if there is none",
                (now - newest).tolist(),
            ),
            (
                CounterMetricFamily,
                "picks",
                "How often an endpoint was the first choice",
                [picks.get(id, 0) for id in ids],
            ),
            (
                GaugeMetricFamily,
                "endpoint_healthy",
                "0 while decisions rank an endpoint last because it seems to be down",
                [float(row not in unhealthy) for row in range(len(ids))],
            ),
        ):
            samples = (((id,), value) for id, value in zip(ids, values, strict=True))
            yield from family(kind, f"pointsman_picker_{name}", text, ("endpoint",), samples)

    def __repr__(self) -> str:
        return f"<PickerMetrics {sum(self.statuses.values())} requests>"
