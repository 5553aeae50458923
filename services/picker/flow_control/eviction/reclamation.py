"""When the next eviction may be decided: after every earlier one is over, and shows in the saturation.

An evicted request's saturation is on its way back until the stream has ended and the metrics have had time to show it.
Another decision before that would evict twice for one need.
"""

from math import inf

CONFIRMATION_TIMEOUT = 10.0
"""Seconds after which an eviction whose stream hasn't ended counts as over."""
PROMPT_GRACE = 0.01
"""Seconds after the end of a stream until a detector that counts requests in flight shows it."""
SCRAPE_GRACE = 0.25
"""Seconds beyond the scrape interval and the staleness limit until a detector that reads metrics does."""


class Reclamation:
    """The evictions under way."""

    def __init__(self, grace: float) -> None:
        """`grace` is the time from the end of a stream until the saturation shows it, in seconds."""
        self.grace = grace
        self._outstanding: dict[str, tuple[float, float]] = {}
        """By request: its saturation, and when its eviction counts as over."""
        self._cooling: dict[str, tuple[float, float]] = {}
        """By request: its saturation, and when that shows."""

    def open(self, now: float) -> bool:
        """Whether another eviction may be decided."""
        for request, (_, until) in list(self._outstanding.items()):
            if now >= until:
                self.ended(request, now)
        self._cooling = {request: entry for request, entry in self._cooling.items() if now < entry[1]}
        return not (self._outstanding or self._cooling)

    @property
    def pending(self) -> float:
        """The saturation that evictions under way will still release."""
        return sum(saturation for part in (self._outstanding, self._cooling) for saturation, _ in part.values())

    def evicted(self, request: str, saturation: float, now: float) -> None:
        """A request that makes up so much of the saturation is being evicted."""
        self._outstanding[request] = saturation, now + CONFIRMATION_TIMEOUT

    def ended(self, request: str, now: float) -> None:
        """The request's stream has ended. Ignored for a request that wasn't evicted."""
        known = self._outstanding.pop(request, None)
        if known is not None:
            self._cooling[request] = known[0], now + self.grace

    def next_look(self) -> float:
        """When another eviction may be possible though nothing has happened; infinite for never."""
        if not (self._outstanding or self._cooling):
            return inf
        return max(until for part in (self._outstanding, self._cooling) for _, until in part.values())

    def __repr__(self) -> str:
        return f"<Reclamation {len(self._outstanding)} outstanding, {len(self._cooling)} cooling>"
