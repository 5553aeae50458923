"""The endpoints' attributes as columns: an array of values and an array of sample times for each attribute.

A value that an endpoint doesn't have is absent, never zero: NaN (or None) with a sample time of minus infinity, so that
"never" and "long ago" are one comparison. Frames upsert: of two collectors that both report an endpoint the newer
sample wins, and a value that is missing or isn't finite leaves the last one to age.
"""

from typing import Any

import numpy as np

from services.picker.state.layout import Floats, Layout, Mask, Rows
from shared.bus.columns import unpack_ages, unpack_floats
from shared.bus.messages import Frame

NEVER = -np.inf


class Column:
    """An attribute of numbers: the newest value of each endpoint, and when it was sampled (monotonic seconds).

    The arrays are replaced, never changed: who reads them may keep them.
    """

    __slots__ = ("_largest", "at", "values")

    def __init__(self, size: int) -> None:
        self.values: Floats = np.full(size, np.nan)
        self.at: Floats = np.full(size, NEVER)
        self._largest: float | None = None

    @property
    def largest(self) -> float:
        """The largest value of any endpoint; 0 when no endpoint has one, or all are negative."""
        if self._largest is None:
            self._largest = float(np.fmax.reduce(self.values, initial=0.0))
        return self._largest

    def put(self, rows: Rows, values: Floats, at: Floats) -> None:
        """Take in what is newer and finite. No row may come twice."""
        newer = (at > self.at[rows]) & np.isfinite(values)
        if not newer.all():
            rows, values, at = rows[newer], values[newer], at[newer]
        self.values, self.at = self.values.copy(), self.at.copy()
        self.values[rows] = values
        self.at[rows] = at
        self._largest = None

    def moved(self, size: int, here: Rows, there: Rows) -> "Column":
        """This column in another layout: row `there[i]` is row `here[i]` in it, the others are absent."""
        column = Column(size)
        column.values[here] = self.values[there]
        column.at[here] = self.at[there]
        return column


class ObjectColumn:
    """An attribute whose values aren't numbers: mostly tuples of names. Who has a name is kept, not searched for."""

    __slots__ = ("_holders", "at", "counts", "values")

    def __init__(self, size: int) -> None:
        self.values: list[Any] = [None] * size
        self.at: Floats = np.full(size, NEVER)
        self.counts: Floats = np.zeros(size)
        """How many items each endpoint's value has; 0 where it is absent or no tuple."""
        self._holders: dict[str, Mask] = {}

    def holders(self, item: str) -> Mask:
        """For which endpoints the value is a tuple that contains `item`."""
        held = self._holders.get(item)
        return np.zeros(len(self.values), np.bool_) if held is None else held

    def put(self, rows: Rows, values: list[Any], at: Floats) -> None:
        """Take in what is newer and not None. No row may come twice."""
        newer = at > self.at[rows]
        for row, value, wanted, sampled in zip(rows.tolist(), values, newer.tolist(), at.tolist(), strict=True):
            if not wanted or value is None:
                continue
            if isinstance(value, list):
                value = tuple(value)
            if value != self.values[row]:
                self._replace(row, value)
            self.at[row] = sampled

    def moved(self, size: int, here: Rows, there: Rows) -> "ObjectColumn":
        """This column in another layout: row `there[i]` is row `here[i]` in it, the others are absent."""
        column = ObjectColumn(size)
        column.at[here] = self.at[there]
        for row, was in zip(here.tolist(), there.tolist(), strict=True):
            if self.values[was] is not None:
                column._replace(row, self.values[was])
        return column

    def _replace(self, row: int, value: Any) -> None:
        before, after = _names(self.values[row]), _names(value)
        self.values[row] = value
        self.counts[row] = len(value) if isinstance(value, tuple) else 0
        for item in before - after:
            held = self._holders[item]
            held[row] = False
            if not held.any():
                del self._holders[item]
        for item in after - before:
            if item not in self._holders:
                self._holders[item] = np.zeros(len(self.values), np.bool_)
            self._holders[item][row] = True


