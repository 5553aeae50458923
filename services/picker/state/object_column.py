"""A column of values that aren't numbers."""

import math
from collections.abc import Callable
from sys import getsizeof
from typing import Any

import msgspec
import numpy as np

from services.picker.state.layout import Floats, Mask, Rows

OBJECT = 64
"""Bytes that an object of Python takes, about."""
ROW = 40
"""Bytes that a column takes for each endpoint besides its value: five arrays and lists."""
SLOTS = 16
"""Bytes that a list takes for each item, as it came and as a tuple."""
HELD, HOLDERS = 64, 320
"""Bytes that the index takes for each name of each value, and for each different name besides."""
_TEXTS = frozenset({str})
NEVER = -np.inf
"""When what is absent was sampled."""


class ObjectColumn:
    """An attribute whose values aren't numbers: mostly tuples of names. The endpoints with a name are indexed.

    A value for which there is no room is absent, and left out until a later one fits.
    """

    __slots__ = ("_holders", "_kind", "_raw", "_weights", "at", "counts", "left_out", "room", "values", "weight")

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self._raw: list[Any] = [None] * size
        """The values as frames have them, to see at a glance that a frame says nothing new."""
        self.at: Floats = np.full(size, NEVER)
        self.counts: Floats = np.zeros(size)
        """How many items each endpoint's value has; 0 where it is absent or no tuple."""
        self._holders: dict[str, set[int]] | None = None
        """By item: the endpoints that have it. None until somebody asks."""
        self._weights = [0] * size
        self.weight = ROW * size
        """Bytes that the column takes, about."""
        self.room: Callable[[], float] = _unlimited
        """How many more it may take."""
        self.left_out: set[int] = set()
        """The endpoints whose last value didn't fit."""
        self._kind: type[Any] = tuple

    def read_as(self, kind: type[Any]) -> None:
        """The values are of this kind: frames have structs as maps, and tuples as lists. A value that can't be read as
        one is absent."""
        if kind is not self._kind:
            self._kind = kind
            for row, raw in enumerate(self._raw):
                self._replace(row, raw)

    def holders(self, item: str) -> Mask:
        """For which endpoints the value is a tuple that contains `item`."""
        if self._holders is None:
            self._index()
        assert self._holders is not None
        mask = np.zeros(len(self.values), np.bool_)
        if rows := self._holders.get(item):
            mask[list(rows)] = True
        return mask

    def _index(self) -> None:
        self._holders = {}
        most, beyond = self.weight + self.room(), []
        for row, value in enumerate(self.values):
            names = _names(value)
            if names and self.weight + (HELD + HOLDERS) * len(names) > most:
                self.values[row] = None  # it isn't in the index
                self._replace(row, None)
                beyond.append(row)
            else:
                self._hold(row, names)
        if beyond:
            self.left_out.update(beyond)
            self.at = self.at.copy()
            self.at[beyond] = NEVER

    def _hold(self, row: int, names: set[str]) -> None:
        assert self._holders is not None
        holders, known = self._holders, len(self._holders)
        for item in names:
            rows = holders.get(item)
            if rows is None:
                holders[item] = {row}
            else:
                rows.add(row)
        self.weight += HELD * len(names) + HOLDERS * (len(holders) - known)

    def put(self, rows: Rows, values: list[Any], at: Floats) -> None:
        """Take in what is newer and not None. No row may come twice."""
        former = self.at[rows]
        newer = at > former
        raw = self._raw
        if values == [raw[row] for row in rows.tolist()]:
            # The same as ever, and where that is None there was never a value.
            newer &= former > NEVER
        else:
            most = self.weight + self.room()
            for place, (row, value, wanted) in enumerate(zip(rows.tolist(), values, newer.tolist(), strict=True)):
                if not wanted:
                    continue
                if value is None:
                    newer[place] = False
                elif value != raw[row]:
                    weight = _weight(value)
                    names = len(value) if isinstance(value, list | tuple) else 0
                    if self.weight - self._weights[row] + weight + (HELD + HOLDERS) * names <= most:
                        self._set(row, value, weight)
                        self.left_out.discard(row)
                    else:
                        self._set(row, None, 0)
                        self.left_out.add(row)
                        newer[place], former[place] = False, NEVER
        at_all = self.at.copy()
        at_all[rows] = np.where(newer, at, former)
        self.at = at_all

    def drop(self, rows: Rows, at: float) -> None:
        """As of `at`, these endpoints don't have it. What was sampled later stays."""
        if self.left_out:
            self.left_out.difference_update(rows.tolist())
        rows = rows[(self.at[rows] > NEVER) & (self.at[rows] <= at)]
        if len(rows):
            self.at = self.at.copy()
            self.at[rows] = NEVER
            for row in rows.tolist():
                self._replace(row, None)

    def place(self, row: int, value: Any, at: float) -> None:
        """Have this value there."""
        self._replace(row, value)
        self.at[row] = at

    def reported(self) -> tuple[list[Any], list[int], Floats]:
        """(the values as frames have them, the bytes of each, about, sample times), as they are now."""
        return self._raw.copy(), self._weights.copy(), self.at.copy()

    def moved(self, size: int, here: Rows, there: Rows) -> "ObjectColumn":
        """This column in another layout: row `there[i]` is row `here[i]` in it, the others are absent."""
        column = ObjectColumn(size)
        column._kind = self._kind
        source = np.full(size, -1, np.intp)
        source[here] = there
        rows = source.tolist()
        column.at[here], column.counts[here] = self.at[there], self.counts[there]
        # the last one, where row -1 finds it, is what an endpoint has that wasn't there
        column.values = list(map([*self.values, None].__getitem__, rows))
        column._raw = list(map([*self._raw, None].__getitem__, rows))
        column._weights = list(map([*self._weights, 0].__getitem__, rows))
        column.weight += sum(column._weights)
        if self.left_out:
            column.left_out = {row for row, former in enumerate(rows) if former in self.left_out}
        return column

    def _replace(self, row: int, raw: Any) -> None:
        self._set(row, raw, 0 if raw is None else _weight(raw))

    def _set(self, row: int, raw: Any, weight: int) -> None:
        self._raw[row] = raw
        value = _read(raw, self._kind)
        before, self.values[row] = self.values[row], value
        self.counts[row] = len(value) if isinstance(value, tuple) else 0
        self.weight += weight - self._weights[row]
        self._weights[row] = weight
        if self._holders is None:
            return
        former, names = _names(before), _names(value)
        self._hold(row, names - former)
        holders, known = self._holders, len(self._holders)
        gone = former - names
        for item in gone:
            rows = holders[item]
            rows.discard(row)
            if not rows:
                del holders[item]
        self.weight -= HELD * len(gone) + HOLDERS * (known - len(holders))


def _unlimited() -> float:
    return math.inf


def _weight(raw: Any) -> int:
    """Bytes of memory that a value takes, about."""
    if isinstance(raw, list | tuple) and _TEXTS.issuperset(map(type, raw)):
        return OBJECT + SLOTS * len(raw) + sum(map(getsizeof, raw))
    weight, rest = 0, [raw]
    while rest:
        item = rest.pop()
        weight += OBJECT
        if isinstance(item, str | bytes):
            weight += len(item)
        elif isinstance(item, list | tuple):
            rest += item
        elif isinstance(item, dict):
            rest += item
            rest += item.values()
    return weight


def _read(raw: Any, kind: type[Any]) -> Any:
    """A frame's value as one of that kind; None where it is none."""
    if isinstance(raw, kind) or raw is None:
        return raw
    if kind is tuple:
        return tuple(raw) if isinstance(raw, list) else raw
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError:
        return None


def _names(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, tuple) else set()
