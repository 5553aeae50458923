"""The watcher's own metrics."""

from collections import Counter as Count
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.model import Configuration, Endpoint, Fact, Model, ModelRewrite, Objective, Pool

PREFIX = "pointsman_watcher_"
KINDS: dict[type, str] = {
    Endpoint: "endpoint",
    Pool: "pool",
    Objective: "objective",
    ModelRewrite: "rewrite",
    Model: "model",
    Configuration: "config",
}
"""Kinds of facts, as keys on the bus spell them."""


class _OnScrape(Collector):
    """A metric that is computed at each scrape."""

    def __init__(self, compute: Callable[[], Metric]) -> None:
        self._compute = compute

    def collect(self) -> Iterable[Metric]:
        return [self._compute()]


class WatcherMetrics:
    """Counters of the watcher's parts. `gauge`, `counter` and `count_facts` add metrics that a scrape computes."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(PREFIX + name, text, registry=registry)

        self._registry = registry
        self.rejections = counter("rejections", "Times that a file, directory or resource became invalid")
        self.changes = counter("changes", "Changes of the facts in force")
        self.lookup_failures = counter("lookup_failures", "Failed look-ups of host names")
        self.eds_writes = counter("eds_writes", "Writes of the EDS file")
        self.eds_failures = counter("eds_write_failures", "Failed writes of the EDS file")
        self.conditions = counter("conditions_written", "Conditions of Kubernetes resources written")
        self.condition_conflicts = counter(
            "condition_conflicts", "Conditions not written because another controller owns them"
        )
        self.events = counter("events_created", "Kubernetes Events created")
        self.report_failures = counter("report_failures", "Failed writes of conditions and Events")

    def counter(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._registry.register(_OnScrape(lambda: CounterMetricFamily(PREFIX + name, text, value=value())))

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        Gauge(PREFIX + name, text, registry=self._registry).set_function(value)

    def count_facts(self, facts: Callable[[], Iterable[Fact]]) -> None:
        """Count the facts that are in force, by kind."""

        def compute() -> Metric:
            family = GaugeMetricFamily(PREFIX + "facts", "Facts in force, by kind", labels=["kind"])
            counted = Count(KINDS[type(fact)] for fact in facts())
            for kind in KINDS.values():
                family.add_metric([kind], counted[kind])
            return family

        self._registry.register(_OnScrape(compute))
