"""What waits at the other pickers: the last table of each, until it is withdrawn or too old."""

from collections.abc import Collection, Iterator
from heapq import nlargest
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from services.picker.flow_control.flow_columns import Integers
from services.picker.flow_control.queue_table import REST, Columns, unpack
from services.picker.state.layout import Floats
from shared.bus.messages import QueueTable

EXPIRY = 1.5
"""Seconds without a table from which on a peer's no longer counts, as with its load."""
MAX_ROWS = 10_000
"""Rows of all peers' tables together: quotas of so many take a millisecond or two. Where there is no room, the largest
tables aren't counted."""
BAND_WEIGHT, TABLE_WEIGHT = 10, 50
"""Rows that a band, and a table, count as in addition."""
MAX_PEER_BANDS = 100
"""Bands of peers that aren't known here: the highest count."""
_HALF = 2**31
_ODD = np.uint64(0x9E3779B97F4A7C15)
"""Spreads priorities over 64 bits."""


class PeerBand(NamedTuple):
    """One band of a peer's table."""

    flows: Integers
    demands: Floats
    requests: int
    tokens: int
    """Of the requests."""
    running: int
    dispatched: int
    """Counts on, modulo whatever: it differs from before if the peer has dispatched anything."""
    age: float
    """Seconds that its oldest request had waited, when the table came."""


class News(NamedTuple):
    """What a peer has done for a flow since its last table."""

    priority: int
    flow: int
    dispatched: int
    served: int


class _Peer:
    __slots__ = ("bands", "counters", "run", "seen", "sent", "weight")

    def __init__(self, run: int, sent: float, seen: float, columns: Columns) -> None:
        self.run, self.sent, self.seen = run, sent, seen
        self.bands = _bands(columns)
        self.weight = TABLE_WEIGHT + BAND_WEIGHT * len(self.bands) + len(columns.flows)
        self.counters = columns


class Peers:
    """The tables, and their sums per band."""

    def __init__(self) -> None:
        self._peers: dict[str, _Peer] = {}
        self._weight = 0
        self._dispatched: dict[int, int] = {}
        """Per band, without zeros."""
        self.version = 0
        """Counts changes."""
        self.waiting: dict[int, int] = {}
        """Requests that wait at peers, per band; bands without any aren't there."""

    def apply(self, sender: str, run: int, sent: float, table: QueueTable, now: float) -> list[News]:
        """Apply a peer's valid table, unless a later table of the same run came before it. Returns what the peer has
        done since its last table; nothing for a new peer."""
        known = self._peers.get(sender)
        if known is not None and known.run == run and sent < known.sent:
            return []
        peer = _Peer(run, sent, now, unpack(table))
        self._remove(sender)
        if self._admits_table(peer.weight):
            self._peers[sender] = peer
            self._weight += peer.weight
            self._count(peer, 1)
        self.version += 1
        return [] if known is None or known.run != run else _news(known.counters, peer.counters)

    def forget(self, sender: str) -> None:
        """The peer leaves."""
        if sender in self._peers:
            self._remove(sender)
            self.version += 1

    def expire(self, now: float) -> list[str]:
        """Drop the tables that are too old; their senders."""
        gone = [sender for sender, peer in self._peers.items() if now >= peer.seen + EXPIRY]
        for sender in gone:
            self.forget(sender)
        return gone

    def next_expiry(self) -> float:
        """When the next table will be too old."""
        return min((peer.seen for peer in self._peers.values()), default=inf) + EXPIRY

    def of(self, priority: int) -> Iterator[tuple[str, float, PeerBand]]:
        """(sender, when its table came, the band) of each peer that has anything in the band, in the senders' order."""
        for sender in sorted(self._peers):
            peer = self._peers[sender]
            band = peer.bands.get(priority)
            if band is not None and (band.requests or band.running):
                yield sender, peer.seen, band

    def progress(self, priority: int) -> int:
        """Differs from before if peers have dispatched requests of the band."""
        return self._dispatched.get(priority, 0)

    def rows(self, most: int, bands: int) -> int:
        """The rows that this picker's table of so many bands may have, so that all tables fit at every picker."""
        part = MAX_ROWS // (len(self._peers) + 1)
        return max(min(most, part - TABLE_WEIGHT - (BAND_WEIGHT + 1) * bands), 0)  # a band's rest has a row

    def bands(self, here: Collection[int]) -> list[int]:
        """The bands of this picker, and those in which peers have requests, from the highest."""
        others = nlargest(MAX_PEER_BANDS, self.waiting.keys() - here)
        return sorted([*here, *others], reverse=True)

    def _admits_table(self, weight: int) -> bool:
        """Whether a table of this weight is counted; then, larger ones may not be any more."""
        while self._weight + weight > MAX_ROWS:
            largest = max(self._peers, key=lambda sender: self._peers[sender].weight, default=None)
            if largest is None or self._peers[largest].weight <= weight:
                return False
            self._remove(largest)
        return True

    def _remove(self, sender: str) -> None:
        peer = self._peers.pop(sender, None)
        if peer is not None:
            self._weight -= peer.weight
            self._count(peer, -1)

    def _count(self, peer: _Peer, sign: int) -> None:
        for priority, band in peer.bands.items():
            for totals, change in ((self.waiting, band.requests), (self._dispatched, band.dispatched)):
                total = totals.pop(priority, 0) + sign * change
                if total:
                    totals[priority] = total

    def __len__(self) -> int:
        return len(self._peers)

    def __repr__(self) -> str:
        return f"<Peers {len(self._peers)}, {sum(self.waiting.values())} requests waiting>"


