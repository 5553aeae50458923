"""Events by name: their number as a metric, the last of each for `/readyz`, and whether a line in the log is due."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

INTERVAL = 60.0
"""Seconds between two lines in the log about one name, and for which `/readyz` mentions the last event."""


class Recent:
    """The events of one name."""

    __slots__ = ("at", "count", "log_at", "text", "unlogged")

    def __init__(self) -> None:
        self.count = self.unlogged = 0
        self.at = self.log_at = float("-inf")
        self.text = ""
        """What the last one was."""


class RecentEvents(Collector):
    """Counts events by name, as a counter with one `label`. `clock` gives monotonic seconds. Not thread-safe."""

    def __init__(self, clock: Callable[[], float], metric: str, documentation: str, label: str) -> None:
        self._clock = clock
        self._metric = metric, documentation, label
        self._events: dict[str, Recent] = {}

    def count(self, name: str, text: str, number: int = 1) -> int:
        """Count events. Returns how many there were since the last line in the log if another one is due, or else 0."""
        events, now = self._events.setdefault(name, Recent()), self._clock()
        events.count += number
        events.unlogged += number
        events.at, events.text = now, text
        if now < events.log_at:
            return 0
        unlogged, events.unlogged, events.log_at = events.unlogged, 0, now + INTERVAL
        return unlogged

    def recent(self) -> list[tuple[str, Recent, float]]:
        """(name, its events, seconds since the last one) of the names with an event within the last minute."""
        now = self._clock()
        return [(name, events, now - events.at) for name, events in self._events.items() if now - events.at < INTERVAL]

    def counts(self) -> dict[str, int]:
        """Events by name."""
        return {name: events.count for name, events in self._events.items()}

    def collect(self) -> Iterator[Metric]:
        metric, documentation, label = self._metric
        family = CounterMetricFamily(metric, documentation, labels=[label])
        for name, count in self.counts().items():
            family.add_metric([name], count)
        yield family

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.counts()}>"
