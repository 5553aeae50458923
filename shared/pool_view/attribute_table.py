"""Attributes of endpoints as arrays, each value with the time of its sample. Pure.

Frames update: the newer sample of a value holds, and a value that is missing or out of its bounds leaves the last one
to age, as at the pickers. Of attributes that aren't numbers, only lists of names that are shown are kept.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from sys import getsizeof
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from shared.attributes import (
    ACTIVE_MODELS,
    KV_CACHE_USAGE,
    REACHABLE,
    RUNNING_REQUESTS_SIZE,
    SERVED_MODELS,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    bounds_of,
)
from shared.bus.columns import Floats, unpack_ages, unpack_floats
from shared.bus.messages import Frame
from shared.pool_view.rows import AttributeValue

Rows: TypeAlias = NDArray[np.intp]

IN_ROWS = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, REACHABLE)
"""The numbers in the rows of endpoints. They always have a place."""
MAX_ATTRIBUTES = 256
"""Other attributes of numbers that are kept. The oldest make room for those of a new frame."""
REMEMBERED, PLACE = 16 * 2**20, 1000
"""Bytes of the ids of frames whose rows are remembered, each frame with so many more. A collector's frames mostly have
the same ids."""
LISTS = frozenset({ACTIVE_MODELS.wire, WAITING_MODELS.wire, SERVED_MODELS.wire})
MAX_NAMES, MAX_NAME = 100, 256
"""Of a list that is kept, and characters of each of its names."""
NEVER = -np.inf
_NONE: tuple[tuple[str, ...], float] = (), NEVER
_IN_ROWS = frozenset(key.wire for key in IN_ROWS)


class AttributeTable:
    """Rows are those of the endpoints' ids, in the order of the last `relayout`."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._values: dict[str, Floats] = {}
        self._at: dict[str, Floats] = {}
        self._lists: dict[str, dict[str, tuple[tuple[str, ...], float]]] = {name: {} for name in LISTS}
        """By endpoint id: the names, and when they were seen."""
        self._places: dict[tuple[str, ...], tuple[Rows, Rows]] = {}
        self._remembered = 0
        """Bytes of the ids in them."""
        self._senders: dict[str, str] = {}
        """By endpoint id: the collector of the last frame."""

    def relayout(self, index: Mapping[str, int]) -> None:
        """These endpoints, by id: their rows, which count from 0. Those that stay keep their attributes."""
        source = np.fromiter((self._index.get(id, -1) for id in index), np.intp, len(index))
        stays = source >= 0
        for arrays, nothing in ((self._values, np.nan), (self._at, NEVER)):
            for name, column in arrays.items():
                moved = arrays[name] = np.full(len(index), nothing)
                moved[stays] = column[source[stays]]
        for kept in (*self._lists.values(), self._senders):
            for id in self._index.keys() - index.keys():
                kept.pop(id, None)  # type: ignore[attr-defined]
        self._index = dict(index)
        self._places.clear()
        self._remembered = 0

    def apply(self, frame: Frame, now: float, extra_age: float) -> None:
        """Apply a valid frame that arrived at `now` and took `extra_age` seconds longer than usual."""
        rows, positions = self._place(frame.ids)
        if not len(rows):
            return
        sent = now - extra_age
        for position in positions.tolist():
            self._senders[frame.ids[position]] = frame.sender
        for name in self._taken(frame.columns.keys()):
            values, at = self._column(name), self._at[name]
            new, bounds = unpack_floats(frame.columns[name])[positions], bounds_of(name)
            sampled = sent - np.maximum(unpack_ages(frame.ages[name])[positions].astype(np.float64), 0.0)
            taken = (new >= bounds.minimum) & (new <= bounds.maximum) & (sampled > at[rows])
            values[rows[taken]], at[rows[taken]] = new[taken], sampled[taken]
        for name in LISTS & frame.objects.keys():
            ages, lists = unpack_ages(frame.ages[name]), self._lists[name]
            for position in positions.tolist():
                names, seen = _names(frame.objects[name][position]), sent - max(ages.item(position), 0.0)
                if names is not None and seen > lists.get(frame.ids[position], _NONE)[1]:
                    lists[frame.ids[position]] = names, seen
        for name, absent in frame.absent.items():
            ids = [id for position in absent if (id := frame.ids[position]) in self._index]
            if name in self._values:
                gone = np.fromiter((self._index[id] for id in ids), np.intp, len(ids))
                gone = gone[self._at[name][gone] <= sent]
                self._values[name][gone], self._at[name][gone] = np.nan, NEVER
            lists = self._lists.get(name, {})
            for id in ids:
                if lists.get(id, _NONE)[1] <= sent:
                    lists.pop(id, None)

    def numbers(self, name: str) -> tuple[list[float], list[float]]:
        """Values, NaN where there is none, and times of an attribute of numbers, by its wire name."""
        if name not in self._values:
            size = len(self._index)
            return [np.nan] * size, [NEVER] * size
        return self._values[name].tolist(), self._at[name].tolist()

    def names(self, name: str, id: str) -> tuple[str, ...]:
        """The list of an endpoint; empty where there is none."""
        found = self._lists[name].get(id)
        return () if found is None else found[0]

    def sender(self, id: str) -> str:
        """The collector of the endpoint's last frame."""
        return self._senders.get(id, "")

    def senders(self) -> Iterable[str]:
        """Of each endpoint."""
        return self._senders.values()

    def of(self, id: str, now: float) -> dict[str, AttributeValue]:
        """All attributes of an endpoint, by wire name."""
        row = self._index.get(id)
        if row is None:
            return {}
        known: dict[str, AttributeValue] = {
            name: AttributeValue(values.item(row), max(0.0, now - self._at[name].item(row)))
            for name, values in self._values.items()
            if self._at[name].item(row) > NEVER
        }
        for name, lists in self._lists.items():
            if id in lists:
                names, at = lists[id]
                known[name] = AttributeValue(names, max(0.0, now - at))
        return known

    def _taken(self, names: Set[str]) -> Collection[str]:
        """Which of a frame's attributes of numbers are taken in: those in rows, and of the others as many as there is
        room for, those that are known first. The ones whose newest sample is the oldest make room for them."""
        if names <= self._values.keys():
            return names
        others = sorted((name for name in names if name not in _IN_ROWS), key=lambda name: name not in self._values)
        taken = _IN_ROWS.union(others[:MAX_ATTRIBUTES])
        spare = [name for name in self._values if name not in taken]
        room = MAX_ATTRIBUTES - len(taken - _IN_ROWS)
        spare.sort(key=lambda name: self._at[name].max(initial=NEVER).item(), reverse=True)
        for name in spare[room:]:
            del self._values[name], self._at[name]
        return [name for name in names if name in taken]

    def _column(self, name: str) -> Floats:
        if name not in self._values:
            self._values[name] = np.full(len(self._index), np.nan)
            self._at[name] = np.full(len(self._index), NEVER)
        return self._values[name]

    def _place(self, ids: tuple[str, ...]) -> tuple[Rows, Rows]:
        """Rows of a frame's endpoints that are known, and their positions in it."""
        place = self._places.get(ids)
        if place is None:
            found = {row: position for position, id in enumerate(ids) if (row := self._index.get(id)) is not None}
            place = (
                np.fromiter(found.keys(), np.intp, len(found)),
                np.fromiter(found.values(), np.intp, len(found)),
            )
            if found:
                size = PLACE + sum(map(getsizeof, ids))
                if self._remembered + size > REMEMBERED:
                    self._places.clear()
                    self._remembered = 0
                self._places[ids] = place
                self._remembered += size
        return place

    def __repr__(self) -> str:
        return f"<AttributeTable {len(self._values)} attributes of {len(self._index)} endpoints>"


def _names(value: object) -> tuple[str, ...] | None:
    """The first names of a list, as it came, each cut; None for anything else."""
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        return None
    return tuple([name[:MAX_NAME] for name in value[:MAX_NAMES]])
