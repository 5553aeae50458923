"""The pool as it is known from the bus: facts, frames, loads and heartbeats as rows. Pure: callers pass the time in."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from shared.attributes import ACTIVE_MODELS, SERVED_MODELS
from shared.bus.columns import Hashes, endpoint_hash, unpack_counts, unpack_hashes
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.messages import Frame, Load
from shared.bus.queueing_delay import QueueingDelays
from shared.limits import LIMITS, BusLimits
from shared.model import ROLE, Configuration, Endpoint, Fact, Pool
from shared.pool_view.attribute_table import IN_ROWS, AttributeTable
from shared.pool_view.queues import Queues
from shared.pool_view.rows import AttributeValue, BandRow, EndpointRow, MemberRow

WATCHER, COLLECTOR, PICKER = "watcher", "collector", "picker"
TIERS = (WATCHER, COLLECTOR, PICKER)
FORGOTTEN = 300.0
"""Seconds after which nothing is remembered of the delays of a silent picker."""
MAX_LOAD_ROWS = 200_000
"""Rows in the loads of all pickers."""
ORDERED = 64
"""Characters of a process's id whose numbers order it: an id may have 4 096, and each number of it takes time."""
_DIGITS = re.compile(r"(\d+)")

F = TypeVar("F", bound=Fact)


class _Member:
    __slots__ = ("last_seen", "load", "order")

    def __init__(self, id: str, last_seen: float) -> None:
        self.order = (_natural(id[:ORDERED]), id)
        self.last_seen = last_seen
        self.load: Load | None = None
        """Of a picker: its last table, without what waits there."""


class _Metric(Struct, frozen=True):
    """A column of the endpoints' rows."""

    values: list[float]
    at: list[float]

    def value(self, row: int) -> float | None:
        return self.values[row] if self.at[row] > -math.inf else None


