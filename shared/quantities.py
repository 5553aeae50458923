"""Numbers with units as configuration documents and flags write them: durations and sizes.

Durations are Go's (`50ms`, `1m30s`, `2h`) because that is what EndpointPickerConfigs use; a bare number is seconds.
Sizes are Kubernetes quantities (`64Mi`, `1G`, `1k`, `4096`).
"""

import re
from typing import Annotated

from msgspec import Meta

_DURATION_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)(Ki|Mi|Gi|Ti|k|M|G|T)?")

Duration = Annotated[float, Meta(ge=0, extra={"format": "duration"})]
"""Seconds; written as a Go duration or a number of seconds; never negative."""

PositiveDuration = Annotated[float, Meta(gt=0, extra={"format": "duration"})]
"""Seconds; as `Duration`, and not zero."""

Size = Annotated[int, Meta(ge=0, extra={"format": "size"})]
"""Bytes, or a count; written as a Kubernetes quantity or a plain number; never negative."""


def parse_duration(text: str | float) -> float:
    """Seconds of a Go duration (`250ms`, `1m30s`) or of a bare number.

    Raises ValueError that says what would be right.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text)
    if not isinstance(text, str):
        raise ValueError("a duration such as 200ms, 2s or 1m30s is expected")
    stripped = text.strip()
    sign, body = (-1.0, stripped[1:]) if stripped.startswith("-") else (1.0, stripped.removeprefix("+"))
    if re.fullmatch(r"\d+(?:\.\d*)?|\.\d+", body):
        return sign * float(body)
    parts = list(_DURATION_PART.finditer(body))
    if not parts or "".join(part.group(0) for part in parts) != body:
        raise ValueError("a duration such as 200ms, 2s or 1m30s is expected")
    return sign * sum(float(part.group(1)) * _DURATION_UNITS[part.group(2)] for part in parts)


def format_duration(seconds: float) -> str:
    """The shortest of `250ms`, `2s`, `1.5s` that says it."""
    if seconds and abs(seconds) < 1:
        return f"{seconds * 1000:g}ms"
    return f"{seconds:g}s"


def parse_size(text: str | float) -> int:
    """The number that a Kubernetes quantity (`64Mi`, `1G`, `1k`, `4096`) stands for.

    Raises ValueError that says what would be right.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if isinstance(text, float) and text.is_integer():
        return int(text)
    if isinstance(text, str):
        stripped = text.strip()
        sign, body = (-1, stripped[1:]) if stripped.startswith("-") else (1, stripped)
        if match := _SIZE.fullmatch(body):
            value = float(match.group(1)) * _SIZE_UNITS[match.group(2) or ""]
            if value.is_integer():
                return sign * int(value)
    raise ValueError("a quantity such as 4096, 64Mi or 1G is expected")
