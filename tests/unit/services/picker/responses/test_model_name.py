"""A name that is put back while an object passes: as if it had been there whole, with hardly anything held back."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.picker.responses import document
from services.picker.responses.model_name import ModelNameRewriter

SERVED, ASKED = b'"org/tuned"', b'"asked"'
SPELLINGS = [SERVED, rb'"org\/tuned"', rb'"\u006frg/tun\u0065d"']


def rewriter(lead: bytes = b"") -> ModelNameRewriter:
    return ModelNameRewriter(SERVED, ASKED, lead)


def through(name_rewriter: ModelNameRewriter, pieces: Iterable[bytes]) -> bytes:
    return b"".join([*map(name_rewriter.feed, pieces), name_rewriter.rest()])


VALUES = st.recursive(
    st.none()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["org/tuned", "org/", "org/tuned-2", '"model":"org/tuned"', "\\", 'a"', "{[", "]}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["model", "response", "message", "a"]) | st.text(max_size=4), inner, max_size=4
        )
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(
    st.sampled_from(["model", "response", "message", "choices", "usage"]) | st.text(max_size=4), VALUES, max_size=6
)


@given(
    OBJECTS,
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.sampled_from(SPELLINGS),
)
@example({"model": "org/tuned", "response": {"model": "org/tuned"}}, [9, 10, 11, 12], True, None, SPELLINGS[1])
def test_an_object_comes_out_as_if_it_had_been_whole(
    value: dict[str, Any], cuts: list[int], ascii_only: bool, indent: int | None, spelling: bytes
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "replace")
    text = text.replace(SERVED, spelling)
    whole = document.read(text, SERVED, ASKED)
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(edges)]
    expected = text if whole is None else whole.text
    assert through(rewriter(), pieces) == expected
    name_rewriter, came = rewriter(), b""
    for index in range(len(text)):
        came += name_rewriter.feed(text[index : index + 1])
        assert expected.startswith(came)
        assert len(name_rewriter._held) < 6 * len(SERVED)
    assert came == expected
    assert name_rewriter.done


@pytest.mark.parametrize("key", [b'"model"', rb'"mod\u0065l"', rb'"\u006d\u006f\u0064\u0065\u006c"'])
def test_a_key_is_known_however_it_is_spelled_and_cut(key: bytes) -> None:
    text = b'{"a":"x\\"",%s : "org/tuned","b":1}' % key
    for cut in range(len(text)):
        assert through(rewriter(), [text[:cut], text[cut:]]) == text.replace(SERVED, ASKED)


def test_nothing_is_held_but_what_may_be_the_name() -> None:
    name_rewriter = rewriter()
    assert name_rewriter.feed(b'{"id":"x","model":"org/') == b'{"id":"x","model":'
    assert repr(name_rewriter) == "<ModelNameRewriter level 1, depth 0, holds 5 bytes>"
    assert name_rewriter.feed(b'mine","x":"org/tun') == b'"org/mine","x":"org/tun'
    assert name_rewriter.feed(b'ed"') == b'ed"'
    assert name_rewriter.rest() == b""


@pytest.mark.parametrize("more", [0, 1])
def test_a_string_with_escapes_is_held_until_it_is_longer_than_the_name_can_be(more: int) -> None:
    """Six bytes for each of the name's: a name in which all are escaped comes out replaced."""
    name = b'"' + b"".join(b"\\u%04x" % byte for byte in b"org/tuned") + b'"'
    assert through(rewriter(), [b'{"model":' + name[:-1], name[-1:] + b"}"]) == b'{"model":"asked"}'
    begun = (b'"' + rb"\u0041" * 50)[: 6 * len(SERVED) + more]
    assert rewriter().feed(b'{"model":' + begun) == b'{"model":' + (begun if more else b"")


@pytest.mark.parametrize(
    "text",
    [
        b'{"error": upstream broke off',
        b'{"model":"somebody else',
        b'{"model":"org/tuned-2',
        b'{"choices":[{"model":"org/tuned"',
        b'["model","org/tuned"]',
        b'"model":"org/tuned"',
        b'}{"model":"org/tuned"}',
        b"\xff\xfe",
        b"{" * 50_000,
        b"",
    ],
)
def test_what_is_no_object_or_breaks_off_passes_whole(text: bytes) -> None:
    for size in (1, 7, 1000):
        name_rewriter = rewriter()
        came = b"".join(name_rewriter.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert came == text


def test_an_object_that_breaks_off_in_the_name_lacks_only_that_until_the_rest_is_asked_for() -> None:
    name_rewriter = rewriter()
    assert name_rewriter.feed(b'{"model":"org/tun') == b'{"model":'
    assert name_rewriter.rest() == b'"org/tun'
    assert name_rewriter.feed(b'ed"}') == b'ed"}'


def test_an_object_has_to_follow_what_leads_to_it() -> None:
    text = b'data: {"model":"org/tuned"}\n'
    for cut in range(len(text)):
        assert through(rewriter(b"data:"), [text[:cut], text[cut:]]) == text.replace(SERVED, ASKED)
        other = text.replace(b"data", b"dada")
        assert through(rewriter(b"data:"), [other[:cut], b"", other[cut:]]) == other


def test_what_follows_the_object_passes() -> None:
    assert through(rewriter(), [b'{"a":1}', b'{"model":"org/tuned"}']) == b'{"a":1}{"model":"org/tuned"}'


def test_an_object_of_very_many_parts_passes_from_some_point_on() -> None:
    name_rewriter = rewriter()
    text = b'{"a":[' + b"{}," * 300_000 + b'{}],"model":"org/tuned"}'
    assert through(name_rewriter, [text[at : at + 65_536] for at in range(0, len(text), 65_536)]) == text
    assert name_rewriter.done
