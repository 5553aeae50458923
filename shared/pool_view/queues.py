"""What waits at the pickers under flow control: the last queue table of each, and what they dispatch. Pure."""

from collections import deque
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shared.bus.columns import unpack_counts, unpack_hashes
from shared.bus.messages import QueueTable
from shared.pool_view.rows import BandRow, FlowRow

WINDOW = 10.0
"""Seconds over which rates are measured."""
SAMPLING = 0.25
"""Seconds between two readings of what was dispatched."""
MAX_BANDS = 100
"""Bands whose rates are measured; and that are shown, the highest priorities first."""
MAX_SHOWN = 1000
"""Flows that are shown, those with the most waiting requests of all bands."""
MAX_ROWS = 10_000
"""Rows of all pickers' tables."""
Rows: TypeAlias = NDArray[np.intp]
Column: TypeAlias = NDArray[Any]
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class _Table:
    """A picker's sound table as columns."""

    def __init__(self, run: int, table: QueueTable, seen: float, limit: int) -> None:
        """The first `limit` rows of it."""
        self.run, self.seen = run, seen
        self.priorities = np.frombuffer(table.priorities, "<i4").astype(np.int64)[:limit]
        self.flows = unpack_hashes(table.flows)[:limit]
        columns = (table.requests, table.tokens, table.ages, table.running, table.dispatched)
        self.requests, self.tokens, self.ages, self.running, self.dispatched = (
            unpack_counts(column).astype(np.int64)[:limit] for column in columns
        )
        self.keys = self.flows ^ (self.priorities.astype(np.uint64) * _SPREAD)
        """A band's flow as one number."""

    def since(self, before: Self) -> dict[int, int]:
        """What was dispatched after another table of the same run, by priority."""
        last = np.zeros(len(self.keys), np.int64)
        if len(before.keys):
            order = np.argsort(before.keys)
            places = order[np.minimum(np.searchsorted(before.keys, self.keys, sorter=order), len(order) - 1)]
            last = np.where(before.keys[places] == self.keys, before.dispatched[places], 0)
        news = np.where(self.dispatched >= last, self.dispatched - last, self.dispatched)
        priorities, rows = np.unique(self.priorities, return_inverse=True)
        sums = np.zeros(len(priorities), np.int64)
        np.add.at(sums, rows, news)
        return dict(zip(priorities.tolist(), sums.tolist(), strict=True))


class Queues:
    """The tables of all pickers, of `MAX_ROWS` rows at most."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._dispatched: dict[int, int] = {}
        """Of each band, since it is known."""
        self._readings: deque[tuple[float, dict[int, int]]] = deque()

    def apply(self, sender: str, run: int, table: QueueTable, now: float) -> None:
        """Apply a picker's valid table. Rows beyond the limit aren't counted."""
        before = self._tables.pop(sender, None)
        room = MAX_ROWS - sum(len(known.keys) for known in self._tables.values())
        new = self._tables[sender] = _Table(run, table, now, room)
        if len(self._dispatched) >= MAX_BANDS:
            self._forget_bands(now)
        if before is not None and before.run == run:  # otherwise nobody knows what is new
            for priority, news in new.since(before).items():
                if priority in self._dispatched or len(self._dispatched) < MAX_BANDS:
                    self._dispatched[priority] = self._dispatched.get(priority, 0) + news
        if not self._readings or now - self._readings[-1][0] >= SAMPLING:
            self._readings.append((now, dict(self._dispatched)))
            while self._readings[0][0] < now - WINDOW:
                self._readings.popleft()

    def _forget_bands(self, now: float) -> None:
        """Forget what was dispatched of bands that no table has and whose rate is 0."""
        current = {priority for table in self._tables.values() for priority in np.unique(table.priorities).tolist()}
        for priority in [known for known in self._dispatched if known not in current and not self._rate(known, now)]:
            del self._dispatched[priority]
            for _, counts in self._readings:
                counts.pop(priority, None)

    def forget(self, sender: str) -> None:
        """A picker is gone."""
        self._tables.pop(sender, None)

    def waiting(self, sender: str) -> int | None:
        """Requests that wait at a picker; None without flow control."""
        table = self._tables.get(sender)
        return None if table is None else int(table.requests.sum())

    def bands(self, now: float) -> tuple[BandRow, ...]:
        """All bands, the highest priority first."""
        tables = [table for table in self._tables.values() if len(table.keys)]
        if not tables:
            return ()
        _, firsts, rows = np.unique(
            np.concatenate([table.keys for table in tables]), return_index=True, return_inverse=True
        )
        requests, tokens, running = (np.zeros(len(firsts), np.int64) for _ in range(3))
        for sums, name in ((requests, "requests"), (tokens, "tokens"), (running, "running")):
            np.add.at(sums, rows, np.concatenate([getattr(table, name) for table in tables]))
        ages = [np.where(table.requests > 0, now - table.seen, 0.0) + table.ages / 1000 for table in tables]
        oldest = np.zeros(len(firsts))
        np.maximum.at(oldest, rows, np.concatenate(ages))
        priorities = np.concatenate([table.priorities for table in tables])[firsts]
        flows = np.concatenate([table.flows for table in tables])[firsts]
        shown = np.zeros(len(firsts), np.bool_)
        shown[np.lexsort((flows, -running, -requests))[:MAX_SHOWN]] = True
        order = np.lexsort((flows, -running, -requests, -priorities))
        columns = (flows, requests, tokens, oldest, running)
        starts = np.flatnonzero(np.diff(priorities[order], prepend=priorities.max() + 1))
        return tuple(
            self._band(int(priorities[rows[0]]), rows, rows[shown[rows]], columns, now)
            for rows in np.split(order, starts[1:])[:MAX_BANDS]
        )

    def _band(self, priority: int, rows: Rows, shown: Rows, columns: tuple[Column, ...], now: float) -> BandRow:
        """One band, whose flows are in these rows."""
        _, requests, tokens, oldest, running = (column[rows] for column in columns)
        flows = zip(*(column[shown].tolist() for column in columns), strict=True)
        return BandRow(
            priority=priority,
            requests=int(requests.sum()),
            tokens=int(tokens.sum()),
            oldest=float(oldest.max()),
            running=int(running.sum()),
            rate=self._rate(priority, now),
            flow_count=len(rows),
            flows=tuple(
                FlowRow(flow=f"{flow:016x}" if flow else "", requests=waiting, tokens=size, oldest=age, running=started)
                for flow, waiting, size, age, started in flows
            ),
        )

    def _rate(self, priority: int, now: float) -> float:
        since = next(((at, counts) for at, counts in self._readings if at >= now - WINDOW), None)
        if since is None:
            return 0.0
        at, counts = since
        return (self._dispatched.get(priority, 0) - counts.get(priority, 0)) / max(now - at, 1.0)

    def __repr__(self) -> str:
        return f"<Queues of {len(self._tables)} pickers>"
