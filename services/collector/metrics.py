"""The collector's own Prometheus metrics, read from its state when somebody asks: a scrape of a model server costs no
label look-ups, and an endpoint that is gone leaves no series behind."""

from collections.abc import Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.collector.http import Failure
from services.collector.scraper import Scraper
from shared.bus.frame_sender import FrameSender


class Reloads(Protocol):
    """How often a configuration was taken or refused."""

    taken: int
    refused: int


class CollectorMetrics(Collector):
    """What `/metrics` shows beside what every process has."""

    def __init__(self, scraper: Scraper, sender: FrameSender, reloads: Reloads) -> None:
        self._scraper = scraper
        self._sender = sender
        self._reloads = reloads

    def collect(self) -> Iterator[Metric]:
        yield from self._totals()
        yield from self._endpoints()

    def describe(self) -> list[Metric]:
        """The registry asks for names at registration; there is nothing to collect then."""
        return []

    def _totals(self) -> Iterator[Metric]:
        scraper, sender = self._scraper, self._sender
        yield GaugeMetricFamily(
            "pointsman_collector_assigned_endpoints", "Endpoints that this collector scrapes", len(scraper.watched)
        )
        yield CounterMetricFamily("pointsman_collector_pages", "Scrapes that brought a page", scraper.pages)
        failures = CounterMetricFamily(
            "pointsman_collector_scrape_failures", "Scrapes that brought none, by kind", labels=["kind"]
        )
        for kind in Failure:
            failures.add_metric([kind.value], scraper.failures[kind])
        yield failures
        yield CounterMetricFamily("pointsman_collector_frames", "Frames that NATS was given", sender.frames)
        yield CounterMetricFamily(
            "pointsman_collector_frame_bytes", "Bytes of numbers in the frames that NATS was given", sender.bytes
        )
        yield CounterMetricFamily(
            "pointsman_collector_frames_dropped", "Frames that weren't sent for want of a connection", sender.dropped
        )
        yield CounterMetricFamily(
            "pointsman_collector_endpoints_oversized",
            "Endpoints left out of a frame because their attributes alone don't fit into a message",
            sender.oversized,
        )
        reloads = CounterMetricFamily(
            "pointsman_collector_config_reloads",
            "Configurations from the bus, by what became of them",
            labels=["result"],
        )
        reloads.add_metric(["taken"], self._reloads.taken)
        reloads.add_metric(["refused"], self._reloads.refused)
        yield reloads

    def _endpoints(self) -> Iterator[Metric]:
        labels = ["endpoint", "source"]
        up = GaugeMetricFamily("pointsman_collector_up", "1 if the last scrape brought a page, else 0", labels=labels)
        duration = GaugeMetricFamily(
            "pointsman_collector_scrape_duration_seconds", "From the request to the end of the last page", labels=labels
        )
        size = GaugeMetricFamily("pointsman_collector_page_bytes", "Size of the last page", labels=labels)
        failures = CounterMetricFamily(
            "pointsman_collector_endpoint_failures", "Scrapes without a page, by kind", labels=[*labels, "kind"]
        )
        for watched in self._scraper.watched.values():
            for target in watched.targets:
                values = [watched.endpoint.id, target.source.name]
                up.add_metric(values, target.up)
                if target.pages:
                    duration.add_metric(values, target.duration)
                    size.add_metric(values, target.page_bytes)
                for kind, count in target.failures.items():
                    failures.add_metric([*values, kind.value], count)
        yield from (up, duration, size, failures)
