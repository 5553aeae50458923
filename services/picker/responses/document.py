"""Reads one JSON object of a response, or of an event: takes its usage, and puts the model's name back.

The name is at the top, or one level down in events of the Responses API (`response`) and of Anthropic's messages
(`message`). Everything else in the object stays byte for byte as it is.
"""

from typing import NamedTuple

import msgspec
from msgspec import Raw, Struct

from services.picker.parsers.json_edit import start_of
from services.picker.responses.usage import NOTHING, Usage, is_object, read_meta_info, read_usage


class _Object(Struct):
    model: Raw = Raw()
    usage: Raw = Raw()
    response: Raw = Raw()
    message: Raw = Raw()
    meta_info: Raw = Raw()
    """Where SGLang's own API reports tokens."""


_object = msgspec.json.Decoder(_Object).decode
_text = msgspec.json.Decoder(str).decode
MAX_USAGE = 64 * 2**10
"""Bytes of usage objects that are read of one chunk: those of servers have a few hundred."""
_MAX_INNER = 2**19
"""Bytes of objects in the object that are looked at: they are passed over a second time."""
ESCAPED = 6
"""Bytes that one of a name takes at most in JSON, escaped."""
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Document(NamedTuple):
    """A JSON object that was read."""

    text: bytes
    usage: Usage
    end: int
    """Where its last name ends, when a name was replaced; else 0."""
    read: int
    """Bytes of usage objects that were read."""
    objects: int
    """How many objects were decoded."""


def read(text: bytes, target: bytes, client: bytes, max_usage: int = MAX_USAGE) -> Document | None:
    """Read a JSON object; names that are `target` become `client` (both as JSON strings; empty ones change nothing).
    Usage objects are read up to `max_usage` bytes, and none after that.

    None for a text that isn't a JSON object.
    """
    try:
        top = _object(text)
        inner: list[_Object] = []
        limit = _MAX_INNER
        for part in (top.response, top.message):
            if _is_short(part, limit):
                limit -= len(memoryview(part))
                inner.append(_object(part))
    except _ERRORS:
        return None
    usage, done, objects = NOTHING, 0, 1 + len(inner)
    reports = [(level.usage, read_usage) for level in (*inner, top)]
    for report, reads in (*reports, (top.meta_info, read_meta_info)):
        if _is_short(report, max_usage - done):
            done += len(memoryview(report))
            objects += 1
            try:
                usage = usage.merged(reads(report))
            except _ERRORS:
                return None
    end = 0
    if target:
        found = [level.model for level in (top, *inner) if is_name(level.model, target)]
        pieces: list[bytes] = []
        at = 0
        for start, size in sorted((start_of(model, text), len(memoryview(model))) for model in found):
            pieces += (text[at:start], client)
            at = start + size
        if pieces:
            end = sum(map(len, pieces))
            text = b"".join((*pieces, text[at:]))
    return Document(text, usage, end, done, objects)


def is_name(found: bytes | Raw, name: bytes) -> bool:
    """Whether a JSON value is this name, a JSON string as `msgspec` writes it: servers may escape what needn't be."""
    view = memoryview(found)
    if view == name or len(view) > ESCAPED * len(name):
        return view == name
    value = bytes(view)
    if b"\\" not in value or not value.startswith(b'"'):
        return False
    try:
        return _text(value) == _text(name)
    except _ERRORS:
        return False


def _is_short(value: Raw, limit: int) -> bool:
    """Whether it is an object of at most so many bytes."""
    return len(memoryview(value)) <= limit and is_object(value)
