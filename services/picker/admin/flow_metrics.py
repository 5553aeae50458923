"""Metrics of flow control: the Go original's `flow_control_*` series, and the queues of all pickers together."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.families import Families, Names, family
from services.picker.flow_control.admission import FlowAdmission
from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.waiting import OTHER_FLOWS, Outcome, Waiting
from services.picker.state.histogram import Histogram
from services.picker.state.view import View

BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds, as in the Go original."""
NAMED_FLOWS = 100
"""Flows of a band with series of their own: those in which the most requests wait. The others share one."""
_FOLD_EVERY = 512


class FlowMetrics(Collector):
    """Counts how waits end, and shows what waits at the moment."""

    def __init__(
        self,
        registry: CollectorRegistry,
        view: View,
        clock: Callable[[], float] = time.monotonic,
        *,
        former_names: bool = True,
    ) -> None:
        self.flow: FlowAdmission | None = None
        """Set once it is there."""
        self._view, self._clock = view, clock
        registry.register(self)
        registry.register(Families(self._families, former_names=former_names))
        self.waits: dict[tuple[int, Outcome], Histogram] = {}
        """Seconds of waits, by priority and outcome."""
        self._unfolded = 0

    def ended(self, item: Waiting, outcome: Outcome, now: float) -> None:
        """A wait is over; of a request that needn't wait, at once."""
        key = item.priority, outcome
        waits = self.waits.get(key)
        if waits is None:
            waits = self.waits[key] = Histogram(BUCKETS)
        seconds = now - item.enqueued_at
        waits.note(seconds if seconds > 0.0 else 0.0)
        self._unfolded += 1
        if self._unfolded >= _FOLD_EVERY:
            self.fold()

    def fold(self) -> None:
        """Count the noted waits."""
        self._unfolded = 0
        for waits in self.waits.values():
            waits.fold()

    def collect(self) -> Iterator[Metric]:
        """What waits at all pickers together, as this one knows it: what to scale a pool by."""
        if self.flow is None or (controller := self.flow.controller) is None:
            return
        totals = controller.totals(self._clock())
        for name, text, at in (
            ("requests", "Requests that wait for room in the pool, at all pickers", 0),
            ("tokens", "Prompt tokens of the requests that wait, at all pickers", 1),
            ("oldest_seconds", "How long the oldest of them has waited", 2),
        ):
            samples = [((str(priority),), float(total[at])) for priority, total in totals.items()]
            yield from family(GaugeMetricFamily, f"pointsman_picker_queue_{name}", text, ("priority",), samples)

    def _families(self, names: Names) -> Iterator[Metric]:
        """The original's series; none while flow control is off."""
        if self.flow is not None and self.flow.controller is not None:
            self.fold()
            yield from _families(self.waits, self.flow, self.flow.controller, self._view, names)


def _families(
    waits: Mapping[tuple[int, Outcome], Histogram],
    flow: FlowAdmission,
    controller: FlowController,
    view: View,
    names: Names,
) -> Iterator[Metric]:
    pool = view.pool.name if view.pool is not None else ""
    by_key = sorted(((str(priority), outcome.value), histogram) for (priority, outcome), histogram in waits.items())
    yield from names(
        CounterMetricFamily,
        "flow_control_requests",
        "Requests by how their wait for room ended; of those that needn't wait, Dispatched",
        ("priority", "outcome", "inference_pool"),
        [((*key, pool), float(histogram.count)) for key, histogram in by_key],
    )
    yield from names(
        HistogramMetricFamily,
        "flow_control_request_queue_duration_seconds",
        "Time that requests waited, by how it ended",
        ("priority", "outcome", "inference_pool"),
        [((*key, pool), histogram) for key, histogram in by_key],
    )
    queues = list(_queues(controller))
    for name, text, at in (
        ("queue_size", "Requests that wait here", 0),
        ("queue_bytes", "Bytes of the requests that wait here", 1),
    ):
        samples = [((flow_id, priority, pool), float(counts[at])) for flow_id, priority, counts in queues]
        labels = ("fairness_id", "priority", "inference_pool")
        yield from names(GaugeMetricFamily, f"flow_control_{name}", text, labels, samples)
    stages = {**flow.gauge.stages, "effective": flow.gauge.saturation()}
    yield from names(
        GaugeMetricFamily,
        "flow_control_pool_saturation",
        "Saturation of the pool, 1 and more is full: of each stage, and effective, which is the fullest stage's",
        ("inference_pool", "stage"),
        [((pool, stage), value) for stage, value in stages.items()],
    )
    yield from _utilization(controller, pool, names)
    if flow.evictor is not None:
        issued = [((pool,), float(flow.evictor.issued))]
        text = "Running requests that were evicted"
        yield from names(CounterMetricFamily, "flow_control_revocations_issued", text, ("inference_pool",), issued)


def _queues(controller: FlowController) -> Iterator[tuple[str, str, tuple[int, int]]]:
    """(fairness id, priority, (requests, bytes)) of the flows that wait here, the fullest ones by name."""
    for band in controller.bands():
        flows = sorted((flow for flow in band.flows.values() if flow.requests), key=lambda flow: -flow.requests)
        for flow in flows[:NAMED_FLOWS]:
            yield flow.id, str(band.priority), (flow.requests, flow.bytes)
        if rest := flows[NAMED_FLOWS:]:
            sums = sum(flow.requests for flow in rest), sum(flow.bytes for flow in rest)
            yield OTHER_FLOWS, str(band.priority), sums


def _utilization(controller: FlowController, pool: str, names: Names) -> Iterator[Metric]:
    """How full the queues are, as shares of their limits."""
    bands, settings = controller.bands(), controller.settings
    for what, limit in (("requests", "max_requests"), ("bytes", "max_bytes")):
        shares = [((str(band.priority), pool), getattr(band, what) / getattr(band.settings, limit)) for band in bands]
        text = f"Share of a band's limit of {what} that is used"
        labels = ("priority", "inference_pool")
        yield from names(GaugeMetricFamily, f"flow_control_capacity_utilization_{what}", text, labels, shares)
        most = getattr(settings, limit)
        total = [((pool,), getattr(controller, what) / most)] if most else []
        text = f"Share of the limit of {what} of all bands that is used"
        name = f"flow_control_global_capacity_utilization_{what}"
        yield from names(GaugeMetricFamily, name, text, ("inference_pool",), total)
