"""The event_counts as Prometheus metrics, under the same names in every tier."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.datalayer.events import EventCounts


class DataLayerMetrics(Collector):
    """Reads a event_counts when it is scraped."""

    def __init__(self, event_counts: EventCounts) -> None:
        self._event_counts = event_counts

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "pointsman_datalayer_events",
            "Events that sources passed to their extractors: added, updated or deleted",
            labels=["source", "event"],
        )
        for (source, change), count in self._event_counts.events.items():
            events.add_metric([source, change.value], count)
        yield events

    def __repr__(self) -> str:
        return f"<DataLayerMetrics {self._event_counts!r}>"
