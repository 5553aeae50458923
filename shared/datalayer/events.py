"""What happened to something, and the count of the events that were sent."""

from collections import Counter
from enum import StrEnum

from shared.plugin_failures import PluginFailures


class Change(StrEnum):
    """What happened."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class EventCounts:
    """Counts events of a process, over all the configurations that it runs one after the other."""

    def __init__(self, failures: PluginFailures) -> None:
        self.events: Counter[tuple[str, Change]] = Counter()
        """By source and kind of event."""
        self.failures = failures
        """Of the extractors that hear of the events."""

    def sent(self, source: str, change: Change) -> None:
        """A source told its extractors of something."""
        self.events[source, change] += 1

    def __repr__(self) -> str:
        return f"<EventCounts {self.events.total()} events, {self.failures!r}>"
