"""Pieces of responses that go back without being decoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.extproc import wire
from services.picker.extproc.messages import ProcessingRequest, ProcessingResponse
from services.picker.parsers.protobuf import varint
from tests.unit.services.picker.extproc.proxy import body, headers, response_headers, trailers

SIZES = [1, 2, 118, 122, 123, 124, 125, 126, 127, 128, 129, 130, 16_376, 16_379, 16_380, 16_384, 62_000, 3_000_000]


def piece(data: bytes, *, end: bool = False) -> bytes:
    return bytes(ProcessingRequest.SerializeToString(body(data, end=end, phase="response_body")))


def relayed(text: bytes, pieces: wire.ChunkReader | None = None) -> bytes:
    taken = (pieces or wire.ChunkReader()).body(text)
    assert taken
    return wire.echo(taken)


def sent_on(answer: bytes) -> bytes:
    streamed = ProcessingResponse.FromString(answer).response_body.response.body_mutation.streamed_response
    assert not streamed.end_of_stream
    return bytes(streamed.body)


@pytest.mark.parametrize("size", SIZES)
def test_a_piece_of_any_size_goes_back_as_it_came(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    assert sent_on(relayed(piece(data))) == data


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 16_383, 16_384, 3_000_000])
def test_a_fields_span_is_its_content(size: int) -> None:
    field = b"\x0a" + varint(size) + bytes(size)
    start = len(field) - size
    assert wire.span(field) == wire.span(field + b"more") == (start, start + size)
    assert wire.span(b"more" + field, 4) == (start + 4, start + 4 + size)
    assert wire.span(field[:-1]) == (0, 0)


def test_a_length_that_doesnt_end_isnt_plain_to_see() -> None:
    assert wire.span(b"\x0a" + b"\x80" * 20) == (0, 0)


@pytest.mark.parametrize(
    "message",
    [
        body(b"last", end=True, phase="response_body"),
        body(b"", phase="response_body"),
        body(b"", end=True, phase="response_body"),
        body(b"request"),
        headers({":path": "/"}),
        response_headers(),
        trailers("response_trailers"),
        ProcessingRequest(),
    ],
    ids=["last", "empty", "empty and last", "request body", "headers", "response headers", "trailers", "nothing"],
)
def test_every_other_message_is_left_to_the_library(message: ProcessingRequest) -> None:
    assert not wire.ChunkReader().body(message.SerializeToString())


def test_what_follows_the_piece_may_change_and_go_away() -> None:
    pieces = wire.ChunkReader()
    for value in ("b", "longer", "x" * 5000, "x" * 4999 + "y", "x" * 4999 + "y", ""):
        message = body(b"data", phase="response_body")
        if value:
            message.metadata_context.filter_metadata["envoy.lb"].fields["a"].string_value = value
        assert sent_on(relayed(message.SerializeToString(), pieces)) == b"data"


@given(st.binary(max_size=64))
def test_bytes_that_are_no_message_are_never_taken_for_more_than_they_hold(data: bytes) -> None:
    for text in (data, b"\x2a" + data, b"\x2a" + bytes((len(data),)) + data):
        if taken := wire.ChunkReader().body(text):
            message = ProcessingRequest.FromString(text)
            assert taken == message.response_body.body
            assert not message.response_body.end_of_stream
