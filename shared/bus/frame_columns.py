"""Attributes of endpoints as columns of a frame. Pure.

A column has a number or NaN per endpoint, and beside it the age of each value. An absent attribute is distinguished
from an unknown one.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.msgpack import encode

from shared.attributes import AttributeKey, AttributeMap, extent
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import MAX_FRAME_ENDPOINTS, MAX_FRAME_PLACES, MAX_FRAME_VALUES

Row = tuple[str, AttributeMap]
"""An endpoint's id and its attributes."""


class FrameContent(Struct, frozen=True, kw_only=True):
    """The content of a frame; the fields are those of `shared.bus.messages.Frame`."""

    ids: tuple[str, ...]
    columns: dict[str, bytes] = {}
    ages: dict[str, bytes] = {}
    objects: dict[str, list[Any]] = {}
    absent: dict[str, list[int]] = {}

    @property
    def attributes(self) -> int:
        """How many are named: one that some have and others are known not to have twice."""
        return len(self.columns) + len(self.objects) + len(self.absent)

    @property
    def values(self) -> int:
        """How much those that aren't numbers are to read, as `shared.bus.messages.MAX_FRAME_VALUES` counts; 0 if they
        can't be encoded, which shows when they are sent."""
        try:
            if not self.objects or len(encode(self.objects)) <= MAX_FRAME_VALUES:
                return 0  # few
            return sum(extent(encode(value)) for values in self.objects.values() for value in values)
        except Exception:  # noqa: BLE001 - whatever a plugin's object does when it is encoded
            return 0

    @property
    def crowded(self) -> bool:
        """Whether there is more in it than a frame may have of what takes long to read."""
        places = max(sum(map(len, named.values())) for named in (self.absent, self.objects))
        return places > MAX_FRAME_PLACES or self.values > MAX_FRAME_VALUES

    @property
    def size(self) -> int:
        """Bytes of the numbers in it."""
        return sum(map(len, self.columns.values())) + sum(map(len, self.ages.values()))


def parts(rows: Sequence[Row], limit: int = MAX_FRAME_ENDPOINTS) -> Iterator[Sequence[Row]]:
    """The rows in order, at most `limit` at a time. No rows make no part."""
    for start in range(0, len(rows), limit):
        yield rows[start : start + limit]


def pack(rows: Sequence[Row], now: float, keys: Collection[AttributeKey[Any]] | None = None) -> FrameContent:
    """Columns of these endpoints, of these attributes or all, with every value's age at `now` (monotonic seconds)."""
    count = len(rows)
    values: dict[AttributeKey[Any], list[Any]] = {}
    ages: dict[AttributeKey[Any], list[float]] = {}
    absent: dict[str, list[int]] = {}
    for position, (_, attributes) in enumerate(rows):
        samples = attributes.items() if keys is None else attributes.among(keys)
        for key, sample in samples:
            if sample.value is None:
                absent.setdefault(key.wire, []).append(position)
                continue
            column = values.get(key)
            if column is None:
                column = values[key] = [math.nan if key.kind is float else None] * count
                ages[key] = [0.0] * count
            column[position] = sample.value
            age = now - sample.at
            if age > 0:
                ages[key][position] = age
    return FrameContent(
        ids=tuple([id for id, _ in rows]),
        columns={key.wire: pack_floats(column) for key, column in values.items() if key.kind is float},
        ages={key.wire: pack_ages(column) for key, column in ages.items()},
        objects={key.wire: column for key, column in values.items() if key.kind is not float},
        absent=absent,
    )
