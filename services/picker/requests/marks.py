"""How much work a JSON body is, told by counting a few marks in it before anything is decoded.

Decoding a value into an object of Python costs up to a hundred times what passing over it does, so a short body of
many values can take longer than a long one of a few. What texts hold counts as well: telling it apart would cost what
the count is to save. The weights are measured by `tests/benchmarks/bench_longest.py`.
"""

from functools import cached_property

import numpy as np

SHORT = 64 * 2**10
"""Bytes of a body that may be decoded whatever they are."""
LONGEST = 2 * 2**20
"""Bytes of a body that may be decoded at all."""
_BUDGET = 10e6
"""Nanoseconds that decoding may take. The event loop may be held for twice as long."""
_BYTE, _COMMA, _QUOTE, _OPENING = 2.0, 60.0, 60.0, 1000.0
"""Nanoseconds that each may cost, at most: a number goes with its comma, a text with its quotes, an object or a list
with what it opens with."""
_ITEM = 2000.0
"""Nanoseconds for everything that a comma may separate: objects that are decoded are at most three deep."""
_SLICE = 256 * 2**10
"""Bytes that are compared at a time: so many stay in a processor's cache."""


class Marks:
    """Marks of a body, each counted when it is asked for: at about 0.1 ns a byte."""

    def __init__(self, body: bytes) -> None:
        self._bytes = np.frombuffer(body, np.uint8)

    @cached_property
    def commas(self) -> int:
        return self._count(b",")

    @cached_property
    def openings(self) -> int:
        """Braces and brackets that open an object or a list."""
        return self._count(b"{") + self._count(b"[")

    @cached_property
    def quotes(self) -> int:
        return self._count(b'"')

    @property
    def few(self) -> bool:
        """Whether the body may be decoded."""
        size = len(self._bytes)
        if not SHORT < size <= LONGEST:
            return size <= SHORT
        left = _BUDGET - size * _BYTE
        return self.commas * _ITEM <= left or (
            self.commas * _COMMA + self.quotes * _QUOTE + self.openings * _OPENING <= left
        )

    def _count(self, mark: bytes) -> int:
        values, code, size = self._bytes, mark[0], len(self._bytes)
        return sum(int(np.count_nonzero(values[start : start + _SLICE] == code)) for start in range(0, size, _SLICE))

    def __repr__(self) -> str:
        return f"<Marks of {len(self._bytes)} bytes>"
