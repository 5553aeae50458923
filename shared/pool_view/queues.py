"""What waits at the pickers under flow control: the last queue table of each, and what they dispatch. Pure."""

from collections import deque
from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from shared.bus.columns import unpack_counts, unpack_hashes
from shared.bus.messages import QueueTable
from shared.pool_view.rows import BandRow, FlowRow

WINDOW = 10.0
"""Seconds over which rates are measured."""
SAMPLING = 0.25
"""Seconds between two readings of what was dispatched."""
MOST_BANDS = 100
"""Bands whose rates are measured."""


class QueueEntry(Struct, frozen=True, kw_only=True):
    """A row of a picker's table."""

    priority: int
    flow: int
    requests: int
    tokens: int
    age: float
    running: int
    dispatched: int


def entries(table: QueueTable) -> Iterator[QueueEntry]:
    """The rows of a sound table."""
    priorities = np.frombuffer(table.priorities, "<i4").tolist()
    flows = unpack_hashes(table.flows).tolist()
    names = ("requests", "tokens", "ages", "running", "dispatched")
    columns = [unpack_counts(getattr(table, name)).tolist() for name in names]
    for priority, flow, requests, tokens, age, running, dispatched in zip(priorities, flows, *columns, strict=True):
        yield QueueEntry(
            priority=priority,
            flow=flow,
            requests=requests,
            tokens=tokens,
            age=age / 1000,
            running=running,
            dispatched=dispatched,
        )


class _Table:
    def __init__(self, run: int, table: QueueTable, seen: float) -> None:
        self.run, self.seen = run, seen
        self.entries = list(entries(table))
        self.counters = {(entry.priority, entry.flow): entry.dispatched for entry in self.entries}


class Queues:
    """The tables of all pickers."""

    def __init__(self) -> None:
        self._tables: dict[str, _Table] = {}
        self._dispatched: dict[int, int] = {}
        """Of each band, since this reader began."""
        self._readings: deque[tuple[float, dict[int, int]]] = deque()

    def apply(self, sender: str, run: int, table: QueueTable, now: float) -> None:
        """Take in a picker's sound table."""
        before, new = self._tables.get(sender), _Table(run, table, now)
        self._tables[sender] = new
        if before is not None and before.run == run:  # otherwise nobody knows what is new
            for (priority, flow), count in new.counters.items():
                last = before.counters.get((priority, flow), 0)
                if priority in self._dispatched or len(self._dispatched) < MOST_BANDS:
                    news = count - last if count >= last else count
                    self._dispatched[priority] = self._dispatched.get(priority, 0) + news
        if not self._readings or now - self._readings[-1][0] >= SAMPLING:
            self._readings.append((now, dict(self._dispatched)))
            while self._readings[0][0] < now - WINDOW:
                self._readings.popleft()

    def forget(self, sender: str) -> None:
        """A picker is gone."""
        self._tables.pop(sender, None)

    def waiting(self, sender: str) -> int | None:
        """Requests that wait at a picker; None without flow control."""
        table = self._tables.get(sender)
        return None if table is None else sum(entry.requests for entry in table.entries)

    def bands(self, now: float) -> tuple[BandRow, ...]:
        """All bands, the highest priority first."""
        flows: dict[int, dict[int, list[float]]] = {}
        for table in self._tables.values():
            for entry in table.entries:
                late = now - table.seen if entry.requests else 0.0
                sums = flows.setdefault(entry.priority, {}).setdefault(entry.flow, [0, 0, 0.0, 0])
                sums[0] += entry.requests
                sums[1] += entry.tokens
                sums[2] = max(sums[2], entry.age + late)
                sums[3] += entry.running
        return tuple(self._band(priority, flows[priority], now) for priority in sorted(flows, reverse=True))

    def _band(self, priority: int, flows: dict[int, list[float]], now: float) -> BandRow:
        rows = [
            FlowRow(
                flow=f"{flow:016x}" if flow else "",
                requests=int(requests),
                tokens=int(tokens),
                oldest=oldest,
                running=int(running),
            )
            for flow, (requests, tokens, oldest, running) in flows.items()
        ]
        rows.sort(key=lambda row: (-row.requests, -row.running, row.flow))
        return BandRow(
            priority=priority,
            requests=sum(row.requests for row in rows),
            tokens=sum(row.tokens for row in rows),
            oldest=max((row.oldest for row in rows), default=0.0),
            running=sum(row.running for row in rows),
            rate=self._rate(priority, now),
            flows=tuple(rows),
        )

    def _rate(self, priority: int, now: float) -> float:
        since = next(((at, counts) for at, counts in self._readings if at >= now - WINDOW), None)
        if since is None:
            return 0.0
        at, counts = since
        return (self._dispatched.get(priority, 0) - counts.get(priority, 0)) / max(now - at, 1.0)

    def __repr__(self) -> str:
        return f"<Queues of {len(self._tables)} pickers>"
