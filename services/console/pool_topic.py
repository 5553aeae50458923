"""The pool as a topic of a feed: endpoints with slots, and columns of what has changed of their numbers.

Most changes are of numbers, of most endpoints, ten times a second: as columns of slots and values they are a third of
the bytes of objects, and are made and read in a fraction of the time.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from services.console.feed import event
from shared.pool_view.rows import EndpointRow
from shared.tasks import in_turns

SLOW = 1.0
"""Seconds between two looks at what isn't about endpoints."""
SAME = 1e-3
"""Seconds by which two ages of one sample may differ."""
ENGINE = "llm-d.ai/engine-type"


class Columns(Struct, frozen=True):
    """Numbers of some endpoints: position i of every list is about slots[i]."""

    slots: list[int]
    queue: list[int | None]
    running: list[int | None]
    kv_cache: list[float | None]
    in_flight: list[int]
    in_flight_tokens: list[int]
    reachable: list[int | None]
    age: list[float | None]


class _Known(Struct):
    slot: int
    row: EndpointRow
    sampled: float | None
    """When its metrics were seen."""


def facts_of(row: EndpointRow) -> dict[str, Any]:
    """What changes rarely of an endpoint."""
    return {
        "id": row.id,
        "name": row.name,
        "address": row.authority,
        "labels": row.labels,
        "role": row.role,
        "engine": row.labels.get(ENGINE, ""),
        "draining": row.draining,
        "adapters": row.adapters,
        "models": row.models,
        "collector": row.collector,
    }


def numbers_of(row: EndpointRow) -> dict[str, Any]:
    """What changes all the time."""
    return {
        "reachable": row.reachable,
        "queue": row.queue,
        "running": row.running,
        "kv_cache": row.kv,
        "in_flight": row.in_flight,
        "in_flight_tokens": row.tokens,
        "age": row.age,
    }


class PoolTopic:
    """What pages about the pool show. `rows` gives its endpoints, `version` a number that differs when they do, `slow`
    the members of the events that aren't about endpoints, by name."""

    def __init__(
        self,
        rows: Callable[[], Iterable[EndpointRow]],
        version: Callable[[], int],
        slow: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rows, self._version, self._slow, self._clock = rows, version, slow, clock
        self._known: dict[str, _Known] = {}
        self._next_slot = 1
        self._seen_version: int | None = None
        self._slow_at = float("-inf")
        self._slow_shown: dict[str, Any] = {}

    async def refresh(self) -> bytes | None:
        """The changes since the last call."""
        endpoints = await self._endpoint_changes()
        content = self._slow_changes() | endpoints
        return event("changes", msgspec.json.encode(content)) if content else None

    async def whole(self) -> bytes:
        known = self._known.values()
        endpoints = await _described(known)
        content = {"endpoints": endpoints, "values": _columns(known, self._clock()), **self._slow_shown}
        return event("whole", msgspec.json.encode(content))

    def _slow_changes(self) -> dict[str, Any]:
        now = self._clock()
        if now - self._slow_at < SLOW:
            return {}
        self._slow_at = now
        before, self._slow_shown = self._slow_shown, self._slow()
        return {name: value for name, value in self._slow_shown.items() if before.get(name) != value}

    async def _endpoint_changes(self) -> dict[str, Any]:
        version = self._version()
        if version == self._seen_version:
            return {}
        now, slot = self._clock(), self._next_slot
        before, present = self._known, dict[str, _Known]()
        described, moved = list[_Known](), list[_Known]()
        async for row in in_turns(self._rows()):
            known = before.get(row.id)
            sampled = None if row.age is None else now - row.age
            new = present[row.id] = _Known(slot if known is None else known.slot, row, sampled)
            if known is None:
                slot += 1
            if known is None or _columns_changed(known.row, row):
                described.append(new)
            if known is None or _numbers_changed(known, row, sampled):
                moved.append(new)
        content: dict[str, Any] = {}
        if removed := [known.slot for id, known in before.items() if id not in present]:
            content["removed"] = removed
        if described:
            content["endpoints"] = await _described(described)
        if moved:
            content["values"] = _columns(moved, now)
        self._seen_version, self._known, self._next_slot = version, present, slot  # unless it was cancelled before
        return content

    def __repr__(self) -> str:
        return f"<PoolTopic of {len(self._known)} endpoints>"


async def _described(known: Iterable[_Known]) -> list[Raw]:
    """What changes rarely of these endpoints."""
    return [
        Raw(msgspec.json.encode({"slot": entry.slot, **facts_of(entry.row)})) async for entry in in_turns(tuple(known))
    ]


def _columns_changed(before: EndpointRow, row: EndpointRow) -> bool:
    return (
        before.labels is not row.labels
        or before.authority != row.authority
        or before.draining is not row.draining
        or before.collector != row.collector
        or before.adapters != row.adapters
        or before.models != row.models
    )


def _numbers_changed(known: _Known, row: EndpointRow, sampled: float | None) -> bool:
    before = known.row
    return (
        before.queue != row.queue
        or before.running != row.running
        or before.kv != row.kv
        or before.in_flight != row.in_flight
        or before.tokens != row.tokens
        or before.reachable is not row.reachable
        or (sampled is None) != (known.sampled is None)
        or (sampled is not None and known.sampled is not None and abs(sampled - known.sampled) > SAME)
    )


def _columns(known: Iterable[_Known], now: float) -> Columns:
    found = list(known)
    rows = [entry.row for entry in found]
    return Columns(
        slots=[entry.slot for entry in found],
        queue=[row.queue for row in rows],
        running=[row.running for row in rows],
        kv_cache=[None if row.kv is None else round(row.kv, 4) for row in rows],
        in_flight=[row.in_flight for row in rows],
        in_flight_tokens=[row.tokens for row in rows],
        reachable=[None if row.reachable is None else int(row.reachable) for row in rows],
        age=[None if entry.sampled is None else round(max(0.0, now - entry.sampled), 3) for entry in found],
    )
