"""The watcher's own metrics."""

from collections import Counter as Count
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.model import Configuration, Endpoint, Fact, Model, ModelRewrite, Objective, Pool

KINDS: dict[type, str] = {
    Endpoint: "endpoint",
    Pool: "pool",
    Objective: "objective",
    ModelRewrite: "rewrite",
    Model: "model",
    Configuration: "config",
}
"""Kinds of facts, as keys on the bus spell them."""


class _Total(Collector):
    """A counter whose value is asked for at each scrape; prometheus-client has that for gauges only."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name = name
        self._text = text
        self._value = value

    def collect(self) -> Iterable[Metric]:
        return [CounterMetricFamily(self._name, self._text, value=self._value())]


class WatcherMetrics:
    """Gauges that follow something are given a function, so that they can't lag behind it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._facts = Gauge("pointsman_watcher_facts", "Facts that hold, by kind", ["kind"], registry=registry)
        self.rejections = Counter(
            "pointsman_watcher_rejections", "Times that a file or directory became bad", registry=registry
        )
        self.changes = Counter("pointsman_watcher_changes", "Changes of the set of facts that holds", registry=registry)
        self.lookup_failures = Counter(
            "pointsman_watcher_lookup_failures", "Look-ups of host names that failed", registry=registry
        )
        self.eds_writes = Counter(
            "pointsman_watcher_eds_writes", "Times that the EDS file was replaced", registry=registry
        )
        self.eds_failures = Counter(
            "pointsman_watcher_eds_write_failures", "Times that the EDS file could not be replaced", registry=registry
        )
        self.conditions = Counter(
            "pointsman_watcher_conditions_written",
            "Conditions of Kubernetes resources that were written",
            registry=registry,
        )
        self.condition_conflicts = Counter(
            "pointsman_watcher_condition_conflicts", "Conditions that another controller owns", registry=registry
        )
        self.events = Counter(
            "pointsman_watcher_events_created", "Kubernetes Events that were created", registry=registry
        )
        self.report_failures = Counter(
            "pointsman_watcher_report_failures", "Conditions and Events that could not be written", registry=registry
        )
        self.show([])

    def follow_total(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A counter that somebody else keeps; `name` without `_total`."""
        self._registry.register(_Total(name, text, value))

    def follow(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge whose value is asked for at each scrape."""
        Gauge(name, text, registry=self._registry).set_function(value)

    def show(self, facts: Iterable[Fact]) -> None:
        """The facts that hold now."""
        counted = Count(KINDS[type(fact)] for fact in facts)
        for kind in KINDS.values():
            self._facts.labels(kind).set(counted[kind])
