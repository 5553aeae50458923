"""The last check before the bus: facts that no message can hold are left out, each with the reason.

Files are checked when they are read. What fails here is too large for the connected server, or comes from a cluster,
which nobody checks in place.
"""

from collections.abc import Callable

import structlog

from shared.bus.publishable import fault
from shared.model import Fact

log = structlog.get_logger(__name__)


class Unpublishable:
    """Facts that can't be published. `limit` gives the largest size in bytes that NATS takes; readers take facts of up
    to `max_entries` entries."""

    def __init__(self, limit: Callable[[], int], max_entries: int) -> None:
        self._limit = limit
        self._max_entries = max_entries
        self._checked = limit()
        self.reasons: dict[str, str] = {}
        """By key."""
        self.revision = 0
        """Changes whenever the reasons do."""

    def limit_changed(self) -> bool:
        """Whether the limit has changed since the last call. Then all facts have to be checked again."""
        before, self._checked = self._checked, self._limit()
        return before != self._checked

    def check(self, key: str, fact: Fact | None) -> Fact | None:
        """The fact, or None if it can't be published."""
        reason = None if fact is None else fault(fact, self._checked, self._max_entries)
        if reason != self.reasons.get(key):
            self.revision += 1
        if reason is None:
            self.reasons.pop(key, None)
            return fact
        if key not in self.reasons:
            log.error("fact.unpublishable", key=key, reason=reason)
        self.reasons[key] = reason
        return None

    def __repr__(self) -> str:
        return f"<Unpublishable {len(self.reasons)} facts>"
