"""Puts another model name into a JSON body without touching anything else: key order, numbers and escapes stay.

The place is found by the decoder itself (`services.picker.spans`). Nested `model` keys, escaped keys and duplicates are
therefore read as the model server's decoder reads them: the last `model` of the top-level object counts.
"""

import msgspec
from msgspec import Raw, Struct

from services.picker.spans import start_of


class _Body(Struct):
    model: Raw


_decode = msgspec.json.Decoder(_Body).decode


def replace_model(body: bytes, model: str) -> bytes:
    """The body with `model` as the value of its top-level `model`; the very same object when it already is.

    Raises ValueError when the body isn't a JSON object with a `model`.
    """
    try:
        raw = _decode(body).model
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"the body has no model to replace by {model!r}: {error}") from error
    found, value = memoryview(raw), msgspec.json.encode(model)
    if found == value:
        return body
    start = start_of(raw, body)
    return b"".join((body[:start], value, body[start + len(found) :]))