def _bands(columns: Columns) -> dict[int, PeerBand]:
    """By priority."""
    if not len(columns.flows):
        return {}
    if (columns.priorities == columns.priorities[0]).all():
        starts = [0]
    else:
        order = np.argsort(columns.priorities, kind="stable")
        columns = Columns(*(column[order] for column in columns))
        starts = [0, *(np.flatnonzero(np.diff(columns.priorities)) + 1).tolist()]
    counts = np.array([columns.requests, columns.tokens, columns.running, columns.dispatched], np.int64)
    requests, tokens, running, dispatched = np.add.reduceat(counts, starts, axis=1).tolist()
    ages = np.maximum.reduceat(columns.ages, starts).tolist()
    demands = (counts[0] + counts[2]).astype(np.float64)
    return {
        int(columns.priorities[start]): PeerBand(
            flows=columns.flows[start:end],
            demands=demands[start:end],
            requests=requests[at],
            tokens=tokens[at],
            running=running[at],
            dispatched=dispatched[at],
            age=ages[at] / 1000,
        )
        for at, (start, end) in enumerate(pairwise([*starts, len(demands)]))
    }


def _news(before: Columns, after: Columns) -> list[News]:
    """What has grown, flow by flow. A flow that wasn't in the table before counts from 0; unless the table had no row
    for each, so that it may only have got one again."""
    if not len(after.flows):
        return []
    if np.array_equal(before.flows, after.flows) and np.array_equal(before.priorities, after.priorities):
        dispatched, served = before.dispatched, before.served
    else:
        dispatched, served = np.zeros((2, len(after.flows)), np.uint32)
        if REST in before.flows:
            dispatched, served = after.dispatched.copy(), after.served.copy()
        if len(before.flows):
            old, new = _keys(before), _keys(after)
            order = np.argsort(old)
            rows = order[np.minimum(np.searchsorted(old, new, sorter=order), len(old) - 1)]
            found = old[rows] == new
            dispatched[found], served[found] = before.dispatched[rows[found]], before.served[rows[found]]
    changed = np.flatnonzero((after.dispatched != dispatched) | (after.served != served))
    columns = (
        after.priorities[changed],
        after.flows[changed],
        _increase(dispatched[changed], after.dispatched[changed]),
        _increase(served[changed], after.served[changed]),
    )
    news = (News(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
    return [item for item in news if item.flow != REST and (item.dispatched or item.served)]


def _keys(columns: Columns) -> Integers:
    """One number for a flow of a band."""
    keys: Integers = columns.flows ^ (columns.priorities.astype(np.uint64) * _ODD)
    return keys


def _increase(before: Integers, after: Integers) -> Integers:
    """By how much counters have grown; they may have passed 2^32. One that shrank began anew."""
    grown = after - before
    counts: Integers = np.where(grown < _HALF, grown, after)
    return counts
