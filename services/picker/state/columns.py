"""The endpoints' attributes as columns: an array of values and an array of sample times for each attribute.

A value that an endpoint doesn't have is absent, never zero: NaN (or None) with a sample time of minus infinity, so that
"never" and "long ago" are one comparison. Frames upsert: of two collectors that both report an endpoint the newer
sample wins, and a value that is missing, or beyond its attribute's bounds, leaves the last one to age, unless the frame
says that the endpoint is known not to have it.

Attributes that the picker makes of the endpoints themselves are columns too. Where a frame has one of that name, the
picker's own goes before it.
"""

from collections.abc import Callable, Iterable, Mapping
from sys import getsizeof
from typing import Any, TypeAlias

import numpy as np

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS, ViewLimits
from services.picker.state.layout import Floats, Layout, Mask, Rows
from services.picker.state.number_table import FrameRows, NumberColumn, NumberTable, rearranged
from services.picker.state.object_column import NEVER, ROW, ObjectColumn
from shared.attributes import ALWAYS, AttributeKey, AttributeMap
from shared.bus.columns import Ages, unpack_ages, unpack_floats
from shared.bus.messages import Frame

OnOutOfRange: TypeAlias = Callable[[str, str, str, float, int], None]
"""Called for numbers of a frame beyond their bounds, with the frame's sender, the attribute's wire name, one endpoint's
id, its number, and how many numbers of that attribute are beyond."""


REMEMBERED_IDS = 16 * 2**20
"""Bytes of endpoints' ids of the frames whose places are remembered."""


