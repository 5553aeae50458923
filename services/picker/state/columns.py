"""The endpoints' attributes as columns: an array of values and an array of sample times for each attribute.

A value that an endpoint doesn't have is absent, never zero: NaN (or None) with a sample time of minus infinity, so that
"never" and "long ago" are one comparison. Frames upsert: of two collectors that both report an endpoint the newer
sample wins, and a value that is missing, or beyond its attribute's bounds, leaves the last one to age, unless the frame
says that the endpoint is known not to have it.

Attributes that the picker makes of the endpoints themselves are columns too, made anew with each layout. Where a frame
has one of that name, the picker's own goes before it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from services.picker.limits import LIMITS_OF_VIEW, ViewLimits
from services.picker.state.layout import Floats, Layout, Mask, Rows
from services.picker.state.object_column import NEVER, ObjectColumn
from shared.attributes import ALWAYS, REACHABLE, AttributeKey, AttributeMap, bounds_of
from shared.bus.columns import Ages, unpack_ages, unpack_floats
from shared.bus.messages import Frame

OnOutOfRange: TypeAlias = Callable[[str, str, str, float, int], None]
"""Called for numbers of a frame beyond their bounds, with the frame's sender, the attribute's wire name, one endpoint's
id, its number, and how many numbers of that attribute are beyond."""


REMEMBERED = 64
"""Sets of attributes whose lines are remembered: a sender's frames mostly have the same."""
REMEMBERED_IDS = 16 * 2**20
"""Characters of endpoints' ids, each with `ID_SPARE` more, of the frames whose places are remembered."""
ID_SPARE = 64


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
        """One that has no value of any of so many endpoints."""
        return cls(np.full(size, np.nan), np.full(size, NEVER))

    @property
    def median(self) -> float:
        """The middle one of the endpoints' values, the lower of two: whatever few of them say, it is what another one
        says. 0 when no endpoint has one."""
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
    of its attributes together, where one after the other would cost each of them the overhead of a dozen. Of more than
    `most` attributes, those that no plugin reads and whose newest sample is the oldest are dropped."""

    __slots__ = ("_at", "_lines", "_most", "_read", "_unreported", "_values", "columns", "size")

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self._most = most
        self.columns: dict[str, NumberColumn] = {}
        """By wire name, in the order of the lines."""
        self._unreported: dict[str, NumberColumn] = {}
        """What is read and nobody reported: no lines, so that frames with all attributes there are have all lines."""
        self._values: Floats = np.empty((0, size))
        self._at: Floats = np.empty((0, size))
        self._lines: dict[tuple[str, ...], TableLines] = {}
        self._read: set[str] = set()

    def column(self, name: str) -> NumberColumn:
        """The column of this name, for who reads it; one that nobody reported is all absent."""
        self._read.add(name)
        column = self.columns.get(name) or self._unreported.get(name)
        return column or self._unreported.setdefault(name, NumberColumn.absent(self.size))

    def _add(self, names: Sequence[str]) -> None:
        """Lines for what is reported for the first time."""
        for name in names:
            column = self._unreported.pop(name, None)
            self.columns[name] = NumberColumn.absent(self.size) if column is None else column
        self._lines.clear()
        more = (len(names), self.size)
        self._show(np.vstack((self._values, np.full(more, np.nan))), np.vstack((self._at, np.full(more, NEVER))))

    def _make_room(self, wanted: Collection[str]) -> None:
        """Leave out what is too much, of what nobody reads and isn't `wanted`."""
        newest = self._at.max(axis=1, initial=NEVER).tolist()
        spare = [
            (at, line)
            for line, (name, at) in enumerate(zip(self.columns, newest, strict=True))
            if name not in self._read and name not in wanted
        ]
        gone = {line for _, line in sorted(spare)[: len(self.columns) - self._most]}
        kept = [line for line in range(len(self.columns)) if line not in gone]
        self.columns = {name: column for line, (name, column) in enumerate(self.columns.items()) if line not in gone}
        self._lines.clear()
        self._show(self._values[kept], self._at[kept])

    def _show(self, values: Floats, at: Floats) -> None:
        """Have these tables from now on."""
        values.flags.writeable = at.flags.writeable = False  # and so are their lines
        self._values, self._at = values, at
        for column, line_values, line_at in zip(self.columns.values(), values, at, strict=True):
            column.replace(line_values, line_at)

    def put(self, names: tuple[str, ...], place: "FrameRows", values: Floats, at: Floats) -> Mask | None:
        """Take in what is newer and within the attribute's bounds. Shape of `values` and `at`: (names, positions of the
        frame). Returns which numbers are beyond, in that shape; None where none is."""
        lines = self._lines_of(names)
        # NaN is within no bounds
        sound = values >= lines.least
        sound &= values <= lines.most
        out_of_range = None
        taken = np.count_nonzero(sound)
        whole = taken == sound.size
        if not whole:
            absent = np.isnan(values)
            if np.count_nonzero(absent) + taken < sound.size:
                out_of_range = ~(sound | absent)
        if place.partly:
            values, at, sound = values[:, place.positions], at[:, place.positions], sound[:, place.positions]
        everything = place.whole and len(names) == len(self.columns) and names == tuple(self.columns)
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
        self._show(values, at)
        return out_of_range

    def drop(self, name: str, rows: Rows, at: float) -> None:
        """As of `at`, these endpoints don't have it. What was sampled later stays."""
        column = self.columns.get(name)
        if column is None:
            return
        rows = rows[(column.at[rows] > NEVER) & (column.at[rows] <= at)]
        if not len(rows):
            return
        line = list(self.columns).index(name)
        values, at_all = self._values.copy(), self._at.copy()
        values[line, rows], at_all[line, rows] = np.nan, NEVER
        self._show(values, at_all)

    def moved(self, size: int, here: Rows, there: Rows) -> "NumberTable":
        """These columns in another layout: row `there[i]` is row `here[i]` in it, the others are absent. One that no
        endpoint has any more is left out."""
        moved = NumberTable(size, self._most)
        moved._read = self._read
        at = self._at[:, there]
        kept = np.flatnonzero((at > NEVER).any(axis=1))
        moved._values = np.full((len(kept), size), np.nan)
        moved._at = np.full((len(kept), size), NEVER)
        moved._values[:, here] = self._values[np.ix_(kept, there)]
        moved._at[:, here] = at[kept]
        names = list(self.columns)
        tables = zip([names[line] for line in kept.tolist()], moved._values, moved._at, strict=True)
        moved.columns = {name: NumberColumn(values, at) for name, values, at in tables}
        return moved

    def newest(self) -> Floats:
        """Each endpoint's newest sample time over all attributes; minus infinity when there is none. Whether the server
        can be reached isn't one of its metrics."""
        lines = [line for line, name in enumerate(self.columns) if name != REACHABLE.wire]
        newest: Floats = np.maximum.reduce(self._at[lines], axis=0, initial=NEVER)
        return newest

    def _lines_of(self, names: tuple[str, ...]) -> "TableLines":
        """Where these attributes are."""
        lines = self._lines.get(names)
        if lines is None:
            if missing := [name for name in names if name not in self.columns]:
                self._add(missing)
                if len(self.columns) > self._most:
                    self._make_room(frozenset(names))
            if len(self._lines) >= REMEMBERED:
                self._lines.clear()
            order = {name: line for line, name in enumerate(self.columns)}
            lines = self._lines[names] = TableLines(names, [order[name] for name in names])
        return lines


