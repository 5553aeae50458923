"""Estimates how long a JSON body takes to decode, by counting a few marks before anything is decoded.

Long stretches without marks, such as pictures in base64, cost next to nothing and aren't counted.

Decoding a value into a Python object costs up to a hundred times as much as skipping it, so a short body with many
values can take longer than a long body with few. Marks inside strings count, too: telling them apart would cost what
counting saves. `tests/benchmarks/bench_longest.py` measures the weights.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from shared.digits import MAX_RUN, are_digits, has_long_run, may_have_long_run

SHORT = 32 * 2**10
"""Bytes of a body that may be decoded whatever they are."""
MAX_DECODED = 2 * 2**20
"""Bytes of a body that may be decoded at all."""
BUDGET = 10e6
"""Nanoseconds that decoding may take. The event loop may be held for twice as long."""
BYTE, COMMA, QUOTE, OPENING = 3.0, 60.0, 60.0, 1000.0
"""Nanoseconds that each may cost, at most: a number goes with its comma, a text with its quotes, an object or a list
with what it opens with."""
_ITEM = 2000.0
"""Nanoseconds for everything that a comma may separate: objects that are decoded are at most three deep."""
_SLICE = 64 * 2**10
"""Bytes that are looked at at a time: so many stay in a processor's cache."""
_MARKS = (b" ", b'"', b"\\", b",", b"[", b"{", b"\n", b"\r", b"\t")
"""What takes a decoder time, the most common ones first."""


class JsonCounts:
    """Counts of marks in a body, or in the part of it from `start` to `end`. Each is made on demand, at about 0.1 ns a
    byte."""

    def __init__(self, body: bytes, start: int = 0, end: int | None = None) -> None:
        self._size = (len(body) if end is None else end) - start
        self._parts = list(_parts(body, start, start + self._size))

    @property
    def dense(self) -> int:
        """Bytes outside stretches without any mark."""
        return sum(map(len, self._parts))

    @cached_property
    def commas(self) -> int:
        return self._count(b",")

    @cached_property
    def openings(self) -> int:
        """Braces and brackets that open an object or a list."""
        return self._count(b"{", 0x20)  # which makes a brace of a bracket, and of nothing else

    @cached_property
    def quotes(self) -> int:
        return self._count(b'"')

    @property
    def few(self) -> bool:
        """Whether the body may be decoded."""
        size = self._size
        if not SHORT < size <= MAX_DECODED:
            return size <= SHORT
        left = BUDGET - size * BYTE
        return (
            self.commas * _ITEM <= left or self.commas * COMMA + self.quotes * QUOTE + self.openings * OPENING <= left
        ) and not self.long_numbers

    @property
    def long_numbers(self) -> bool:
        """Whether there are more digits in a row than may be decoded, in a number or in a text."""
        return any(
            has_long_run(are_digits(part[start : start + _SLICE + MAX_RUN]))
            for part in self._parts
            if may_have_long_run(part)
            for start in range(0, len(part), _SLICE)
        )

    def _count(self, mark: bytes, also: int = 0) -> int:
        """How many bytes are the mark once the bits of `also` are set."""
        count = 0
        for part in self._parts:
            for start in range(0, len(part), _SLICE):
                piece = part[start : start + _SLICE]
                count += int(np.count_nonzero((piece | np.uint8(also) if also else piece) == mark[0]))
        return count


def _parts(body: bytes, start: int, end: int) -> Iterator[npt.NDArray[Any]]:
    """What is left of the bytes from `start` to `end` without stretches that have no marks."""
    values, find = np.frombuffer(body, np.uint8), body.find
    for at in range(start, end, _SLICE):
        stop = min(at + _SLICE, end)
        digits = body[at : at + 1].isdigit() and body[stop - 1 : stop].isdigit()  # perhaps all of it is a number
        if not digits and all(find(mark, at, stop) < 0 for mark in _MARKS):
            if start < at:
                yield values[start:at]
            start = stop
    if start < end:
        yield values[start:end]