class Columns:
    """All attributes of all endpoints of a layout, by the attribute's wire name."""

    def __init__(
        self, on_out_of_range: OnOutOfRange = lambda *_: None, limits: ViewLimits = DEFAULT_VIEW_LIMITS
    ) -> None:
        self._layout = Layout()
        self._limits = limits
        self._on_out_of_range = on_out_of_range
        self._numbers = NumberTable(0, limits)
        self._objects: dict[str, ObjectColumn] = {}
        self._max_objects = 0
        """Of those, how many that no plugin reads."""
        self._read: set[str] = set()
        """Those of them that plugins read."""
        self._own_numbers: dict[str, NumberColumn] = {}
        """Of what the picker itself makes of the endpoints."""
        self._own_objects: dict[str, ObjectColumn] = {}
        self._places: dict[tuple[str, ...], FrameRows] = {}
        self._remembered = 0
        """Bytes of the ids in them."""
        self.frames = 0

    def relayout(self, layout: Layout) -> None:
        """Take the arrays over to a new layout: endpoints that stayed keep their samples, new ones have none, also of
        the picker's own attributes."""
        here, there = layout.moved_from(self._layout)
        source = np.full(len(layout), -1, np.intp)
        source[here] = there
        self._numbers = self._numbers.moved(len(layout), here, there)
        moved = {name: column.moved(len(layout), here, there) for name, column in self._objects.items()}
        self._objects = {name: column for name, column in moved.items() if (column.at > NEVER).any()}
        self._own_numbers = {
            name: NumberColumn(*(rearranged(table[np.newaxis], source, nothing)[0] for table, nothing in tables))
            for name, column in self._own_numbers.items()
            for tables in [((column.values, np.nan), (column.at, NEVER))]
        }
        self._own_objects = {name: column.moved(len(layout), here, there) for name, column in self._own_objects.items()}
        self._max_objects = min(
            max(1, self._limits.attributes // 8), self._limits.attribute_bytes // (ROW * max(1, len(layout)))
        )
        self._layout = layout
        self._places.clear()
        self._remembered = 0

    def own(self, made: Mapping[str, AttributeMap | None]) -> None:
        """Set the attributes that the picker itself derives from these endpoints, by id. They replace the former
        ones."""
        rows = {row: made[id] for id in made if (row := self._layout.index.get(id)) is not None}
        changed = np.fromiter(rows, np.intp, len(rows))
        numbers: dict[str, tuple[Floats, Floats]] = {}
        for name, column in self._own_numbers.items():
            numbers[name] = values, at = column.values.copy(), column.at.copy()
            values[changed], at[changed] = np.nan, NEVER
        for own in self._own_objects.values():
            own.drop(changed, ALWAYS)
            own.at = own.at.copy()
        size = len(self._layout)
        for row, attributes in rows.items():
            for key, sample in attributes.items() if attributes is not None else ():
                if sample.value is None:
                    continue
                if key.kind is float:
                    if key.wire not in numbers:
                        numbers[key.wire] = np.full(size, np.nan), np.full(size, NEVER)
                    values, at = numbers[key.wire]
                    values[row], at[row] = sample.value, sample.at
                else:
                    own = self._own_objects.get(key.wire) or self._own_objects.setdefault(key.wire, ObjectColumn(size))
                    own.place(row, sample.value, sample.at)
        self._own_numbers = {name: NumberColumn(*arrays) for name, arrays in numbers.items() if _any(arrays[1])}
        self._own_objects = {name: own for name, own in self._own_objects.items() if _any(own.at)}

    def apply(self, frame: Frame, now: float, extra_age: float) -> None:
        """Apply a valid frame that arrived at `now` and took `extra_age` seconds longer than usual.

        Endpoints that the layout doesn't have are skipped.
        """
        self.frames += 1
        place = self._place(frame.ids)
        if not len(place.rows):
            return
        if frame.columns:
            lines = self._numbers.lines(tuple(frame.columns))
            names = lines.names
            shape = (len(names), len(frame.ids))
            ages = unpack_ages(b"".join([frame.ages[name] for name in names])).reshape(shape)
            values = unpack_floats(b"".join([frame.columns[name] for name in names])).reshape(shape)
            out_of_range = self._numbers.put(lines, place, values, _sampled(now - extra_age, ages)) if names else None
            if out_of_range is not None:
                self._report_out_of_range(frame, names, values, out_of_range)
        for name in self._taken(frame.objects):
            objects, at = frame.objects[name], _sampled(now - extra_age, unpack_ages(frame.ages[name]))
            if place.partly:
                objects, at = [objects[position] for position in place.positions.tolist()], at[place.positions]
            self._reported(name).put(place.rows, objects, at)
        if frame.absent:
            self._drop(frame, place, now - extra_age)

    def _drop(self, frame: Frame, place: FrameRows, at: float) -> None:
        """As of `at`, endpoints are known not to have what the frame says."""
        absent: dict[str, Rows] = {}
        for name, positions in frame.absent.items():
            if name in self._numbers.columns or name in self._objects:
                is_absent = np.zeros(len(frame.ids), np.bool_)
                is_absent[positions] = True
                absent[name] = place.rows[is_absent[place.positions]]
        self._numbers.drop(absent, at)
        for name in absent.keys() & self._objects.keys():
            self._objects[name].drop(absent[name], at)

    def _report_out_of_range(self, frame: Frame, names: tuple[str, ...], values: Floats, out_of_range: Mask) -> None:
        """Of each attribute with numbers beyond its bounds, one of them."""
        for line in np.flatnonzero(out_of_range.any(axis=1)).tolist():
            where = np.flatnonzero(out_of_range[line])
            first = where.item(0)
            self._on_out_of_range(frame.sender, names[line], frame.ids[first], values.item(line, first), len(where))

    def numbers(self, name: str) -> NumberColumn:
        """The column of an attribute of numbers; all absent if no frame has it."""
        return self._own_numbers.get(name) or self._numbers.column(name)

    def objects(self, key: AttributeKey[Any]) -> ObjectColumn:
        """The column of an attribute whose values aren't numbers but of the key's kind; all absent if no frame has
        it."""
        own = self._own_objects.get(key.wire)
        if own is not None:
            return own
        self._read.add(key.wire)
        column = self._reported(key.wire)
        column.read_as(key.kind)
        return column

    def _taken(self, names: Iterable[str]) -> list[str]:
        """Which of a frame's attributes that aren't numbers are taken in: all that plugins read, and of the others as
        many as there is room for, those that are known first. Those that nobody reads make room for them."""
        taken = [name for name in names if name in self._read]
        unread = [name for name in names if name not in self._read]
        if unread:
            unread = sorted(unread, key=lambda name: name not in self._objects)[: self._max_objects]
            kept = {name: column for name, column in self._objects.items() if name not in self._read}
            many = len(kept.keys() | unread) > self._max_objects
            if many or sum(len(name) + column.weight for name, column in kept.items()) > self._limits.attribute_bytes:
                gone = kept.keys() - unread if many else kept.keys()
                self._objects = {name: column for name, column in self._objects.items() if name not in gone}
        return taken + unread

    def _reported(self, name: str) -> ObjectColumn:
        column = self._objects.get(name) or self._objects.setdefault(name, ObjectColumn(len(self._layout)))
        if name in self._read:
            column.room = self._room
        return column

    def _room(self) -> float:
        """Bytes that the columns which plugins read may take in addition."""
        return self._limits.read_bytes - sum(self._objects[name].weight for name in self._read & self._objects.keys())

    @property
    def left_out(self) -> dict[str, int]:
        """For how many endpoints there was no room for the last value of an attribute that plugins read, by wire
        name."""
        read = sorted(self._read & self._objects.keys())
        return {name: count for name in read if (count := len(self._objects[name].left_out))}

    def note(self) -> str | None:
        """What `/readyz` mentions: the attributes that endpoints have, and for which there is no room."""
        found = [f"{name} of {count} endpoints" for name, count in self.left_out.items()]
        return f"left out, beyond twice --max-attribute-bytes: {', '.join(found)}" if found else None

    def of(self, row: int, now: float) -> dict[str, dict[str, Any]]:
        """Every attribute that one endpoint has: `{wire name: {value, age}}`, ages in seconds."""
        known: dict[str, dict[str, Any]] = {}
        for name, column in self.known().items():
            if column.at[row] > NEVER:
                value, at = column.values[row], float(column.at[row])
                known[name] = {
                    "value": float(value) if isinstance(column, NumberColumn) else value,
                    "age": 0.0 if at == ALWAYS else round(now - at, 4),
                }
        return known

    def known(self) -> dict[str, NumberColumn | ObjectColumn]:
        """Every reported column, by wire name, for readers that aren't plugins: reading it keeps no column. Of a name
        that was reported both as a number and as something else, the column that plugins read, or that has news."""
        reported: dict[str, NumberColumn | ObjectColumn] = {**self._numbers.columns}
        for name, column in self._objects.items():
            number = reported.get(name)
            if number is None or name in self._read or column.at.max(initial=NEVER) > number.at.max(initial=NEVER):
                reported[name] = column
        return {**reported, **self._own_numbers, **self._own_objects}

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
                size = sum(map(getsizeof, ids))
                # parts that changed their members leave their former ids behind
                if self._remembered + size > REMEMBERED_IDS or len(self._places) > 4 * (1 + len(self._layout)):
                    self._places.clear()
                    self._remembered = 0
                self._places[ids] = place
                self._remembered += size
        return place

    def __repr__(self) -> str:
        return f"<Columns {len(self.known())} attributes of {len(self._layout)} endpoints, {self.frames} frames>"


def _any(at: Floats) -> bool:
    """Whether any endpoint has the attribute."""
    return bool((at > NEVER).any())


def _sampled(sent: float, ages: Ages) -> Floats:
    """When values of these ages were sampled; an age below zero would make a sample that nothing newer could replace.
    Shape: that of `ages`."""
    at: Floats = np.subtract(sent, np.maximum(ages, 0.0), dtype=np.float64)
    return at
