"""Values of JSON bodies: which are read, and how many are at most."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw, Struct

from services.picker.parsers.json_values import NOTHING, JsonParameters, as_count, as_text, given, read, shown
from services.picker.request import Unparsable


class Body(Struct):
    model: Raw = NOTHING
    items: list[Any] = []


DECODE = msgspec.json.Decoder(Body).decode


@pytest.mark.parametrize(("sent", "is_given"), [(b"{}", False), (b'{"model":null}', False), (b'{"model":""}', True)])
def test_null_is_as_good_as_nothing(sent: bytes, is_given: bool) -> None:
    assert given(DECODE(sent).model) is is_given


@pytest.mark.parametrize(
    ("sent", "text"), [(b'"a\\u0062"', "ab"), (b'""', ""), (b"5", None), (b'["a"]', None), (b"null", None)]
)
def test_only_a_text_is_a_text(sent: bytes, text: str | None) -> None:
    assert as_text(Raw(sent)) == text
    assert as_text(NOTHING) is None


@pytest.mark.parametrize(
    ("sent", "count"),
    [
        (b"0", 0),
        (b"16.0", 16),
        (b"1e3", None),
        (b"2147483647", 2**31 - 1),
        (b"2147483648", None),
        (b"-1", None),
        (b"1.5", None),
        (b"1e999", None),
        (b"7." + b"0" * 40, None),
        (b"9" * 9999, None),
        (b"true", None),
        (b'"5"', None),
    ],
)
def test_a_count_is_a_whole_number(sent: bytes, count: int | None) -> None:
    assert as_count(Raw(sent)) == count


def test_what_isnt_there_is_no_count() -> None:
    assert as_count(NOTHING) is None


@pytest.mark.parametrize(
    ("most", "body", "says"),
    [
        (JsonParameters(max_objects=3), b'{"items":[{},{}]}', "4 opening braces and brackets; the limit is 3"),
        (JsonParameters(max_objects=3, max_values=2), b'{"items":[1,2,3,4]}', "3 commas; the limit is 2"),
        (JsonParameters(max_values=2), b'{"items":[1,2,3,4]}', "3 commas; the limit is 2"),
    ],
)
def test_a_body_with_too_many_values_isnt_begun(most: JsonParameters, body: bytes, says: str) -> None:
    with pytest.raises(Unparsable, match=says):
        read(DECODE, body, most)
    assert read(DECODE, body, JsonParameters()).items


def test_a_value_is_shown_short_and_as_text() -> None:
    assert shown(Raw(b'"\xff"')) == '"\ufffd"'
    assert len(shown(Raw(b'"' + b"x" * 10**6 + b'"'))) == 81


def test_of_a_body_that_is_broken_after_a_wrong_value_the_value_isnt_shown() -> None:
    with pytest.raises(Unparsable, match=r"^items: expected array, got int$"):
        read(DECODE, b'{"items":5,"model":', JsonParameters())
