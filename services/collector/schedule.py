"""When each target is scraped next. Pure: time is passed in.

Every target has its own slot within the interval, taken from its name, so that a thousand scrapes are spread over the
interval instead of coming in one burst, and so that a collector that takes an endpoint over goes on in the same rhythm.
A target that is being scraped isn't due again until that has ended; slots that pass meanwhile are left out. A target
that fails is asked less and less often, up to the back-off limit.
"""

import math
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from xxhash import xxh3_64_intdigest

K = TypeVar("K", bound=Hashable)

FIRST_WITHIN = 0.1
"""Seconds within which a new target is scraped for the first time, however long its interval is."""


def phase(name: str) -> float:
    """A target's place in its interval, 0 to 1, the same at every collector."""
    return xxh3_64_intdigest(name.encode()) / 2**64


class _Entry(Generic[K]):
    __slots__ = ("due", "failures", "interval", "key", "phase", "slot")

    def __init__(self, key: K, interval: float, phase: float, due: float) -> None:
        self.key = key
        self.interval = interval
        self.phase = phase
        self.due: float | None = due
        """None while it is being scraped."""
        self.slot = self.slot_after(due) - 1
        self.failures = 0

    def slot_after(self, moment: float) -> int:
        """The first slot that begins a whole interval or more after the moment."""
        return math.ceil(moment / self.interval - self.phase) + 1

    def at(self, slot: int) -> float:
        return (slot + self.phase) * self.interval


class Schedule(Generic[K]):
    """Keys that come due again and again.

    `backoff` is the longest time between two attempts at a key that keeps failing, where its interval isn't longer.
    """

    def __init__(self, backoff: float) -> None:
        self._backoff = backoff
        self._entries: dict[K, _Entry[K]] = {}
        self._queue: list[tuple[float, int, _Entry[K]]] = []
        self._count = 0

    def add(self, key: K, interval: float, phase: float, now: float) -> None:
        """Begin with a key: due at once or, so that many new ones make no burst, within `FIRST_WITHIN`.

        Raises ValueError for an interval that isn't positive.
        """
        if not interval > 0:
            raise ValueError(f"interval {interval} isn't positive")
        entry = _Entry(key, interval, phase, now + phase * min(interval, FIRST_WITHIN))
        self._entries[key] = entry
        self._push(entry)

    def remove(self, key: K) -> None:
        self._entries.pop(key, None)

    def due(self, now: float) -> list[K]:
        """Keys whose time has come. Each isn't due again until `finished`.

        What is late by an interval or more (the process was stopped) waits for its next slot: no burst follows.
        """
        keys: list[K] = []
        while self._queue and self._queue[0][0] <= now:
            _, _, entry = heappop(self._queue)
            if self._entries.get(entry.key) is not entry or entry.due is None:
                continue
            if now - entry.due >= entry.interval:
                self._slot(entry, 1, now)
                continue
            entry.due = None
            keys.append(entry.key)
        return keys

    def finished(self, key: K, ok: bool, now: float) -> None:
        """A scrape has ended; an unknown key is one that was removed meanwhile."""
        entry = self._entries.get(key)
        if entry is None or entry.due is not None:
            return
        entry.failures = 0 if ok else entry.failures + 1
        pause = max(1, min(2.0 ** min(entry.failures, 30), self._backoff / entry.interval))
        self._slot(entry, int(pause), now)

    def failures(self, key: K) -> int:
        """Attempts that have failed since the last success."""
        entry = self._entries.get(key)
        return entry.failures if entry else 0

    def next_at(self) -> float | None:
        """When something comes due; None when nothing will before a scrape ends."""
        while self._queue:
            at, _, entry = self._queue[0]
            if self._entries.get(entry.key) is entry:
                return at
            heappop(self._queue)
        return None

    def _slot(self, entry: _Entry[K], pause: int, now: float) -> None:
        """The slot `pause` after the last one, or the next one if that is over."""
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
        flying = sum(entry.due is None for entry in self._entries.values())
        return f"<Schedule {len(self._entries)} keys, {flying} in flight>"
