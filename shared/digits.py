"""Numbers with many digits: what one costs to decode grows with the square of its digits."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[Any]

MAX_RUN = 64
"""Digits in a row that may be decoded."""
_ZERO, _QUOTE = np.uint8(ord("0")), np.uint8(ord('"'))
_STRIDE = 32
"""A run that is too long has digits at two places in a row that are so far apart."""
_DOUBLINGS = (1, 2, 4, 8, 16, 32, 1)
"""Each makes the runs that are looked for longer by itself: from 1 digit to one more than the longest."""


def are_digits(text: Values) -> Values:
    """Which bytes are digits."""
    return text - _ZERO < 10


def may_have_long_run(text: Values) -> bool:
    """Whether two places in a row, `_STRIDE` apart, have digits."""
    sampled = are_digits(text[::_STRIDE])
    return bool((sampled[1:] & sampled[:-1]).any())


def has_long_run(found: Values) -> bool:
    """Whether more than `MAX_RUN` in a row are true. A regular expression takes up to a hundred times as long."""
    return bool(_long_runs(found).size)


def _long_runs(found: Values) -> Values:
    """Where more than `MAX_RUN` in a row are true: at each position, those that follow. Empty if nowhere."""
    for more in _DOUBLINGS:
        found = found[more:] & found[:-more]
        if not found.any():
            return found[:0]
    return found


class Numbers:
    """Of JSON that comes in pieces. Digits in a text, such as a request id, don't matter."""

    __slots__ = ("_in_text", "_rest")

    def __init__(self) -> None:
        self._in_text = False
        """Whether a text has begun and not ended."""
        self._rest = b""
        """The end of the last piece that belongs to what follows: digits, or a backslash."""

    def too_long(self, piece: bytes) -> bool:
        """Whether the next piece ends, or has, a number of more than `MAX_RUN` digits."""
        text = self._rest + piece
        if b"\\" in text:
            text = text.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
        values = np.frombuffer(text, np.uint8)
        if may_have_long_run(values):
            runs = _long_runs(are_digits(values))
            starts = np.flatnonzero(runs & ~np.concatenate(([False], runs[:-1])))  # one of each run
            quotes_before = np.searchsorted(np.flatnonzero(values == _QUOTE), starts)
            if (quotes_before % 2 == self._in_text).any():
                return True
        self._in_text ^= text.count(b'"') % 2 == 1
        end = text[-MAX_RUN:]
        self._rest = b"\\" if end.endswith(b"\\") else end[len(end.rstrip(b"0123456789")) :]
        return False

    def __repr__(self) -> str:
        return f"<Numbers {'in' if self._in_text else 'outside'} a text>"
