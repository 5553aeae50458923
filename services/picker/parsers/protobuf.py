"""Reads protobuf messages field by field, without copying: fields that aren't read cost nothing.

https://protobuf.dev/programming-guides/encoding describes the wire format. Groups, which are deprecated, aren't read.
"""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Value: TypeAlias = int | memoryview
"""A varint's number, or the bytes of what has a length. Numbers of fixed size are passed over: nothing here reads them.
"""

_VARINT, _LENGTH = 0, 2
_FIXED = {1: 8, 5: 4}
"""Wire type → bytes."""
_NUMBERS = 2**29
"""Field numbers are smaller."""
_MAX_VARINT_BYTES = 10
_SLICE = 256 * 2**10
"""Bytes that are counted at a time: so many stay in a processor's cache."""
UINT32 = 0xFFFF_FFFF
"""What is left of a number in a field of 32 bits."""


class Reader:
    """Reads a message and the messages in it, up to a number of fields together."""

    def __init__(self, max_fields: int) -> None:
        self._most = max_fields
        self.read = 0
        """Fields so far, and what else counts as fields."""

    def fields(self, message: memoryview) -> Iterator[tuple[int, Value]]:
        """Number and value of each field, in order. Raises ValueError for what is no message, and for too many."""
        at, end = 0, len(message)
        while at < end:
            self.read += 1
            if self.read > self._most:
                raise ValueError(f"the message has more than {self._most} fields")
            tag, at = _varint(message, at)
            number, kind = tag >> 3, tag & 7
            if not 0 < number < _NUMBERS:
                raise ValueError(f"{number} is no field number")
            if kind == _VARINT:
                value, at = _varint(message, at)
                yield number, value
                continue
            size, at = _varint(message, at) if kind == _LENGTH else (_FIXED.get(kind, 0), at)
            if not size and kind != _LENGTH:
                raise ValueError(f"field {number} has the wire type {kind}, which is unknown")
            if size > end - at:
                raise ValueError(f"field {number} has {size} bytes, but only {end - at} are left")
            if kind == _LENGTH:
                yield number, message[at : at + size]
            at += size

    def numbers(self, message: memoryview) -> dict[int, int]:
        """By field: the last number of 32 bits in the message."""
        return {number: value & UINT32 for number, value in self.fields(message) if isinstance(value, int)}


def varint(number: int) -> bytes:
    """A number as it is packed."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def numbers(data: memoryview) -> int:
    """How many varints there are, for what is too long to be read."""
    raw = np.frombuffer(data, np.uint8)
    return sum(int(np.count_nonzero(raw[at : at + _SLICE] < 0x80)) for at in range(0, len(raw), _SLICE))


def packed(data: memoryview) -> npt.NDArray[np.uint32]:
    """Packed varints as uint32, higher bits cut off. Raises ValueError for other bytes."""
    raw = np.frombuffer(data, np.uint8)
    if not len(raw):
        return np.zeros(0, np.uint32)
    last = raw < 0x80
    if not last[-1]:
        raise ValueError("the last number is cut off")
    ends = np.flatnonzero(last)
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts + 1
    if lengths.max() > _MAX_VARINT_BYTES:
        raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")
    values = (raw[starts] & 0x7F).astype(np.uint32)
    for place in range(1, 5):
        longer = np.flatnonzero(lengths > place)
        if not len(longer):
            break
        values[longer] |= (raw[starts[longer] + place] & 0x7F).astype(np.uint32) << np.uint32(7 * place)
    return values


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at a position, and the position after it. Raises ValueError for other bytes."""
    if at < len(message) and message[at] < 0x80:
        return message[at], at + 1
    value = 0
    for place, byte in enumerate(message[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at + place + 1
    if len(message) - at < _MAX_VARINT_BYTES:
        raise ValueError("a number is cut off at the end")
    raise ValueError(f"a number has more than {_MAX_VARINT_BYTES} bytes")
