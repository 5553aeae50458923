"""Whether what an extractor says of an endpoint can be an attribute's value.

One text in a column of numbers would break the column for all endpoints, and what no message can carry the frame of all
attributes. So it is looked at where it is said, and costs only the extractor that said it.
"""

from math import isfinite
from typing import Any

import msgspec

from shared.attributes import AttributeKey


def fault(key: AttributeKey[Any], value: object) -> str:
    """What keeps the value from being the attribute's, in words; empty where nothing does. None, which is no value but
    says that there is none, is sound."""
    if value is None:
        return ""
    if key.kind is float:
        return "" if _is_number(value) else f"{key} is {_shown(value)}; a finite number is expected"
    if not isinstance(value, key.kind):
        return f"{key} is {_shown(value)}; a {key.kind.__name__} is expected"
    try:
        msgspec.msgpack.encode(value)
    except Exception as error:  # noqa: BLE001 - whatever a plugin's object does when it is encoded, it can't be sent
        return f"{key} is {_shown(value)}, which no message can carry: {type(error).__name__}: {error}"
    return ""


def _is_number(value: object) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return isfinite(value)
    except OverflowError:  # of a whole number beyond every float
        return False


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a plugin's object
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"
