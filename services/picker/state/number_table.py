"""All attributes of numbers of a layout, as two tables: one of values, one of sample times."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from services.picker.settings.limits import ViewLimits
from services.picker.state.layout import Floats, Mask, Rows
from services.picker.state.object_column import NEVER
from shared.attributes import REACHABLE, bounds_of

REMEMBERED = 64
"""Sets of attributes whose lines are remembered: a sender's frames mostly have the same."""
CELL = 16
"""Bytes of a value and its sample time."""


class NumberColumn:
    """An attribute of numbers: the newest value of each endpoint, and when it was sampled (monotonic seconds).

    The arrays are replaced, never changed: who reads them may keep them. They are read-only, so that a plugin which
    changes what it reads fails, instead of changing what others read.
    """

    __slots__ = ("_median", "at", "derived", "values")

    def __init__(self, values: Floats, at: Floats) -> None:
        values.flags.writeable = at.flags.writeable = False
        self.values, self.at = values, at
        self._median: float | None = None
        self.derived: dict[Any, Any] = {}
        """What readers have made of these very arrays, by whatever tells it apart; empty with the next ones."""

    @classmethod
    def absent(cls, size: int) -> "NumberColumn":
        """A column without values for so many endpoints."""
        return cls(np.full(size, np.nan), np.full(size, NEVER))

    @property
    def median(self) -> float:
        """The median of the endpoints' values, the lower of two middle ones: a few wrong values don't change it. 0 when
        no endpoint has a value."""
        if self._median is None:
            known = np.sort(self.values[self.at > NEVER])
            self._median = known.item((len(known) - 1) // 2) if len(known) else 0.0
        return self._median

    def replace(self, values: Floats, at: Floats) -> None:
        """Show these arrays from now on, which are read-only."""
        self.values, self.at = values, at
        self._median = None
        if self.derived:
            self.derived = {}


class NumberTable:
    """All attributes of numbers as two tables, a line an attribute: a frame is taken in with a few operations on all
    of its attributes together, where one after the other would cost each of them the overhead of a dozen.

    Attributes that plugins read have lines always, others as far as the limits allow: the oldest make room for those of
    a new frame, and what alone is too much of a frame is ignored.
    """

    __slots__ = ("_at", "_limits", "_lines", "_most", "_read", "_unreported", "_values", "columns", "size")

    def __init__(self, size: int, limits: ViewLimits) -> None:
        self.size = size
        self._limits = limits
        self._most = min(limits.attributes, limits.number_bytes // (CELL * max(size, 1)))
        """Attributes that no plugin reads."""
        self.columns: dict[str, NumberColumn] = {}
        """By wire name, in the order of the lines."""
        self._unreported: dict[str, NumberColumn] = {}
        """What is read and nobody reported: no lines, so that frames with all attributes there are have all lines."""
        self._values: Floats = np.empty((0, size))
        self._at: Floats = np.empty((0, size))
        self._lines: dict[tuple[str, ...], TableLines] = {}
        self._read: set[str] = set()

    def column(self, name: str) -> NumberColumn:
        """The column of this name, for a reader. Without reports, all its values are absent."""
        column = self.columns.get(name)
        if name not in self._read:
            self._read.add(name)
            self._lines.clear()  # frames may have been taken in without it
        return column or self._unreported.get(name) or self._unreported.setdefault(name, NumberColumn.absent(self.size))

    def lines(self, names: tuple[str, ...]) -> "TableLines":
        """The lines of those of a frame's attributes that are taken in."""
        lines = self._lines.get(names)
        if lines is None:
            taken = self._taken(names)
            if missing := [name for name in taken if name not in self.columns]:
                self._add(missing, taken)
            if len(self._lines) >= REMEMBERED:
                self._lines.clear()
            order = {name: line for line, name in enumerate(self.columns)}
            lines = self._lines[names] = TableLines(taken, [order[name] for name in taken])
        return lines

    def _taken(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """All that plugins read, and of the others as many as there is room for, those that are known first."""
        unread = [name for name in names if name not in self._read]
        if len(unread) <= self._most:
            return names
        unread.sort(key=lambda name: name not in self.columns)
        ignored = frozenset(unread[self._most :])
        return tuple([name for name in names if name not in ignored])

    def _add(self, names: Collection[str], wanted: tuple[str, ...]) -> None:
        """Lines for what is reported for the first time, in a frame with `wanted`."""
        room = self._most - sum(name not in self._read for name in wanted)
        lines_kept = self._lines_to_keep(self._at, room, frozenset(wanted))
        kept = np.array(lines_kept, np.intp)
        lines = len(kept) + len(names)
        values, at = np.full((lines, self.size), np.nan), np.full((lines, self.size), NEVER)
        for table, former in ((values, self._values), (at, self._at)):
            np.take(former, kept, axis=0, out=table[: len(kept)], mode="clip")
        known = list(self.columns.items())
        self.columns = dict(known[line] for line in lines_kept)
        for name in names:
            self.columns[name] = self._unreported.pop(name) if name in self._unreported else NumberColumn.absent(0)
        self._lines.clear()
        self._set_tables(values, at)

    def _lines_to_keep(self, at: Floats, room: int, wanted: Collection[str] = ()) -> list[int]:
        """The lines without those for which there is no room, of what nobody reads and isn't `wanted`: the ones whose
        newest sample in `at` is the oldest."""
        lines = range(len(self.columns))
        spare = [line for line, name in enumerate(self.columns) if name not in self._read and name not in wanted]
        if len(spare) <= room:
            return list(lines)
        newest = at.max(axis=1, initial=NEVER).tolist()
        gone = frozenset(sorted(spare, key=newest.__getitem__)[: len(spare) - room])
        return [line for line in lines if line not in gone]

    def _set_tables(self, values: Floats, at: Floats) -> None:
        """Have these tables from now on."""
        values.flags.writeable = at.flags.writeable = False  # and so are their lines
        self._values, self._at = values, at
        for column, line_values, line_at in zip(self.columns.values(), values, at, strict=True):
            column.replace(line_values, line_at)

    def put(self, lines: "TableLines", place: "FrameRows", values: Floats, at: Floats) -> Mask | None:
        """Take in what is newer and within the attribute's bounds. Shape of `values` and `at`: (lines, positions of the
        frame). Returns which numbers are beyond, in that shape; None where none is."""
        # NaN is within no bounds
        sound = values >= lines.minimum
        sound &= values <= lines.maximum
        out_of_range = None
        taken = np.count_nonzero(sound)
        whole = taken == sound.size
        if not whole:
            absent = np.isnan(values)
            if np.count_nonzero(absent) + taken < sound.size:
                out_of_range = ~(sound | absent)
        if place.partly:
            values, at, sound = values[:, place.positions], at[:, place.positions], sound[:, place.positions]
        everything = place.whole and len(lines.names) == len(self.columns) and lines.names == tuple(self.columns)
        cells = ... if everything else (lines.places, place.rows)
        former_values, former_at = self._values[cells], self._at[cells]
        newer = at > former_at
        if not whole:
            newer &= sound
        if np.count_nonzero(newer) < newer.size:
            values, at = np.where(newer, values, former_values), np.where(newer, at, former_at)
        if not everything:
            (all_values := self._values.copy())[cells] = values
            (all_at := self._at.copy())[cells] = at
            values, at = all_values, all_at
        self._set_tables(values, at)
        return out_of_range

    def drop(self, absent: Mapping[str, Rows], at: float) -> None:
        """As of `at`, these endpoints don't have these attributes. What was sampled later stays."""
        cells: list[tuple[int, Rows]] = []
        for line, (name, column) in enumerate(self.columns.items()):
            rows = absent.get(name)
            if rows is not None:
                sampled = column.at[rows]
                rows = rows[(sampled > NEVER) & (sampled <= at)]
                if len(rows):
                    cells.append((line, rows))
        if cells:
            values, at_all = self._values.copy(), self._at.copy()
            for line, rows in cells:
                values[line, rows], at_all[line, rows] = np.nan, NEVER
            self._set_tables(values, at_all)

    def moved(self, size: int, here: Rows, there: Rows) -> "NumberTable":
        """These columns in another layout: row `there[i]` is row `here[i]` in it, the others are absent. One that no
        endpoint has any more is left out, and so is what is too much for a layout of that size."""
        moved = NumberTable(size, self._limits)
        moved._read = self._read
        source = np.full(size, -1, np.intp)
        source[here] = there
        at = rearranged(self._at, source, NEVER)
        newest = at.max(axis=1, initial=NEVER).tolist()
        lines = [line for line in self._lines_to_keep(self._at, moved._most) if newest[line] > NEVER]
        everything = len(lines) == len(at)
        moved._at = at if everything else at[lines]
        moved._values = rearranged(self._values if everything else self._values[lines], source, np.nan)
        names = list(self.columns)
        tables = zip([names[line] for line in lines], moved._values, moved._at, strict=True)
        moved.columns = {name: NumberColumn(values, at) for name, values, at in tables}
        return moved

    def newest(self) -> Floats:
        """Each endpoint's newest sample time over all attributes; minus infinity when there is none. Whether the server
        can be reached isn't one of its metrics."""
        lines = [line for line, name in enumerate(self.columns) if name != REACHABLE.wire]
        newest: Floats = np.maximum.reduce(self._at[lines], axis=0, initial=NEVER)
        return newest


def rearranged(table: Floats, source: Rows, nothing: float) -> Floats:
    """The columns `source` of a table; -1 is a column of `nothing`."""
    if not table.size:
        return np.full((len(table), len(source)), nothing)
    found: Floats = np.take(table, source, axis=1, mode="clip")  # several times as fast as with a check
    found[:, source < 0] = nothing
    return found


class TableLines:
    """The lines of some attributes, and between which numbers the values are; shape of each: (attributes, 1)."""

    __slots__ = ("maximum", "minimum", "names", "places")

    def __init__(self, names: tuple[str, ...], places: list[int]) -> None:
        bounds = [bounds_of(name) for name in names]
        self.names = names
        self.places: Rows = np.array(places, np.intp)[:, np.newaxis]
        """Together with rows they are an index of cells."""
        self.minimum: Floats = np.array([bound.minimum for bound in bounds], np.float64)[:, np.newaxis]
        self.maximum: Floats = np.array([bound.maximum for bound in bounds], np.float64)[:, np.newaxis]


class FrameRows:
    """Where a frame's endpoints are in a layout: `rows` there, each once, and their `positions` in the frame."""

    __slots__ = ("partly", "positions", "rows", "whole")

    def __init__(self, rows: Rows, positions: Rows, length: int, size: int) -> None:
        self.rows = rows
        self.positions = positions
        self.whole = len(rows) == size and bool((rows == np.arange(size)).all())
        """Whether the frame has all endpoints of the layout, in its order."""
        self.partly = len(positions) != length
        """Whether the frame has endpoints that the layout doesn't, or one twice."""
