"""Puts another model name into a JSON body without touching anything else: key order, numbers and escapes stay.

The decoder itself finds the place. msgspec hands out a raw value as a slice of the buffer that it read, and the slice's
address tells its place. So nested, escaped and duplicate `model` keys are read as the model server's decoder reads
them: the last `model` of the top-level object counts. Where there is none, it becomes the object's first key.
"""

import re

import msgspec
import numpy as np
from msgspec import Raw, Struct

_MISSING = Raw()
_OPENING = re.compile(rb"\s*\{\s*(?P<empty>\}?)")


class _Body(Struct):
    model: Raw = _MISSING


_decode = msgspec.json.Decoder(_Body).decode


def replace_model(body: bytes, model: str) -> tuple[bytes | memoryview, ...]:
    """The body with `model` as the value of its top-level `model`, in pieces, of which none is a copy: a long body is
    copied once, into its message. One piece, the body itself, when nothing is replaced.

    Raises ValueError when the body isn't a JSON object.
    """
    try:
        raw = _decode(body).model
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body has no model to replace by {model!r}: {error}") from error
    value = msgspec.json.encode(model)
    if raw is _MISSING:
        return _insert(body, value)
    found = memoryview(raw)
    if found == value:
        return (body,)
    start, view = start_of(raw, body), memoryview(body)
    return view[:start], value, view[start + len(found) :]


def _insert(body: bytes, value: bytes) -> tuple[bytes | memoryview, ...]:
    opening = _OPENING.match(body)
    assert opening is not None, "it has been decoded as an object"
    start, view = body.index(b"{") + 1, memoryview(body)
    return view[:start], b'"model":', value, b"" if opening["empty"] else b",", view[start:]


def start_of(value: Raw, text: bytes) -> int:
    """The position in `text`, which it was decoded from, where a raw value that isn't empty begins."""
    begin, origin = [np.frombuffer(view, np.uint8).__array_interface__["data"][0] for view in (memoryview(value), text)]
    return int(begin - origin)
