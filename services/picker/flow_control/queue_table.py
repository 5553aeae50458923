"""The queue table: what waits and runs at one picker, as it travels with the picker's load.

Columns as in `shared.bus.columns`, one row for each flow of a band. A band with more flows than fit has one more row,
of flow 0, for the sum of the rest. The counters `dispatched` and `served` only grow, modulo 2^32, so a lost table loses
nothing; one that is smaller than before belongs to a flow that its sender had forgotten, and counts from 0.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from services.picker.flow_control.band import Band
from services.picker.flow_control.flow_columns import FlowColumns, Integers
from shared.bus.columns import pack_hashes, unpack_counts, unpack_hashes

MOST_ROWS = 10_000
"""Of a table that is taken in."""
REST = 0
"""The flow of a row that sums up others."""
COUNTS = ("requests", "tokens", "ages", "running", "dispatched", "served")
"""The columns of packed uint32."""
_U32 = 0xFFFFFFFF


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
        for name in ("priorities", *COUNTS):
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
        unpack_hashes(table.flows),
        *(unpack_counts(getattr(table, name)) for name in COUNTS),
    )


def pack(bands: Iterable[Band], now: float, most: int) -> QueueTable:
    """The table of these bands, from the highest, with up to `most` rows, and one more for a band that doesn't fit."""
    parts = []
    for band in bands:
        rows = summarize(band.columns, now, most)
        most = max(most - len(rows.flows), 0)
        parts.append((np.full(len(rows.flows), band.priority, "<i4"), *rows))
    priorities, flows, *counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return QueueTable(
        priorities=priorities.tobytes(),
        flows=pack_hashes(flows),
        **{name: (column & _U32).astype("<u4").tobytes() for name, column in zip(COUNTS, counts, strict=True)},
    )


class Summary(NamedTuple):
    """A band's rows, and the flow of each."""

    flows: Integers
    requests: Integers
    tokens: Integers
    ages: Integers
    running: Integers
    dispatched: Integers
    served: Integers


def summarize(columns: FlowColumns, now: float, most: int) -> Summary:
    """A row for each flow; or for the `most` flows with the greatest demand, and a sum of the rest. Counters are those
    since ever, times milliseconds, and nothing is greater than fits into a table."""
    flows, counts = columns.hashes, columns.counts
    ages = np.clip((now - columns.since) * 1000, 0, _U32).astype(np.int64)
    requests, tokens, running, dispatched, served = counts
    all_rows = [requests, np.minimum(tokens, _U32), ages, running, dispatched, served]
    if len(flows) <= most:
        return Summary(flows, *all_rows)
    order = np.argsort(-(requests + running), kind="stable")
    named, rest = order[:most], order[most:]
    sums = [column[rest].sum() for column in all_rows]
    sums[1], sums[2] = min(sums[1], _U32), ages[rest].max()
    return Summary(
        np.append(flows[named], np.uint64(REST)),
        *(np.append(column[named], total) for column, total in zip(all_rows, sums, strict=True)),
    )
