"""The flows of a band as arrays, one row a flow: what tables and quotas are made of without a look at every flow.

Rows of flows that have changed are written when the arrays are read, so a request costs no more than a note.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from services.picker.flow_control.flow import Flow, Size
from services.picker.state.layout import Floats

Integers: TypeAlias = NDArray[Any]
"""Numbers of the width that the place needs."""
_AT_FIRST = 16


class FlowColumns:
    """The arrays; rows keep their place until a flow is removed, whose place the last row takes."""

    def __init__(self) -> None:
        self._flows: list[Flow] = []
        self._rows: dict[Flow, int] = {}
        self._changed: set[Flow] = set()
        self.changed: Callable[[Flow], None] = self._changed.add
        """To be called when a flow has changed."""
        self._hashes: Integers = np.zeros(_AT_FIRST, np.uint64)
        self._counts: Integers = np.zeros((6, _AT_FIRST), np.int64)
        self._since: Floats = np.zeros(_AT_FIRST)

    def add(self, flow: Flow) -> None:
        row = len(self._flows)
        if row == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, self._hashes])
            self._since = np.concatenate([self._since, self._since])
            self._counts = np.concatenate([self._counts, self._counts], axis=1)
        self._flows.append(flow)
        self._rows[flow] = row
        self._changed.add(flow)
        self._hashes[row] = flow.hash

    def remove(self, flow: Flow) -> None:
        row, last = self._rows.pop(flow), self._flows.pop()
        self._changed.discard(flow)
        if last is not flow:
            self._flows[row] = last
            self._rows[last] = row
            for column in (self._hashes, self._since, *self._counts):
                column[row] = column[len(self._flows)]

    @property
    def hashes(self) -> Integers:
        return self._hashes[: len(self._flows)]

    @property
    def counts(self) -> Integers:
        """Rows of this array are requests, tokens, running, dispatched, served and bytes; its columns are flows."""
        self._write()
        return self._counts[:, : len(self._flows)]

    def fullest(self, what: Size) -> Flow:
        """The flow of which the most requests, or bytes, wait. There must be a flow."""
        return self._flows[int(self.counts[0 if what == "requests" else 5].argmax())]

    @property
    def since(self) -> Floats:
        """When each flow's first request was queued; infinite where none waits."""
        self._write()
        return self._since[: len(self._flows)]

    def _write(self) -> None:
        for flow in self._changed:
            row = self._rows[flow]
            since = flow.head_since()
            self._since[row] = np.inf if since is None else since
            counts = flow.requests, flow.tokens, flow.running, flow.dispatched, flow.served, flow.bytes
            self._counts[:, row] = counts
        self._changed.clear()

    def __len__(self) -> int:
        return len(self._flows)

    def __repr__(self) -> str:
        return f"<FlowColumns {len(self)} flows>"