def _names(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, tuple) else set()


class Columns:
    """All attributes of all endpoints of a layout, by the attribute's wire name."""

    def __init__(self) -> None:
        self._layout = Layout()
        self._numbers: dict[str, Column] = {}
        self._objects: dict[str, ObjectColumn] = {}
        self._places: dict[tuple[str, ...], tuple[Rows, Rows]] = {}
        self.frames = 0

    def relayout(self, layout: Layout) -> None:
        """Take the arrays over to a new layout: endpoints that stayed keep their samples, new ones have none."""
        here, there = layout.moved_from(self._layout)
        self._numbers = {name: one.moved(len(layout), here, there) for name, one in self._numbers.items()}
        self._objects = {name: one.moved(len(layout), here, there) for name, one in self._objects.items()}
        self._layout = layout
        self._places.clear()

    def apply(self, frame: Frame, now: float, extra_age: float) -> None:
        """Take in a sound frame that arrived at `now` and was `extra_age` seconds longer under way than usual.

        Endpoints that the layout doesn't have are skipped.
        """
        self.frames += 1
        rows, positions = self._place(frame.ids)
        if not len(rows):
            return
        sent = now - extra_age
        for name, packed in frame.ages.items():
            # an age below zero would make a sample that nothing newer could replace
            at = sent - np.maximum(unpack_ages(packed)[positions].astype(np.float64), 0.0)
            if name in frame.columns:
                self.numbers(name).put(rows, unpack_floats(frame.columns[name])[positions], at)
            else:
                values = frame.objects[name]
                self.objects(name).put(rows, [values[position] for position in positions.tolist()], at)

    def numbers(self, name: str) -> Column:
        """The column of an attribute of numbers; all absent when nobody reported it."""
        column = self._numbers.get(name)
        if column is None:
            column = self._numbers[name] = Column(len(self._layout))
        return column

    def objects(self, name: str) -> ObjectColumn:
        """The column of an attribute whose values aren't numbers; all absent when nobody reported it."""
        column = self._objects.get(name)
        if column is None:
            column = self._objects[name] = ObjectColumn(len(self._layout))
        return column

    def of(self, row: int, now: float) -> dict[str, dict[str, Any]]:
        """Every attribute that one endpoint has: `{wire name: {value, age}}`, ages in seconds."""
        known: dict[str, dict[str, Any]] = {}
        columns: list[tuple[str, Column | ObjectColumn]] = [*self._numbers.items(), *self._objects.items()]
        for name, column in columns:
            if column.at[row] > NEVER:
                value = column.values[row]
                known[name] = {
                    "value": float(value) if isinstance(column, Column) else value,
                    "age": round(now - float(column.at[row]), 4),
                }
        return known

    def newest(self) -> Floats:
        """Each endpoint's newest sample time over all attributes; minus infinity when there is none."""
        newest: Floats = np.full(len(self._layout), NEVER)
        for at in [*(one.at for one in self._numbers.values()), *(one.at for one in self._objects.values())]:
            np.maximum(newest, at, out=newest)
        return newest

    def _place(self, ids: tuple[str, ...]) -> tuple[Rows, Rows]:
        """(rows of the layout, positions in the frame) of the endpoints that both have, each once."""
        place = self._places.get(ids)
        if place is None:
            if len(self._places) > 4 * (1 + len(self._layout)):
                self._places.clear()  # parts that changed their members leave their former ids behind
            found = {row: at for at, one in enumerate(ids) if (row := self._layout.index.get(one)) is not None}
            place = self._places[ids] = (
                np.fromiter(found.keys(), np.intp, len(found)),
                np.fromiter(found.values(), np.intp, len(found)),
            )
        return place

    def __repr__(self) -> str:
        attributes = len(self._numbers) + len(self._objects)
        return f"<Columns {attributes} attributes of {len(self._layout)} endpoints, {self.frames} frames>"
