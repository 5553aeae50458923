"""Reads JSON: bodies into structs, values that were kept raw, and errors that name the field and show the value.

Values that aren't read are skipped. Values of any type are kept raw, so they cost no more than their bytes. Only typed
fields are decoded; if a body has many values, its prompt is kept raw, too. A body with more values than the limits is
refused before it is decoded, because even skipping a value takes time.
"""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from services.picker.parsers.json_counts import SHORT, JsonCounts
from services.picker.request import Unparsable

T = TypeVar("T")

NOTHING = Raw()
"""The value of a field that isn't there: this very object."""
_NULL = Raw(b"null")
_MAX_COUNT = 2**31 - 1
"""A larger number of tokens or sequences says nothing: no model goes that far."""
_MAX_DIGITS = 20
"""Bytes of a count that are read: thousands of counts may come at once, and 1e308 takes 10 µs to decode."""
_SHOWN = 80
"""Characters of a wrong value that an error shows."""
_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(int | float).decode


class JsonParameters(Struct, frozen=True, rename="camel"):
    """How much of a body is read, and what is refused. What texts hold counts too: it is looked at before anything is
    decoded."""

    max_objects: Annotated[int, Meta(gt=0)] = 250_000
    """Objects and lists, by their opening braces and brackets."""
    max_values: Annotated[int, Meta(gt=0)] = 500_000
    """Values, by their commas."""
    max_text_bytes: Annotated[int, Meta(gt=0, extra={"format": "size"})] = 8 * 2**20
    """Bytes besides long stretches of base64, or of anything else that is so simple."""
    transfer_parameters: bool = False
    """Whether clients may say from which servers a model server takes data."""


def read(
    decode: Callable[[bytes], T], body: bytes, limit: JsonParameters, coarsely: Callable[[bytes], T] | None = None
) -> T:
    """The body as the decoder's struct; `coarsely` decodes one that would take long. Raises `Unparsable` for one that
    can't be read, or has too many values."""
    size = len(body)
    if not size:
        raise Unparsable("the body is empty; a JSON object is needed")
    few = True
    if size > SHORT or size > limit.max_objects or size > limit.max_values or size > limit.max_text_bytes:
        counts = JsonCounts(body)
        if size > limit.max_text_bytes:
            _within(counts.dense, limit.max_text_bytes, "bytes that aren't base64")
        # a body has no more of anything than it has bytes
        if size > limit.max_objects:
            _within(counts.openings, limit.max_objects, "opening braces and brackets")
        if size > limit.max_values:
            _within(counts.commas, limit.max_values, "commas")
        few = counts.few
    try:
        return decode(body) if few or coarsely is None else coarsely(body)
    except msgspec.ValidationError as error:
        raise _mismatch(body if few else b"", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    except RecursionError as error:
        raise Unparsable("the body is nested too deeply") from error


def given(field: Raw) -> bool:
    """Whether a field is there and isn't null."""
    return field is not NOTHING and field != _NULL


def lacking(value: Any) -> str:
    """How an error calls a value that is null, not there, or empty."""
    return "missing" if value is None else "empty"


def as_text(value: Raw) -> str | None:
    """A text; None for everything else, and for what isn't there. Raises `Unparsable` for one that isn't UTF-8."""
    if value is NOTHING or value == _NULL:
        return None
    try:
        return _decode_text(value)
    except msgspec.ValidationError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error


def as_count(value: Raw) -> int | None:
    """A number of tokens or sequences: whole, from 0 to 2³¹-1; 16.0 is whole. None for everything else, also for a
    number with an exponent."""
    if value is NOTHING:
        return None
    text = bytes(memoryview(value)[: _MAX_DIGITS + 1])
    if not text[:1].isdigit() or len(text) > _MAX_DIGITS or b"e" in text.lower():
        return None
    number = _decode_number(text)
    return int(number) if number <= _MAX_COUNT and number == int(number) else None


def shown(value: Raw) -> str:
    """A value as an error shows it."""
    text = bytes(memoryview(value)[: 4 * _SHOWN]).decode("utf-8", "replace")
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _within(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise Unparsable(f"the body has {count} {what}; the limit is {limit}")


def _unreadable(error: Exception) -> Unparsable:
    return Unparsable(f"the body isn't valid JSON: {error}")


def _mismatch(body: bytes, text: str) -> Unparsable:
    """msgspec's complaint, with the field first and the value that was found there last."""
    what, at, path = text.removesuffix("`").rpartition(" - at `$.")
    if not at or not text.endswith("`"):
        return Unparsable(f"the body: {_lower_first(text)}")
    wrong = f"{path}: {_lower_first(what)}"
    return Unparsable(f"{wrong}{_value_at(body, path)}", kept=wrong)


def _value_at(body: bytes, path: str) -> str:
    value = Raw(body)
    try:
        for step in path.replace("[", ".[").lstrip(".").split("."):
            if step.startswith("["):
                value = msgspec.json.decode(value, type=list[Raw])[int(step[1:-1])]
            else:
                value = msgspec.json.decode(value, type=dict[str, Raw])[step]
    except (msgspec.DecodeError, ValueError, RecursionError, LookupError):
        return ""  # the body has more wrong with it than this value, and can't be read up to here
    return f": {shown(value)}"


def _lower_first(text: str) -> str:
    return (text[:1].lower() + text[1:]).replace("`", "")
