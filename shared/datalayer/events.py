"""What happened to something, and the count of what happened: events that were sent, extractors that failed."""

from collections import Counter
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)

REASONS = 20
"""Different reasons that are logged of one extractor; beyond them failures are only counted."""


class Change(StrEnum):
    """What happened."""

    ADDED = "added"
    UPDATED = "updated"
    DELETED = "deleted"


class Tally:
    """Counts events and failures of a process, over all the configurations that it runs one after the other."""

    def __init__(self) -> None:
        self.events: Counter[tuple[str, Change]] = Counter()
        """By source and kind of event."""
        self.failures: Counter[str] = Counter()
        """Calls that an extractor failed, by its name."""
        self._reasons: dict[str, set[str]] = {}

    def sent(self, source: str, change: Change) -> None:
        """A source told its extractors of something."""
        self.events[source, change] += 1

    def follow(self, extractor: str) -> None:
        """Have a count of the extractor's failures from the start: a series that is there at 0 can be alerted on."""
        self.failures.setdefault(extractor, 0)

    def failed(self, extractor: str, about: str, error: Exception) -> None:
        """An extractor raised `error` on something; logged once for each reason, not for each of a thousand endpoints.

        To be called where the exception is handled: its traceback is logged too.
        """
        self._note(extractor, about, f"{type(error).__name__}: {error}", trace=True)

    def refused(self, extractor: str, about: str, reason: str) -> None:
        """What an extractor said of something can't be used."""
        self._note(extractor, about, reason, trace=False)

    def _note(self, extractor: str, about: str, reason: str, *, trace: bool) -> None:
        self.failures[extractor] += 1
        known = self._reasons.setdefault(extractor, set())
        if reason not in known and len(known) < REASONS:
            known.add(reason)
            log.error("extractor.failed", extractor=extractor, about=about, reason=reason, exc_info=trace)

    def __repr__(self) -> str:
        return f"<Tally {self.events.total()} events, {self.failures.total()} failures>"
