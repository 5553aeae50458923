"""The queue table: what waits and runs at one picker, as it travels with the picker's load.

Columns as in `shared.bus.columns`, one row for each flow of a band. A band with more flows than fit has one more row,
of flow 0, for the sum of the rest. The counters `dispatched` and `served` only grow, modulo 2^32, so a lost table loses
nothing; one that is smaller than before belongs to a flow that its sender had forgotten, and counts from 0.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from services.picker.flow_control.band import Band
from services.picker.flow_control.flow import Flow

MOST_ROWS = 10_000
"""Of a table that is taken in."""
REST = 0
"""The flow of a row that sums up others."""
_U32 = 0xFFFFFFFF

Integers: TypeAlias = NDArray[Any]


class QueueTable(Struct, frozen=True, kw_only=True):
    """The packed table. Empty columns say that nothing waits or runs."""

    priorities: bytes = b""
    """Packed int32."""
    flows: bytes = b""
    """Packed uint64: `flow_hash` of each flow's id, or `REST`."""
    requests: bytes = b""
    """Packed uint32, as all that follow: requests that wait."""
    tokens: bytes = b""
    """Of the requests that wait."""
    ages: bytes = b""
    """Milliseconds that the flow's first request has waited."""
    running: bytes = b""
    """Requests that were dispatched and aren't finished."""
    dispatched: bytes = b""
    """Requests dispatched so far."""
    served: bytes = b""
    """Tokens of finished requests so far, completion tokens counted twice."""

    def fault(self) -> str | None:
        """What is inconsistent about it, or None."""
        rows, rest = divmod(len(self.flows), 8)
        if rest:
            return f"flows has {len(self.flows)} bytes, which is no multiple of 8"
        if rows > MOST_ROWS:
            return f"{rows} flows in a queue table, at most {MOST_ROWS} are allowed"
        for name in ("priorities", "requests", "tokens", "ages", "running", "dispatched", "served"):
            column = getattr(self, name)
            if len(column) != 4 * rows:
                return f"{name} has {len(column)} bytes, {4 * rows} are needed for {rows} flows"
        return None


class Columns(NamedTuple):
    """An unpacked table, as read-only arrays over its bytes."""

    priorities: Integers
    flows: Integers
    requests: Integers
    tokens: Integers
    ages: Integers
    running: Integers
    dispatched: Integers
    served: Integers


def unpack(table: QueueTable) -> Columns:
    """The columns of a sound table."""
    return Columns(
        np.frombuffer(table.priorities, "<i4"),
        np.frombuffer(table.flows, "<u8"),
        *(
            np.frombuffer(column, "<u4")
            for column in (
                table.requests,
                table.tokens,
                table.ages,
                table.running,
                table.dispatched,
                table.served,
            )
        ),
    )


def pack(bands: Iterable[Band], now: float, most: int) -> QueueTable:
    """The table of these bands, from the highest, with up to `most` rows, and one more for a band that doesn't fit. Of
    such a band the flows with the greatest demand have a row each."""
    rows: list[tuple[int, ...]] = []
    left = most
    for band in bands:
        named, rest = split(list(band.flows.values()), left)
        rows += [_row(band.priority, flow, now) for flow in named]
        if rest:
            rows.append(_sum(band.priority, [_row(band.priority, flow, now) for flow in rest]))
        left -= len(named)
    if not rows:
        return QueueTable()
    priorities, hashes, *counts = zip(*rows, strict=True)
    return QueueTable(
        priorities=np.array(priorities, "<i4").tobytes(),
        flows=np.array(hashes, "<u8").tobytes(),
        **{
            name: np.array(column, "<u4").tobytes()
            for name, column in zip(
                ("requests", "tokens", "ages", "running", "dispatched", "served"), counts, strict=True
            )
        },
    )


def split(flows: list[Flow], most: int) -> tuple[list[Flow], list[Flow]]:
    """(the flows with a row of their own, the others): those with the greatest demand have one, if not all have."""
    if len(flows) > most:
        flows = sorted(flows, key=lambda flow: -(flow.requests + flow.running))
    return flows[:most], flows[most:]


def _row(priority: int, flow: Flow, now: float) -> tuple[int, ...]:
    since = flow.head_since() if flow.requests else None
    return (
        priority,
        flow.hash,
        flow.requests,
        min(flow.tokens, _U32),
        0 if since is None else min(max(int((now - since) * 1000), 0), _U32),
        flow.running,
        flow.dispatched & _U32,
        flow.served & _U32,
    )


def _sum(priority: int, rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    """One row for these. Of its counters, only that they have changed says anything."""
    _, _, requests, tokens, ages, running, dispatched, served = zip(*rows, strict=True)
    counters = sum(dispatched) & _U32, sum(served) & _U32
    return (priority, REST, sum(requests), min(sum(tokens), _U32), max(ages), sum(running), *counters)
