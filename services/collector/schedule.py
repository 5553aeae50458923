"""When each target is scraped next. Pure: the caller passes the time.

Every target has a phase within the interval, from a hash of its name. So scrapes are spread over the interval, and a
collector that takes over an endpoint continues in the same rhythm. A target isn't due while it is being scraped; the
slots that pass meanwhile are skipped. Pauses grow with consecutive failures, up to the back-off limit.
"""

import math
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from xxhash import xxh3_64_intdigest

K = TypeVar("K", bound=Hashable)

FIRST_WITHIN = 0.1
"""Seconds until the first scrape of a new target, at most."""
STALE = 4
"""The part of the queue from which on removed entries leave it."""


def phase(name: str) -> float:
    """A target's phase in its interval, 0 to 1, the same at every collector."""
    return xxh3_64_intdigest(name.encode()) / 2**64


class _Entry(Generic[K]):
    __slots__ = ("due", "failures", "interval", "key", "phase", "removed", "slot")

    def __init__(self, key: K, interval: float, phase: float, due: float) -> None:
        self.key = key
        self.interval = interval
        self.phase = phase
        self.due: float | None = due
        """None while it is being scraped."""
        self.slot = self.slot_after(due) - 1
        self.failures = 0
        self.removed = False
        """Then it has no key: what that holds isn't kept until the entry would have been due."""

    def slot_after(self, moment: float) -> int:
        """The first slot at least one interval after the moment."""
        return math.ceil(moment / self.interval - self.phase) + 1

    def at(self, slot: int) -> float:
        return (slot + self.phase) * self.interval


class Schedule(Generic[K]):
    """Keys that become due periodically. `backoff` is the longest pause after failures, unless the interval is."""

    def __init__(self, backoff: float) -> None:
        self._backoff = backoff
        self._entries: dict[K, _Entry[K]] = {}
        self._queue: list[tuple[float, int, _Entry[K]]] = []
        self._stale = 0
        """Entries in it that are removed: never many, because thousands may be removed at once."""
        self._count = 0

    def add(self, key: K, interval: float, phase: float, now: float) -> None:
        """Add a key. It is due within `FIRST_WITHIN`, so that many new ones don't make a burst.

        Raises ValueError for an interval that isn't positive.
        """
        if not interval > 0:
            raise ValueError(f"interval {interval} isn't positive")
        entry = _Entry(key, interval, phase, now + phase * min(interval, FIRST_WITHIN))
        self._entries[key] = entry
        self._push(entry)

    def remove(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        entry.removed = True
        del entry.key
        self._stale += entry.due is not None
        if self._stale * STALE > len(self._queue):
            self._queue = [queued for queued in self._queue if not queued[2].removed]
            heapify(self._queue)
            self._stale = 0

    def due(self, now: float, most: float = math.inf) -> list[K]:
        """The keys that are due, at most so many. They aren't due again until `finished`.

        A key that is late by an interval or more, because the process was stopped, waits for its next slot.
        """
        keys: list[K] = []
        while self._queue and self._queue[0][0] <= now and len(keys) < most:
            _, _, entry = heappop(self._queue)
            if entry.removed:
                self._stale -= 1
                continue
            assert entry.due is not None
            if now - entry.due >= entry.interval:
                self._slot(entry, 1, now)
                continue
            entry.due = None
            keys.append(entry.key)
        return keys

    def finished(self, key: K, ok: bool, now: float) -> None:
        """The scrape of a key has ended; an unknown key was removed meanwhile."""
        entry = self._entries.get(key)
        if entry is None or entry.due is not None:
            return
        entry.failures = 0 if ok else entry.failures + 1
        pause = max(1, min(2.0 ** min(entry.failures, 30), self._backoff / entry.interval))
        self._slot(entry, int(pause), now)

    def next_at(self) -> float | None:
        """When the next key is due; None if none is before a scrape ends."""
        while self._queue:
            at, _, entry = self._queue[0]
            if not entry.removed:
                return at
            heappop(self._queue)
            self._stale -= 1
        return None

    def _slot(self, entry: _Entry[K], pause: int, now: float) -> None:
        """Schedule the slot `pause` after the last one, or the next one if that has passed."""
        entry.slot = max(entry.slot + pause, math.floor(now / entry.interval - entry.phase) + 1)
        entry.due = entry.at(entry.slot)
        self._push(entry)

    def _push(self, entry: _Entry[K]) -> None:
        assert entry.due is not None
        self._count += 1
        heappush(self._queue, (entry.due, self._count, entry))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        in_flight = sum(entry.due is None for entry in self._entries.values())
        return f"<Schedule {len(self._entries)} keys, {in_flight} in flight>"
