"""Metrics of flow control: the Go original's `flow_control_*` series, and the queues of all pickers together."""

import time
from collections.abc import Callable, Iterator
from heapq import nlargest
from operator import itemgetter

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.picker.admin.families import Families, Kind, Names, Samples, family
from services.picker.flow_control.admission import FlowAdmission
from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.waiting import DISPATCHED, OTHER_FLOWS, Outcome, Waiting
from services.picker.state.histogram import Histogram
from services.picker.state.view import View

BUCKETS = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds, as in the Go original."""
NAMED_FLOWS = 100
"""Flows of a band with series of their own: those in which the most requests wait. The others share one."""
MAX_NAMES, REMEMBERED = 1000, 3600.0
"""Flows that have a series of their own within so many seconds: clients invent ids, and series are kept for long."""
_FOLD_EVERY = 512
_POOL = ("inference_pool",)
_BAND = ("priority", *_POOL)
_OUTCOME = ("priority", "outcome", *_POOL)
_FLOW = ("fairness_id", *_BAND)
_FAMILIES: tuple[tuple[Kind, str, tuple[str, ...], str], ...] = (
    (
        CounterMetricFamily,
        "requests",
        _OUTCOME,
        "Requests by how their wait for room ended; of those that needn't wait, Dispatched",
    ),
    (HistogramMetricFamily, "request_queue_duration_seconds", _OUTCOME, "Time that requests waited, by how it ended"),
    (
        GaugeMetricFamily,
        "queue_size",
        _FLOW,
        "Requests that wait here; the flows beyond the fullest 100, and beyond 1 000 within an hour, share one series",
    ),
    (GaugeMetricFamily, "queue_bytes", _FLOW, "Bytes of the requests that wait here"),
    (
        GaugeMetricFamily,
        "pool_saturation",
        (*_POOL, "stage"),
        "Saturation of the pool, 1 and more is full: of each stage, and effective, which is the fullest stage's",
    ),
    (GaugeMetricFamily, "capacity_utilization_requests", _BAND, "Share of a band's limit of requests that is used"),
    (GaugeMetricFamily, "capacity_utilization_bytes", _BAND, "Share of a band's limit of bytes that is used"),
    (
        GaugeMetricFamily,
        "global_capacity_utilization_requests",
        _POOL,
        "Used share of the limit of all requests",
    ),
    (GaugeMetricFamily, "global_capacity_utilization_bytes", _POOL, "Used share of the limit of all bytes"),
    (CounterMetricFamily, "revocations_issued", _POOL, "Running requests that were evicted"),
)


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
        self._names: dict[str, float] = {}
        """Flows that had a series of their own, and when, the longest ago first."""

    def ended(self, item: Waiting, outcome: Outcome, now: float) -> None:
        """A wait is over."""
        seconds = now - item.enqueued_at
        self._waits_of(item.priority, outcome).note(seconds if seconds > 0.0 else 0.0)
        self._unfolded += 1
        if self._unfolded >= _FOLD_EVERY:
            self.fold()

    def _waits_of(self, priority: int, outcome: Outcome) -> Histogram:
        waits = self.waits.get((priority, outcome))
        if waits is None:
            waits = self.waits[priority, outcome] = Histogram(BUCKETS)
        return waits

    def fold(self) -> None:
        """Count the noted waits, and the requests that needn't wait."""
        self._unfolded = 0
        if self.flow is not None:
            for priority, requests in self.flow.passed.items():
                self._waits_of(priority, DISPATCHED).observe(0.0, requests)
            self.flow.passed.clear()
        for waits in self.waits.values():
            waits.fold()

    def collect(self) -> Iterator[Metric]:
        """What waits at all pickers together, as this one knows it: the signal to scale a pool by."""
        controller = None if self.flow is None else self.flow.controller
        totals = {} if controller is None else controller.totals(self._clock())
        for name, text, at in (
            ("requests", "Requests that wait for room in the pool, at all pickers", 0),
            ("tokens", "Prompt tokens of the requests that wait, at all pickers", 1),
            ("oldest_seconds", "How long the oldest of them has waited", 2),
        ):
            samples = [((str(priority),), float(total[at])) for priority, total in totals.items()]
            yield from family(GaugeMetricFamily, f"pointsman_picker_queue_{name}", text, ("priority",), samples)

    def _families(self, names: Names) -> Iterator[Metric]:
        """The original's series; without samples while flow control is off."""
        samples: dict[str, Samples] = {}
        if self.flow is not None and self.flow.controller is not None:
            pool = self._view.pool.name if self._view.pool is not None else ""
            samples = self._samples(self.flow, self.flow.controller, pool)
        for kind, name, labels, text in _FAMILIES:
            yield from names(kind, f"flow_control_{name}", text, labels, samples.get(name, ()))

    def _samples(self, flow: FlowAdmission, controller: FlowController, pool: str) -> dict[str, Samples]:
        self.fold()
        named = (((str(priority), outcome.value), waited) for (priority, outcome), waited in self.waits.items())
        waits = sorted(named, key=itemgetter(0))
        gauge = flow.gauge.at(self._clock())
        stages = {**gauge.stages, "effective": gauge.saturation}
        samples: dict[str, Samples] = {
            "requests": [((*key, pool), float(waited.count)) for key, waited in waits],
            "request_queue_duration_seconds": [((*key, pool), waited) for key, waited in waits],
            "pool_saturation": [((pool, stage), value) for stage, value in stages.items()],
        }
        queues = list(self._queues(controller, self._clock()))
        samples["queue_size"] = [((*flow, pool), float(requests)) for *flow, requests, _ in queues]
        samples["queue_bytes"] = [((*flow, pool), float(size)) for *flow, _, size in queues]
        bands, settings = controller.bands(), controller.settings
        for what in ("requests", "bytes"):
            used, most = getattr(controller, what), getattr(settings, f"max_{what}")
            samples[f"capacity_utilization_{what}"] = [
                ((str(band.priority), pool), getattr(band, what) / getattr(band.settings, f"max_{what}"))
                for band in bands
            ]
            samples[f"global_capacity_utilization_{what}"] = [((pool,), used / most)] if most else []
        if flow.evictor is not None:
            samples["revocations_issued"] = [((pool,), float(flow.evictor.issued))]
        return samples

    def _queues(self, controller: FlowController, now: float) -> Iterator[tuple[str, str, int, int]]:
        """(fairness id, priority, requests, bytes) of the flows that wait here, the fullest ones by name."""
        weights = controller.settings.weights
        for band in controller.bands():
            flows = [flow for flow in band.flows.values() if flow.requests]
            fullest = nlargest(
                NAMED_FLOWS, (flow for flow in flows if flow.id != OTHER_FLOWS), key=lambda flow: flow.requests
            )
            named = [flow for flow in fullest if flow.id in weights or self._may_name(flow.id, now)]
            for flow in named:
                yield flow.id, str(band.priority), flow.requests, flow.bytes
            if len(named) < len(flows):
                requests = band.requests - sum(flow.requests for flow in named)
                yield OTHER_FLOWS, str(band.priority), requests, band.bytes - sum(flow.bytes for flow in named)

    def _may_name(self, flow: str, now: float) -> bool:
        names = self._names
        if flow not in names and len(names) >= MAX_NAMES:
            oldest = next(iter(names))
            if now - names[oldest] < REMEMBERED:
                return False
            del names[oldest]
        names.pop(flow, None)
        names[flow] = now
        return True
