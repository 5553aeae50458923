"""The collector's own Prometheus metrics, computed from its state when they are scraped.

So a scrape of a model server costs no label look-ups, and removed endpoints leave no series behind.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

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

    def describe(self) -> list[Metric]:
        """Empty: the registry needs no names in advance."""
        return []

    def _totals(self) -> Iterator[Metric]:
        scraper, sender = self._scraper, self._sender
        yield GaugeMetricFamily(
            "pointsman_collector_assigned_endpoints", "Endpoints assigned to this collector", len(scraper.endpoints)
        )
        yield CounterMetricFamily("pointsman_collector_pages", "Scrapes that returned a page", scraper.pages)
        failures = CounterMetricFamily(
            "pointsman_collector_scrape_failures", "Scrapes without a page, by kind", labels=["kind"]
        )
        for kind in Failure:
            failures.add_metric([kind.value], scraper.failures[kind])
        yield failures
        yield CounterMetricFamily("pointsman_collector_frames", "Frames sent to NATS", sender.frames)
        yield CounterMetricFamily(
            "pointsman_collector_frame_bytes", "Bytes of numbers in the frames sent to NATS", sender.bytes
        )
        yield CounterMetricFamily(
            "pointsman_collector_frames_dropped", "Frames dropped because there was no connection", sender.dropped
        )
        yield CounterMetricFamily(
            "pointsman_collector_endpoints_oversized",
            "Endpoints left out of a frame because their attributes don't fit into a message",
            sender.oversized,
        )

    def _endpoints(self) -> Iterator[Metric]:
        now = self._clock()
        labels = ["endpoint", "source"]
        up = GaugeMetricFamily("pointsman_collector_up", "1 if the last scrape returned a page, else 0", labels=labels)
        duration = GaugeMetricFamily(
            "pointsman_collector_scrape_duration_seconds",
            "Time from the request to the end of the last page",
            labels=labels,
        )
        size = GaugeMetricFamily("pointsman_collector_page_bytes", "Size of the last page", labels=labels)
        page_age = GaugeMetricFamily(
            "pointsman_collector_page_age_seconds", "Time since the request for the last page", labels=labels
        )
        failures = CounterMetricFamily(
            "pointsman_collector_endpoint_failures", "Scrapes without a page, by kind", labels=[*labels, "kind"]
        )
        failure_age = GaugeMetricFamily(
            "pointsman_collector_last_failure_age_seconds", "Time since the last scrape without a page", labels=labels
        )
        engine = GaugeMetricFamily(
            "pointsman_collector_engine",
            "1 for the engine whose metric names are used for an endpoint, with how it was chosen",
            labels=[*labels, "engine", "chosen_by"],
        )
        value_age = GaugeMetricFamily(
            "pointsman_collector_oldest_value_age_seconds",
            "Age of the endpoint's oldest attribute",
            labels=["endpoint"],
        )
        reachable = GaugeMetricFamily(
            "pointsman_collector_endpoint_reachable",
            "0 after --failure-threshold refused or timed out scrapes of the model server, 1 after a page",
            labels=["endpoint"],
        )
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
    family = GaugeMetricFamily(
        "pointsman_collector_attributes",
        "Endpoints by the outcome of an attribute on their last page",
        labels=["source", "attribute", "outcome"],
    )
    for source, attribute in sorted({(source, attribute) for source, attribute, _ in outcomes}):
        for outcome in Outcome:
            family.add_metric([source, attribute, outcome.value], outcomes.get((source, attribute, outcome), 0))
    return family
