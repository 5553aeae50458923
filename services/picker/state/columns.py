"""The endpoints' attributes as columns: an array of values and an array of sample times for each attribute.

A value that an endpoint doesn't have is NaN with a sample time of minus infinity, so that "never" and "long ago" are
one comparison. Frames upsert: of two collectors that both report an endpoint the newer sample wins.
"""

from typing import Any

import numpy as np

from services.picker.state.layout import Floats, Layout, Mask, Rows
from shared.bus.columns import unpack_ages, unpack_floats
from shared.bus.messages import Frame

NEVER = -np.inf
MEMBERSHIP_CACHE = 256
"""Model names whose endpoints are remembered; clients choose the names."""


class Column:
    """One attribute of all endpoints. `objects` holds values that aren't numbers, else it is None."""

    __slots__ = ("at", "objects", "values")

    def __init__(self, size: int, *, of_objects: bool = False) -> None:
        self.values: Floats = np.full(size, np.nan)
        self.at: Floats = np.full(size, NEVER)
        self.objects: list[Any] | None = [None] * size if of_objects else None


class Columns:
    """All attributes of all endpoints of a layout, by the attribute's wire name."""

    def __init__(self) -> None:
        self._layout = Layout()
        self._columns: dict[str, Column] = {}
        self._rows: dict[tuple[str, ...], tuple[Rows, Rows] | None] = {}
        self._members: dict[tuple[str, str], Mask] = {}
        self.frames = 0

    def relayout(self, layout: Layout) -> None:
        """Take the arrays over to a new layout: endpoints that stayed keep their samples, new ones have none."""
        here, there = layout.moved_from(self._layout)
        for name, old in self._columns.items():
            new = Column(len(layout), of_objects=old.objects is not None)
            new.values[here] = old.values[there]
            new.at[here] = old.at[there]
            if old.objects is not None and new.objects is not None:
                for row, was in zip(here.tolist(), there.tolist(), strict=True):
                    new.objects[row] = old.objects[was]
            self._columns[name] = new
        self._layout = layout
        self._rows.clear()
        self._members.clear()

    def apply(self, frame: Frame, now: float, extra_age: float) -> None:
        """Take in a frame that arrived at `now` and was `extra_age` seconds longer under way than usual.

        Endpoints that the layout doesn't have are skipped.
        """
        self.frames += 1
        placed = self._place(frame.ids)
        if placed is None:
            return
        rows, positions = placed
        for name, packed in frame.ages.items():
            at = (now - extra_age) - unpack_ages(packed)[positions].astype(np.float64)
            objects = frame.objects.get(name)
            if objects is not None:
                self._apply_objects(name, objects, rows, positions, at)
                continue
            values = unpack_floats(frame.columns[name])[positions]
            column = self._column(name)
            newer = (at > column.at[rows]) & ~np.isnan(values)
            if newer.all():
                column.values[rows] = values
                column.at[rows] = at
            else:
                column.values[rows[newer]] = values[newer]
                column.at[rows[newer]] = at[newer]

    def _apply_objects(self, name: str, objects: list[Any], rows: Rows, positions: Rows, at: Floats) -> None:
        column = self._column(name, of_objects=True)
        held = column.objects
        assert held is not None
        changed = False
        for row, position, sampled in zip(rows.tolist(), positions.tolist(), at.tolist(), strict=True):
            value = objects[position]
            if value is None or sampled <= column.at[row]:
                continue
            value = tuple(value) if isinstance(value, list) else value
            changed |= held[row] != value
            held[row] = value
            column.at[row] = sampled
        if changed:
            self._members = {key: mask for key, mask in self._members.items() if key[0] != name}

    def numbers(self, name: str) -> Column:
        """The column of an attribute of numbers; all absent when nobody reported it."""
        return self._column(name)

    def objects(self, name: str) -> Column:
        """The column of an attribute whose values aren't numbers."""
        return self._column(name, of_objects=True)

    def members(self, name: str, item: str) -> Mask:
        """For which endpoints the attribute, a tuple of names, contains `item`."""
        found = self._members.get((name, item))
        if found is None:
            held = self._column(name, of_objects=True).objects or []
            found = np.fromiter((value is not None and item in value for value in held), np.bool_, len(held))
            if len(self._members) >= MEMBERSHIP_CACHE:
                self._members.clear()
            self._members[(name, item)] = found
        return found

    def of(self, row: int, now: float) -> dict[str, dict[str, Any]]:
        """Every attribute that one endpoint has: `{wire name: {value, age}}`, ages in seconds."""
        known: dict[str, dict[str, Any]] = {}
        for name, column in self._columns.items():
            if column.at[row] > NEVER:
                value = column.objects[row] if column.objects is not None else float(column.values[row])
                known[name] = {"value": value, "age": round(now - float(column.at[row]), 4)}
        return known

    def newest(self) -> Floats:
        """Each endpoint's newest sample time over all attributes; minus infinity when there is none."""
        newest: Floats = np.full(len(self._layout), NEVER)
        for column in self._columns.values():
            np.maximum(newest, column.at, out=newest)
        return newest

    def _column(self, name: str, *, of_objects: bool = False) -> Column:
        column = self._columns.get(name)
        if column is None or (of_objects and column.objects is None):
            column = self._columns[name] = Column(len(self._layout), of_objects=of_objects)
        return column

    def _place(self, ids: tuple[str, ...]) -> tuple[Rows, Rows] | None:
        """(rows of the layout, positions in the frame) of the endpoints that both have; None when there are none."""
        if ids not in self._rows:
            if len(self._rows) > 4 * (1 + len(self._layout)):
                self._rows.clear()  # parts that changed their members leave their former ids behind
            pairs = [(row, at) for at, one in enumerate(ids) if (row := self._layout.index.get(one)) is not None]
            self._rows[ids] = (
                (np.array([row for row, _ in pairs], np.intp), np.array([at for _, at in pairs], np.intp))
                if pairs
                else None
            )
        return self._rows[ids]

    def __repr__(self) -> str:
        return f"<Columns {len(self._columns)} attributes of {len(self._layout)} endpoints, {self.frames} frames>"
