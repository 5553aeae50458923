"""How much of a band's room is this picker's: the quotas of `shares`, kept for a while.

Quotas change with demand, which changes slowly when many requests wait. So they are computed again at most every
`REFRESH` seconds, and less often for long tables. What is owed to this picker and the room are those of the moment.

Pickers that know of each other's queues don't exceed the room together. What isn't known is taken for nothing: where
bursts come to several pickers of an idle pool within one interval of the tables, each can fill the room that it sees.
"""

from math import floor, inf
from typing import NamedTuple

import numpy as np

from services.picker.flow_control.band import Band
from services.picker.flow_control.flow_columns import Integers
from services.picker.flow_control.peers import Peers
from services.picker.flow_control.queue_table import summarize
from services.picker.flow_control.shares import Flows, allowances, quotas
from services.picker.flow_control.strict_priority import NEARLY_FULL, RESPITE
from services.picker.state.layout import Floats

REFRESH = 0.02
"""Seconds: as old as peers' tables are."""
REFRESH_A_ROW = 2e-6
"""Seconds more for each row of the tables: ten times what it costs."""
PATIENCE = 0.05
"""Seconds after which a picker without an allowance takes a request all the same, if there is room that nobody uses."""
PROBES = 5
"""Such requests, in a pool that isn't nearly full, after which peers' tables don't count in such a pool for `RESPITE`
seconds."""
AGE_STEP = 0.1
"""Seconds in which ages are compared. Each picker knows its own more exactly than the others', so of requests that came
at once each would take its own for the youngest, and leave what remains to the others."""
_MAX_TURNS = 10


class Division:
    """This picker's part of one band."""

    def __init__(self, me: str, band: Band, peers: Peers, weights: dict[int, float], max_rows: int) -> None:
        self._me, self._band, self._peers, self._weights = me, band, peers, weights
        self._max_rows = max_rows
        self._at = -inf
        self._every = REFRESH
        """Seconds."""
        self._basis: tuple[int, int, int] | None = None
        """What the quotas were computed of: peers' tables, demand here, room and what runs here."""
        self._stale = False
        self._quota = 0
        self._turn = 0
        """Of this picker, in the order of ids."""
        self._owed: list[int] = []
        """To each picker, by its turn; this picker's is looked up when it is needed."""
        self._ages: list[int] = []
        """Of each picker's oldest request, in steps of `AGE_STEP`."""
        self._flows = Flows([], weights)
        self._stalled_since: float | None = None
        self._progress = (0, 0)
        self._probes = 0
        self._alone_until = -inf

    def allowance(self, room: float, now: float, full: float = 1.0) -> int:
        """Requests of the band that this picker may dispatch, while so many average ones would fit. `full` is the
        saturation, as a part of the band's ceiling."""
        band = self._band
        elsewhere = self._peers.waiting.get(band.priority, 0)
        if not elsewhere or band.requests + elsewhere <= room:
            self._stalled_since = None
            return min(band.requests, int(room)) if room < inf else band.requests
        if full >= NEARLY_FULL:
            self._probes = 0
        elif now < self._alone_until:
            return min(band.requests, int(room))
        self._refresh(room, now)
        recent = band.recent(now)
        self._owed[self._turn] = max(0, min(self._quota - band.running, band.requests)) + recent
        allowed = allowances(room + recent, self._owed, self._ages)[self._turn] - recent
        if allowed > 0:
            self._stalled_since = None
            return allowed
        return self._probe(now, full)

    def next_look(self) -> float:
        """When an allowance of 0 may have become more, though nothing has happened."""
        patience = inf if self._stalled_since is None else self._stalled_since + self._patience()
        return min(patience, self._at + self._every if self._stale else inf)

    def no_room(self) -> None:
        """There is no room for the band, so a peer's silence means nothing."""
        self._stalled_since = None

    def _patience(self) -> float:
        """Pickers don't lose patience all at once."""
        return PATIENCE * (1 + min(self._turn, _MAX_TURNS - 1))

    def _probe(self, now: float, full: float) -> int:
        """1 if nobody has used the room for so long that the tables must be wrong. What peers say that they have
        dispatched counts where the pool shows it."""
        elsewhere = self._peers.progress(self._band.priority) if full >= NEARLY_FULL else 0
        progress = elsewhere, self._band.dispatched
        if self._stalled_since is None or progress != self._progress:
            self._stalled_since, self._progress = now, progress
            return 0
        if now < self._stalled_since + self._patience():
            return 0
        if full < NEARLY_FULL:
            self._probes += 1
            if self._probes >= PROBES:
                self._probes, self._alone_until = 0, now + RESPITE
        return 1

    def _refresh(self, room: float, now: float) -> None:
        """Compute the quotas, if anything has changed and they aren't quite new."""
        band = self._band
        basis = self._peers.version, band.changes, floor(room) + band.running
        self._stale = basis != self._basis
        if not self._stale or now < self._at + self._every:
            return
        self._at, self._basis, self._stale = now, basis, False
        parts = [self._own_part(now)]
        for sender, seen, peer in self._peers.of(band.priority):
            age = peer.age + now - seen if peer.requests else 0.0
            parts.append(_Part(sender, age, peer.flows, peer.demands, peer.requests, peer.running))
        parts.sort(key=lambda part: part.picker)
        self._ages = [round(part.age / AGE_STEP) for part in parts]
        flows = [part.flows for part in parts]
        if not self._flows.are(flows):
            self._flows = Flows(flows, self._weights)
        demands = np.concatenate([part.demands for part in parts])
        self._every = REFRESH + len(demands) * REFRESH_A_ROW
        each = quotas(room + sum(part.running for part in parts), self._flows, demands, self._ages)
        self._turn = next(at for at, part in enumerate(parts) if part.picker == self._me)
        self._quota = each[self._turn]
        self._owed = [max(0, min(quota - part.running, part.requests)) for quota, part in zip(each, parts, strict=True)]

    def _own_part(self, now: float) -> "_Part":
        """This picker's demand, as its table tells it."""
        band = self._band
        columns = band.columns
        oldest = float(columns.since.min()) if band.requests else now
        flows, requests, running = columns.hashes, columns.counts[0], columns.counts[2]
        most = self._peers.rows(self._max_rows, 1)
        if len(columns) > most:
            rows = summarize(columns, now, most)
            flows, requests, running = rows.flows, rows.requests, rows.running
        demands = (requests + running).astype(np.float64)
        return _Part(self._me, now - oldest, flows, demands, band.requests, band.running)


class _Part(NamedTuple):
    """What one picker has in the band."""

    picker: str
    age: float
    flows: Integers
    demands: Floats
    requests: int
    running: int
