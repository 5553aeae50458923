"""The parts of inputs that are sequences of messages."""

import json
from typing import Any

SEPARATOR = b"\n--\n"
MAX_PARTS = 20
"""Parts that are looked at."""


def parts(data: bytes) -> list[bytes]:
    """What stands between lines of two dashes."""
    return data.split(SEPARATOR, MAX_PARTS)[:MAX_PARTS]


def value(text: bytes) -> Any:
    """The value of a JSON text. Raises ValueError for one that is none."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too deep") from error
