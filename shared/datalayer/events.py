"""What happened to something, and the count of the events that were sent."""

from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.plugin_failures import PluginFailures


class Change(StrEnum):
    """What happened."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class EventCounts(Collector):
    """Counts the events of a process, over all the configurations that it runs one after the other; as a metric too."""

    def __init__(self, failures: PluginFailures) -> None:
        self.events: Counter[tuple[str, Change]] = Counter()
        """By source and kind of event."""
        self.failures = failures
        """Of the extractors that hear of the events."""

    def sent(self, source: str, change: Change) -> None:
        """A source told its extractors of something."""
        self.events[source, change] += 1

    def collect(self) -> Iterator[Metric]:
        events = CounterMetricFamily(
            "pointsman_datalayer_events",
            "Events that sources passed to their extractors: added, updated or deleted",
            labels=["source", "event"],
        )
        for (source, change), count in self.events.items():
            events.add_metric([source, change.value], count)
        yield events

    def __repr__(self) -> str:
        return f"<EventCounts {self.events.total()} events, {self.failures!r}>"