class PoolView:
    """The state. `version` differs from before when anything is new. A process that is silent for `expiry` seconds is
    gone."""

    def __init__(self, expiry: float, limits: BusLimits = LIMITS) -> None:
        self._expiry = expiry
        self._limits = limits
        self._facts: dict[str, Fact] = {}
        self._order: list[Endpoint] = []
        """The endpoints, as they are shown."""
        self._hashes: Hashes = np.zeros(0, np.uint64)
        """Of their ids, in ascending order."""
        self._hash_rows = np.zeros(0, np.intp)
        self._stale_order = False
        self._attributes = AttributeTable()
        self._members: dict[tuple[str, str], _Member] = {}
        self._delays = QueueingDelays(limit=limits.max_runs)
        self._load_rows = 0
        self._queues = Queues()
        self._leader = ""
        self._connected = False
        self.version = 0

    # What comes

    def event(self, event: Event) -> None:
        """Facts have changed."""
        match event:
            case Reset(facts=facts):
                self._facts = dict(facts)
                self._stale_order = True
            case Upsert(key=key, fact=fact):
                self._stale_order |= isinstance(fact, Endpoint)
                self._facts[key] = fact
            case Delete(key=key):
                self._stale_order |= isinstance(self._facts.pop(key, None), Endpoint)
        self.version += 1

    def frame(self, frame: Frame, now: float, extra_age: float) -> None:
        """A collector's sound frame, as from a `FrameReader`."""
        self._arrange()
        self._attributes.apply(frame, now, extra_age)
        self.version += 1

    def load(self, load: Load, now: float) -> bool:
        """A picker's sound table. False for one that can't have been sent when it says, which isn't taken."""
        delay = self._delays.observe(load.sender, load.run, load.sent, now)
        if delay is None:
            return False
        member = self.observe(PICKER, load.sender, now - delay, leaving=load.leaving)
        if member is None:
            return True
        known = member.load
        if known is None or known.run != load.run or known.sent <= load.sent:
            others = self._load_rows - _rows(known)
            if others + _rows(load) > MAX_LOAD_ROWS:
                load = replace(load, ids=b"", requests=b"", tokens=b"")
            self._load_rows, member.load = others + _rows(load), replace(load, queue=None)  # `_queues` has it
            if load.queue is None:
                self._queues.forget(load.sender)
            else:
                self._queues.apply(load.sender, load.run, load.queue, now)
        return True

    def observe(self, tier: str, id: str, now: float, *, leaving: bool = False) -> _Member | None:
        """A heartbeat of a process. None if it isn't counted: it leaves, or too many are known."""
        self.version += 1
        if leaving:
            self._forget(tier, id)
            return None
        member = self._members.get((tier, id))
        if member is None:
            if len(self._members) >= len(TIERS) * self._limits.max_senders:
                return None
            member = self._members[tier, id] = _Member(id, now)
        member.last_seen = max(member.last_seen, now)
        return member

    def leader(self, owner: str) -> None:
        """Who holds the watchers' lease, as it calls itself there; empty without a holder."""
        if owner != self._leader:
            self._leader = owner
            self.version += 1

    def connected(self, now: float) -> None:
        """There is a connection: each process has one expiry interval to send."""
        self._connected = True
        for member in self._members.values():
            member.last_seen = now

    def disconnected(self) -> None:
        """There is no connection, so silence means nothing."""
        self._connected = False

    def expire(self, now: float) -> None:
        """Forget members that have been silent for too long."""
        if self._connected:
            for (tier, id), member in list(self._members.items()):
                if now - member.last_seen >= self._expiry:
                    self._forget(tier, id)
                    self.version += 1
        self._delays.prune(now - FORGOTTEN)

    def _forget(self, tier: str, id: str) -> None:
        member = self._members.pop((tier, id), None)
        if tier == PICKER:
            self._load_rows -= _rows(member.load if member else None)
            self._queues.forget(id)

    # What is shown

    @property
    def facts(self) -> Mapping[str, Fact]:
        """By key."""
        return self._facts

    @property
    def pool(self) -> Pool | None:
        return next(self._facts_of(Pool), None)

    @property
    def configuration(self) -> Configuration | None:
        """The published one."""
        return next(self._facts_of(Configuration), None)

    def _facts_of(self, kind: type[F]) -> Iterator[F]:
        return (fact for fact in self._facts.values() if isinstance(fact, kind))

    def rows(self, now: float) -> Iterator[EndpointRow]:
        """All endpoints by name, `model-2` before `model-10`, as they are when the first one is made: the others may be
        made later."""
        self._arrange()
        order = self._order
        requests, tokens = self._in_flight()
        table = self._attributes
        queue, running, kv, reachable = metrics = [_Metric(*table.numbers(key.wire)) for key in IN_ROWS]
        for row, endpoint in enumerate(order):
            oldest = min((metric.at[row] for metric in metrics[:3] if metric.at[row] > -math.inf), default=None)
            waiting, started, alive = queue.value(row), running.value(row), reachable.value(row)
            yield EndpointRow(
                id=endpoint.id,
                name=endpoint.name,
                authority=endpoint.authority,
                labels=endpoint.labels,
                role=endpoint.labels.get(ROLE, ""),
                draining=endpoint.draining,
                reachable=None if alive is None else alive > 0,
                queue=None if waiting is None else int(waiting),
                running=None if started is None else int(started),
                kv=kv.value(row),
                age=None if oldest is None else max(0.0, now - oldest),
                in_flight=requests[row],
                tokens=tokens[row],
                adapters=table.names(ACTIVE_MODELS.wire, endpoint.id),
                models=table.names(SERVED_MODELS.wire, endpoint.id),
                collector=table.sender(endpoint.id),
            )

    def attributes(self, id: str, now: float) -> dict[str, AttributeValue]:
        """All attributes of an endpoint, by wire name."""
        self._arrange()
        return self._attributes.of(id, now)

    def members(self, now: float) -> list[MemberRow]:
        """All live processes, by tier and name."""
        self.expire(now)
        self._arrange()
        assigned: dict[str, int] = {}
        for sender in self._attributes.senders():
            assigned[sender] = assigned.get(sender, 0) + 1
        rows = []
        members = sorted(self._members.items(), key=lambda item: (TIERS.index(item[0][0]), item[1].order))
        for (tier, id), member in members:
            load = member.load
            rows.append(
                MemberRow(
                    tier=tier,
                    id=id.rpartition("/")[0] or id if tier == WATCHER else id,
                    age=max(0.0, now - member.last_seen),
                    leader=tier == WATCHER and id == self._leader,
                    endpoints=assigned.get(id, 0) if tier == COLLECTOR else None,
                    in_flight=None if load is None else int(unpack_counts(load.requests).sum(dtype=np.uint64)),
                    waiting=self._queues.waiting(id) if tier == PICKER else None,
                )
            )
        return rows

    def queues(self, now: float) -> tuple[BandRow, ...]:
        """What waits at the pickers; empty without flow control."""
        self.expire(now)
        return self._queues.bands(now)

    def _in_flight(self) -> tuple[list[int], list[int]]:
        """Requests and tokens of all pickers, of each row."""
        requests, tokens = np.zeros(len(self._order), np.int64), np.zeros(len(self._order), np.int64)
        for member in self._members.values():
            if member.load is None or not len(self._hashes):
                continue
            hashes = unpack_hashes(member.load.ids)
            places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
            known = self._hashes[places] == hashes
            rows = self._hash_rows[places[known]]
            np.add.at(requests, rows, unpack_counts(member.load.requests)[known])
            np.add.at(tokens, rows, unpack_counts(member.load.tokens)[known])
        return requests.tolist(), tokens.tolist()

    def _arrange(self) -> None:
        if not self._stale_order:
            return
        self._stale_order = False
        self._order = sorted(self._facts_of(Endpoint), key=lambda endpoint: _natural(endpoint.id))
        hashes = np.array([endpoint_hash(endpoint.id) for endpoint in self._order], np.uint64)
        self._hash_rows = np.argsort(hashes)
        self._hashes = hashes[self._hash_rows]
        self._attributes.relayout({endpoint.id: row for row, endpoint in enumerate(self._order)})

    def __repr__(self) -> str:
        return f"<PoolView {len(self._facts)} facts, {len(self._members)} members, {self._attributes!r}>"


def _rows(load: Load | None) -> int:
    return 0 if load is None else len(load.ids) // 8


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Sorts numbers in names by their value."""
    return [(0, int(part), part) if part.isdecimal() else (1, 0, part) for part in _DIGITS.split(text)]
