"""Durations and sizes as configuration documents and flags write them.

Durations are Go's (`50ms`, `1m30s`, `2h`), as in EndpointPickerConfigs; a bare number is seconds. Sizes are whole
Kubernetes quantities (`64Mi`, `1G`, `1k`, `1e6`, `4096`).
"""

import re
from decimal import Decimal
from typing import Annotated

from msgspec import Meta

_MAX_CHARACTERS = 64
"""Characters that are read: more digits stand for nothing, and cost the square of their number."""
_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+"
_BARE = re.compile(_NUMBER)
_DURATION_PART = re.compile(rf"({_NUMBER})(ns|us|µs|μs|ms|s|m|h)")
_SIZE_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_SIZE_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
_SIZE = re.compile(rf"({_NUMBER})(?:([KMGTPE]i|[kMGTPE])|[eE](\+?[0-9]{{1,2}}))?")

Duration = Annotated[float, Meta(ge=0, extra={"format": "duration"})]
"""Seconds; written as a Go duration or a number of seconds; never negative."""

PositiveDuration = Annotated[float, Meta(gt=0, extra={"format": "duration"})]
"""Seconds; as `Duration`, and not zero."""

PositiveSize = Annotated[int, Meta(ge=1, extra={"format": "size"})]
"""As `Size`, and not zero."""

Size = Annotated[int, Meta(ge=0, extra={"format": "size"})]
"""Bytes, or a count; written as a Kubernetes quantity or a plain number; never negative."""


def parse_duration(text: object) -> float:
    """Seconds of a Go duration (`250ms`, `1m30s`) or a bare number, perhaps negative. Raises ValueError with advice."""
    if isinstance(text, (int, float)) and not isinstance(text, bool) and abs(text) < 1e300:
        return float(text)
    if isinstance(text, str) and len(text) <= _MAX_CHARACTERS:
        sign, body = _signed(text)
        if _BARE.fullmatch(body):
            return sign * float(body)
        seconds, at = 0.0, 0
        while part := _DURATION_PART.match(body, at):
            seconds += float(part[1]) * _DURATION_UNITS[part[2]]
            at = part.end()
        if 0 < at == len(body):
            return sign * seconds
    raise ValueError("a duration such as 200ms, 2s or 1m30s is expected")


def format_duration(seconds: float) -> str:
    """The shortest of `250ms`, `2s`, `1.5s` that says it, to the nanosecond; `parse_duration` reads it."""
    if seconds and abs(seconds) < 1:
        return f"{_plain(seconds * 1000, 6)}ms"
    return f"{_plain(seconds, 9)}s"


def parse_size(text: object) -> int:
    """The value of a Kubernetes quantity (`64Mi`, `1k`, `4096`), perhaps negative. Raises ValueError with advice."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, float) and text.is_integer():
        return int(text)
    if isinstance(text, str) and len(text) <= _MAX_CHARACTERS:
        sign, body = _signed(text)
        if match := _SIZE.fullmatch(body):
            number, unit, exponent = match.groups()
            value = Decimal(number) * _SIZE_UNITS[unit or ""] * 10 ** int(exponent or 0)
            if value == value.to_integral_value():
                return sign * int(value)
    raise ValueError("a quantity such as 4096, 64Mi or 1G is expected")


def format_size(number: int) -> str:
    """The number with the largest unit that says it exactly (`64Mi`, `5k`); below 10 000 without one."""
    if abs(number) < 10_000:
        return str(number)
    divisor, unit = max((size, unit) for unit, size in _SIZE_UNITS.items() if number % size == 0)
    return f"{number // divisor}{unit}"


def _signed(text: str) -> tuple[int, str]:
    body = text.strip()
    if body[:1] in ("-", "+"):
        return (-1 if body[0] == "-" else 1), body[1:]
    return 1, body


def _plain(number: float, decimals: int) -> str:
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".")
