"""Puts another model name into a JSON body without touching anything else: key order, numbers and escapes stay.

The place is found by the decoder itself (`services.picker.spans`). Nested `model` keys, escaped keys and duplicates are
therefore read as the model server's decoder reads them: the last `model` of the top-level object counts. Where there is
none, it becomes the object's first key.
"""

import re

import msgspec
from msgspec import Raw, Struct

from services.picker.spans import start_of

_MISSING = Raw()
_OPENING = re.compile(rb"\s*\{\s*(?P<empty>\}?)")


class _Body(Struct):
    model: Raw = _MISSING


_decode = msgspec.json.Decoder(_Body).decode


def replace_model(body: bytes, model: str) -> bytes:
    """The body with `model` as the value of its top-level `model`; the very same object when it already is.

    Raises ValueError when the body isn't a JSON object.
    """
    pieces = with_model(body, model)
    return b"".join(pieces) if len(pieces) > 1 else body


def with_model(body: bytes, model: str) -> tuple[bytes | memoryview, ...]:
    """As `replace_model`, in pieces, of which none is a copy: a long body is copied once, into its message. One piece
    when nothing is replaced.

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
