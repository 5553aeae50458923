"""What happened to something, and the count of the events that were sent."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from enum import StrEnum
from typing import Any

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.datalayer.wiring import SourceExtractors
from shared.plugin_failures import PluginFailures


class Change(StrEnum):
    """What happened."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class EventCounts(Collector):
    """Counts a process's events, as a metric too. A source's counts end with the last configuration that has it."""

    def __init__(self, failures: PluginFailures) -> None:
        self.events: Counter[tuple[str, Change]] = Counter()
        """By source and kind of event."""
        self.failures = failures
        """Of the extractors that get the events."""
        self._sources: dict[Hashable, frozenset[str]] = {}

    def follow(self, owner: Hashable, feeds: Iterable[SourceExtractors[Any, Any]]) -> None:
        """These are the sources and extractors of the configuration that `owner` runs. The counts of others end, unless
        another owner has them."""
        feeds = tuple(feeds)
        self._sources[owner] = frozenset(feed.source.name for feed in feeds)
        sources = frozenset[str]().union(*self._sources.values())
        for key in [key for key in self.events if key[0] not in sources]:
            del self.events[key]
        self.failures.follow(owner, (extractor.name for feed in feeds for extractor in feed.extractors))

    def sent(self, source: str, change: Change) -> None:
        """A source passed an event to its extractors."""
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
