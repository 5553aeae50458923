"""The collector's own Prometheus metrics, computed from its state when they are scraped.

So a scrape of a model server costs no label look-ups, and removed endpoints leave no series behind.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.collector.http.client import Failure
from services.collector.page.selection import Outcome
from services.collector.scraper import Scraper
from shared.attributes import REACHABLE
from shared.bus.frame_sender import FrameSender


class CollectorMetrics(Collector):
    """The metrics of `/metrics` that only collectors have."""

    def __init__(
        self,
        scraper: Scraper,
        sender: FrameSender,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` is the scraper's."""
        self._scraper = scraper
        self._sender = sender
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        yield from self._totals()
        yield from self._endpoints()

    def _totals(self) -> Iterator[Metric]:
        scraper, sender = self._scraper, self._sender
        yield _gauge("assigned_endpoints", "Endpoints assigned to this collector", value=len(scraper.endpoints))
        yield _counter("pages", "Scrapes that returned a page", value=scraper.pages)
        failures = _counter("scrape_failures", "Scrapes without a page, by kind", labels=["kind"])
        for kind in Failure:
            failures.add_metric([kind.value], scraper.failures[kind])
        yield failures
        yield _counter("frames", "Frames sent to NATS", value=sender.frames)
        yield _counter("frame_bytes", "Bytes of numbers in the frames sent to NATS", value=sender.bytes)
        text = "Frames dropped because there was no connection"
        yield _counter("frames_dropped", text, value=sender.dropped)
        text = "Endpoints left out of a frame because their attributes don't fit into a message"
        yield _counter("endpoints_oversized", text, value=sender.oversized)

    def _endpoints(self) -> Iterator[Metric]:
        now = self._clock()
        labels = ["endpoint", "source"]
        up = _gauge("up", "1 if the last scrape returned a page, else 0", labels=labels)
        text = "Time from the request to the end of the last page"
        duration = _gauge("scrape_duration_seconds", text, labels=labels)
        size = _gauge("page_bytes", "Size of the last page", labels=labels)
        page_age = _gauge("page_age_seconds", "Time since the request for the last page", labels=labels)
        failures = _counter("endpoint_failures", "Scrapes without a page, by kind", labels=[*labels, "kind"])
        failure_age = _gauge("last_failure_age_seconds", "Time since the last scrape without a page", labels=labels)
        text = "1 for the engine whose metric names are used for an endpoint, with how it was chosen"
        engine = _gauge("engine", text, labels=[*labels, "engine", "chosen_by"])
        value_age = _gauge("oldest_value_age_seconds", "Age of the endpoint's oldest attribute", labels=["endpoint"])
        text = "0 after --failure-threshold refused or timed out scrapes of the model server, 1 after a page"
        reachable = _gauge("endpoint_reachable", text, labels=["endpoint"])
        outcomes: Counter[tuple[str, str, Outcome]] = Counter()
        for scrape in self._scraper.endpoints.values():
            id = scrape.endpoint.id
            samples = scrape.attributes.items()
            if samples:
                value_age.add_metric([id], max(sample.age(now) for _, sample in samples))
            if (answers := scrape.attributes.get(REACHABLE)) is not None:
                reachable.add_metric([id], answers)
            for target in scrape.targets:
                values = [id, target.source.name]
                up.add_metric(values, target.up)
                if target.page_at is not None:
                    duration.add_metric(values, target.duration)
                    size.add_metric(values, target.page_bytes)
                    page_age.add_metric(values, now - target.page_at)
                for kind, count in target.failures.items():
                    failures.add_metric([*values, kind.value], count)
                if target.error_at is not None:
                    failure_age.add_metric(values, now - target.error_at)
                for described in target.described():
                    if "engine" in described:
                        engine.add_metric([*values, described["engine"], described.get("engine_chosen_by", "")], 1)
                for finding in target.findings():
                    outcomes[target.source.name, finding.attribute, finding.outcome] += 1
        yield from (up, duration, size, page_age, failures, failure_age, engine, value_age, reachable)
        yield _attributes(outcomes)


def _attributes(outcomes: Mapping[tuple[str, str, Outcome], int]) -> Metric:
    """Sums over the endpoints, so the number of series depends only on the configuration."""
    text = "Endpoints by the outcome of an attribute on their last page"
    family = _gauge("attributes", text, labels=["source", "attribute", "outcome"])
    for source, attribute in sorted({(source, attribute) for source, attribute, _ in outcomes}):
        for outcome in Outcome:
            family.add_metric([source, attribute, outcome.value], outcomes.get((source, attribute, outcome), 0))
    return family


def _gauge(name: str, text: str, **of: Any) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"pointsman_collector_{name}", text, **of)


def _counter(name: str, text: str, **of: Any) -> CounterMetricFamily:
    return CounterMetricFamily(f"pointsman_collector_{name}", text, **of)