class TableLines:
    """The lines of some attributes, and between which numbers the values are; shape of each: (attributes, 1)."""

    __slots__ = ("least", "most", "places")

    def __init__(self, names: tuple[str, ...], places: list[int]) -> None:
        bounds = [bounds_of(name) for name in names]
        self.places: Rows = np.array(places, np.intp)[:, np.newaxis]
        """Together with rows they are an index of cells."""
        self.least: Floats = np.array([bound.least for bound in bounds], np.float64)[:, np.newaxis]
        self.most: Floats = np.array([bound.most for bound in bounds], np.float64)[:, np.newaxis]


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


class Columns:
    """All attributes of all endpoints of a layout, by the attribute's wire name."""

    def __init__(self, on_out_of_range: OnOutOfRange = lambda *_: None, limits: ViewLimits = LIMITS_OF_VIEW) -> None:
        self._layout = Layout()
        self._limits = limits
        self._on_out_of_range = on_out_of_range
        self._numbers = NumberTable(0, limits.attributes)
        self._objects: dict[str, ObjectColumn] = {}
        self._read: set[str] = set()
        """Those of them that plugins read."""
        self._own_numbers: dict[str, NumberColumn] = {}
        """Of what the picker itself makes of the endpoints."""
        self._own_objects: dict[str, ObjectColumn] = {}
        self._places: dict[tuple[str, ...], FrameRows] = {}
        self._remembered = 0
        """Characters of the ids in them."""
        self.frames = 0

    def relayout(self, layout: Layout) -> None:
        """Take the arrays over to a new layout: endpoints that stayed keep their samples, new ones have none.

        The picker's own attributes are to be told again by `own`.
        """
        here, there = layout.moved_from(self._layout)
        self._numbers = self._numbers.moved(len(layout), here, there)
        moved = {name: column.moved(len(layout), here, there) for name, column in self._objects.items()}
        self._objects = {name: column for name, column in moved.items() if (column.at > NEVER).any()}
        self._own_numbers, self._own_objects = {}, {}
        self._layout = layout
        self._places.clear()
        self._remembered = 0

    def own(self, made: Mapping[str, AttributeMap]) -> None:
        """What the picker itself makes of the endpoints, by id: all of it, in the place of what it was before."""
        size = len(self._layout)
        numbers: dict[str, tuple[Floats, Floats]] = {}
        self._own_objects = {}
        for id, attributes in made.items():
            row = self._layout.index.get(id)
            for key, sample in attributes.items():
                if row is None or sample.value is None:
                    continue
                if key.kind is float:
                    values, at = numbers.setdefault(key.wire, (np.full(size, np.nan), np.full(size, NEVER)))
                    values[row], at[row] = sample.value, sample.at
                else:
                    column = self._own_objects.setdefault(key.wire, ObjectColumn(size))
                    column.place(row, sample.value, sample.at)
        self._own_numbers = {name: NumberColumn(values, at) for name, (values, at) in numbers.items()}

    def apply(self, frame: Frame, now: float, extra_age: float) -> None:
        """Take in a sound frame that arrived at `now` and was `extra_age` seconds longer under way than usual.

        Endpoints that the layout doesn't have are skipped.
        """
        self.frames += 1
        place = self._place(frame.ids)
        if not len(place.rows):
            return
        names = tuple(frame.columns)
        if names:
            shape = (len(names), len(frame.ids))
            ages = unpack_ages(b"".join([frame.ages[name] for name in names])).reshape(shape)
            values = unpack_floats(b"".join(frame.columns.values())).reshape(shape)
            out_of_range = self._numbers.put(names, place, values, _sampled(now - extra_age, ages))
            if out_of_range is not None:
                self._tell(frame, names, values, out_of_range)
        for name, objects in frame.objects.items():
            at = _sampled(now - extra_age, unpack_ages(frame.ages[name]))
            if place.partly:
                objects, at = [objects[position] for position in place.positions.tolist()], at[place.positions]
            if name not in self._read:
                self._make_room(name)
            self._reported(name).put(place.rows, objects, at)
        for name, positions in frame.absent.items():
            rows = place.rows[np.isin(place.positions, positions)]
            self._numbers.drop(name, rows, now - extra_age)
            if name in self._objects:
                self._objects[name].drop(rows, now - extra_age)

    def _tell(self, frame: Frame, names: tuple[str, ...], values: Floats, out_of_range: Mask) -> None:
        """Of each attribute with numbers beyond its bounds, one of them."""
        for line in np.flatnonzero(out_of_range.any(axis=1)).tolist():
            where = np.flatnonzero(out_of_range[line])
            first = where.item(0)
            self._on_out_of_range(frame.sender, names[line], frame.ids[first], values.item(line, first), len(where))

    def numbers(self, name: str) -> NumberColumn:
        """The column of an attribute of numbers; all absent when nobody reported it."""
        return self._own_numbers.get(name) or self._numbers.column(name)

    def objects(self, key: AttributeKey[Any]) -> ObjectColumn:
        """The column of an attribute whose values aren't numbers but of the key's kind; all absent when nobody reported
        it."""
        own = self._own_objects.get(key.wire)
        if own is not None:
            return own
        self._read.add(key.wire)
        column = self._reported(key.wire)
        column.read_as(key.kind)
        return column

    def _make_room(self, name: str) -> None:
        """Let go of what nobody reads where that is too much, or there are too many attributes for one of this name."""
        unread = {other: column for other, column in self._objects.items() if other not in self._read}
        more = name not in self._objects and len(unread) >= max(1, self._limits.attributes // 8)
        if more or sum(column.weight for column in unread.values()) > self._limits.attribute_bytes:
            self._objects = {other: column for other, column in self._objects.items() if other in self._read}

    def _reported(self, name: str) -> ObjectColumn:
        return self._objects.get(name) or self._objects.setdefault(name, ObjectColumn(len(self._layout)))

    def of(self, row: int, now: float) -> dict[str, dict[str, Any]]:
        """Every attribute that one endpoint has: `{wire name: {value, age}}`, ages in seconds."""
        known: dict[str, dict[str, Any]] = {}
        for name, column in self._columns().items():
            if column.at[row] > NEVER:
                value, at = column.values[row], float(column.at[row])
                known[name] = {
                    "value": float(value) if isinstance(column, NumberColumn) else value,
                    "age": 0.0 if at == ALWAYS else round(now - at, 4),
                }
        return known

    def _columns(self) -> dict[str, NumberColumn | ObjectColumn]:
        return {**self._numbers.columns, **self._objects, **self._own_numbers, **self._own_objects}

    def newest(self) -> Floats:
        """Each endpoint's newest sample time over all attributes that were reported; minus infinity when there is
        none."""
        newest = self._numbers.newest()
        for column in self._objects.values():
            np.maximum(newest, column.at, out=newest)
        return newest

    def _place(self, ids: tuple[str, ...]) -> FrameRows:
        place = self._places.get(ids)
        if place is None:
            found = {row: at for at, id in enumerate(ids) if (row := self._layout.index.get(id)) is not None}
            rows = np.fromiter(found.keys(), np.intp, len(found))
            positions = np.fromiter(found.values(), np.intp, len(found))
            place = FrameRows(rows, positions, len(ids), len(self._layout))
            if found:
                size = sum(map(len, ids)) + ID_SPARE * len(ids)
                # parts that changed their members leave their former ids behind
                if self._remembered + size > REMEMBERED_IDS or len(self._places) > 4 * (1 + len(self._layout)):
                    self._places.clear()
                    self._remembered = 0
                self._places[ids] = place
                self._remembered += size
        return place

    def __repr__(self) -> str:
        return f"<Columns {len(self._columns())} attributes of {len(self._layout)} endpoints, {self.frames} frames>"


def _sampled(sent: float, ages: Ages) -> Floats:
    """When values of these ages were sampled; an age below zero would make a sample that nothing newer could replace.
    Shape: that of `ages`."""
    at: Floats = np.subtract(sent, np.maximum(ages, 0.0), dtype=np.float64)
    return at
