"""Packs what waits and runs here into the queue table that peers get, and unpacks theirs."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from services.picker.flow_control.band import Band
from services.picker.flow_control.flow_columns import FlowColumns, Integers
from shared.bus.columns import pack_hashes, unpack_counts, unpack_hashes
from shared.bus.messages import QUEUE_COUNTS, QueueTable

REST = 0
"""The flow of a row that sums up others."""
_U32 = 0xFFFFFFFF


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
        *(unpack_counts(getattr(table, name)) for name in QUEUE_COUNTS),
    )


def pack(bands: Iterable[Band], now: float, most: int) -> QueueTable:
    """The table of these bands, at most `MAX_BANDS` from the highest, with up to `most` rows, and one more for a band
    that doesn't fit."""
    parts = [(np.zeros(0, "<i4"), *summarize(FlowColumns(), now, 0))]
    for band in bands:
        rows = summarize(band.columns, now, most)
        most = max(most - len(rows.flows), 0)
        parts.append((np.full(len(rows.flows), band.priority, "<i4"), *rows))
    priorities, flows, *counts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return QueueTable(
        priorities=priorities.tobytes(),
        flows=pack_hashes(flows),
        **{name: (column & _U32).astype("<u4").tobytes() for name, column in zip(QUEUE_COUNTS, counts, strict=True)},
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
    requests, tokens, running, dispatched, served, _ = counts
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
