"""What a proxy says, read from bytes: the same whichever way it is read, and in whatever order its fields come."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from services.picker.extproc import incoming
from services.picker.extproc.headers import read_headers, read_status
from services.picker.extproc.messages import BodyMode, BodyModes
from tests.unit.services.picker.extproc.proxy import body, decoded, headers, pb, response_headers, trailers

MODES = st.one_of(st.none(), st.tuples(st.sampled_from(BodyMode), st.sampled_from(BodyMode)))
VALUES = st.one_of(st.sampled_from(["", "a" * 127, "b" * 128, "c" * 20_000]), st.text(max_size=9))
PHASES = st.sampled_from(["request_headers", "response_headers"])


@given(PHASES, st.lists(st.tuples(st.text(max_size=4), VALUES), max_size=4), st.booleans(), MODES, VALUES)
def test_headers_and_what_comes_with_them_are_read_as_the_library_reads_them(
    phase: str, shown: list[tuple[str, str]], end: bool, modes: tuple[BodyMode, BodyMode] | None, hint: str
) -> None:
    message = headers(shown, end=end, modes=modes, hint=hint, phase=phase)
    read = incoming.read(message.SerializeToString())
    expected = getattr(message, phase)
    assert read.phase == phase
    assert decoded(read.shown) == decoded(expected)
    assert read.size == expected.ByteSize()
    assert read.context.modes == (BodyModes(*modes) if modes else None)
    assert read.context.subset == tuple(entry for part in hint.split(",") if (entry := part.strip()))


@given(st.permutations(["modes", "phase", "hint"]))
def test_the_order_of_a_messages_fields_doesnt_matter(order: list[str]) -> None:
    parts: dict[str, Any] = {
        "modes": headers(modes=(BodyMode.BUFFERED, BodyMode.NONE)),
        "phase": headers({":path": "/"}),
        "hint": headers(hint="10.0.0.1"),
    }
    parts["modes"].ClearField("request_headers")
    parts["hint"].ClearField("request_headers")
    read = incoming.read(b"".join(parts[name].SerializeToString() for name in order))
    assert read.phase == "request_headers"
    assert read_headers(read.shown).get(":path") == "/"
    assert read.context == incoming.Context(BodyModes(BodyMode.BUFFERED, BodyMode.NONE), ("10.0.0.1",))


def test_of_two_phases_in_one_message_the_last_one_counts() -> None:
    text = headers({":path": "/"}).SerializeToString() + body(b"data").SerializeToString()
    read = incoming.read(text)
    assert (read.phase, read.shown.body) == ("request_body", b"data")


def test_of_one_phase_that_comes_twice_all_headers_count() -> None:
    text = headers({"a": "1"}).SerializeToString() + headers({"b": "2"}).SerializeToString()
    found = read_headers(incoming.read(text).shown)
    assert [(name, found.all(name)) for name in found.names()] == [("a", ("1",)), ("b", ("2",))]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "A", ":path", "x-b", ""]),
            st.sampled_from([b"", b"1", b"2", "\u00e4".encode(), b"\xff"]),
            st.sampled_from(["", "v"]),
        ),
        max_size=5,
    )
)
def test_every_header_keeps_its_values_in_order_whatever_the_proxy_sends(shown: list[tuple[str, bytes, str]]) -> None:
    message = headers()
    expected: dict[str, tuple[str, ...]] = {}
    for name, raw, value in shown:
        message.request_headers.headers.headers.add(key=name, raw_value=raw, value=value)
        text = raw.decode("utf-8", "replace") or value
        expected[name.lower()] = (*expected.get(name.lower(), ()), text)
    found = read_headers(incoming.read(message.SerializeToString()).shown)
    assert {name: found.all(name) for name in found.names()} == expected


def test_what_proxies_repeat_is_read_for_each_message_all_the_same() -> None:
    for served in ("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.1:8000"):
        read = incoming.read(response_headers(served=served).SerializeToString())
        assert read.context.served == served
        assert read_status(read.shown) == 200


def test_trailers_are_told_by_their_phase_with_and_without_content() -> None:
    for phase in ("request_trailers", "response_trailers"):
        empty, filled = trailers(phase), trailers(phase)
        getattr(filled, phase).trailers.headers.add(key="a", raw_value=b"b")
        assert incoming.read(empty.SerializeToString()).phase == phase
        assert incoming.read(filled.SerializeToString()).phase == phase


def test_a_phase_of_a_later_protocol_is_none_of_ours() -> None:
    assert incoming.read(b"").phase is None
    assert incoming.read(b"\xa2\x06\x00").phase is None


@pytest.mark.parametrize(
    "text",
    [
        b"\x12",
        b"\x12\x05\x0a",
        b"\x12\xff",
        b"\x12\xff\xff",
        b"\x12\x02\x0a\x05",
        b"\x12\x00\x12\x05",
        b"\x12\x07\x0a\x05\x0a\x03\x0a\x01\xff",
        b"\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_message_are_an_error(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decoded(incoming.read(text).shown)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_to_us_exactly_where_they_are_one_to_the_library(text: bytes) -> None:
    for data in (text, b"\x12" + bytes((len(text),)) + text, b"\x1a" + bytes((len(text) // 2,)) + text):
        try:
            expected = pb.ProcessingRequest.FromString(data)
        except DecodeError:
            with pytest.raises(DecodeError):
                decoded(incoming.read(data).shown)
            continue
        phase = expected.WhichOneof("request")
        read = incoming.read(data)
        assert read.phase == phase
        if phase in ("request_headers", "response_headers", "request_body"):
            assert decoded(read.shown) == decoded(getattr(expected, phase))


ENDLESS: dict[str, Callable[[int], Any]] = {
    "hints of many entries": lambda number: headers(hint=f"{'ab,' * 300}{number}"),
    "hints with a wide character": lambda number: headers(hint=f"{'x' * 900}\U0001f600{number}"),
    "long hints": lambda number: headers(hint=f"{'x' * 2_000}{number}"),
    "headers": lambda number: headers({f"x-{number}": "v" * 30, "x-id": f"{number}", "x-name": "v" * 30_000}),
    "addresses": lambda number: response_headers(served=f"{'x' * 900}{number}:8000"),
}


@pytest.mark.parametrize("context", ENDLESS)
def test_what_is_remembered_of_proxies_is_bounded(context: str) -> None:
    texts = [ENDLESS[context](number).SerializeToString() for number in range(3_000)]
    tracemalloc.start()
    for text in texts:
        decoded(incoming.read(text).shown)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 6 * 2**20


@pytest.mark.parametrize(("length", "kept"), [(900, True), (1_100, False)])
def test_a_context_that_comes_again_is_decoded_once_unless_it_is_long(length: int, kept: bool) -> None:
    first, second = (incoming.read(headers({"x-id": id}, hint="x" * length).SerializeToString()) for id in "ab")
    assert (first.context is second.context) == kept
    assert first.context == second.context
    assert first.shown != second.shown


@pytest.mark.parametrize("hint", [["a", "b", "c", "d"], "a, b,c,d", ["a,b", "c,d"]])
def test_of_a_subset_hint_one_entry_too_many_is_read_and_no_more(hint: object) -> None:
    text = headers(hint=hint).SerializeToString() + b"\xa2\x06\x00" * 500  # too long to be remembered
    assert incoming.read(text, 4).context.subset == ("a", "b", "c", "d")
    assert incoming.read(text, 3).context.subset == ("a", "b", "c", "d")
    assert incoming.read(text, 2).context.subset == ("a", "b", "c")


@pytest.mark.parametrize("hint", [["," * 5000] * 100, "," * 5000, ["a", *[","] * 100]])
def test_empty_entries_of_a_subset_hint_count(hint: object) -> None:
    """They take as long to read as others."""
    found = incoming.read(headers(hint=hint).SerializeToString(), 50).context.subset
    assert found is not None
    assert len(found) == 51
    assert incoming.read(headers(hint=["a", "", ","]).SerializeToString(), 50).context.subset == ("a",)
