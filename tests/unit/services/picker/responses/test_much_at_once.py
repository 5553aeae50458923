"""Responses of which so much comes at once that reading it would take long: they pass as they are."""

import json
import zlib
from collections.abc import Iterable

import pytest

from services.picker.request import Headers
from services.picker.responses.reader import MAX_LINES, ResponseReader
from services.picker.responses.usage import NOTHING, Usage
from tests.benchmarks.bench_longest import field, frame

COMPLETE = field(2, b"\x18\x02\x20\x03")
"""A message of 2 prompt and 3 output tokens."""
USAGE = b'"usage":{"prompt_tokens":2,"completion_tokens":3}'
READ = Usage(2, 3)


def usage_of(kind: str, pieces: Iterable[bytes], encoding: str = "") -> Usage:
    reader = ResponseReader(api="generate")
    reader.begin(Headers([("content-type", kind), ("grpc-encoding", encoding)]))
    for piece in pieces:
        assert reader.feed(piece, False) == piece
    reader.feed(b"", True)
    usage = reader.usage
    return Usage(usage.prompt, usage.completion)


@pytest.mark.parametrize(
    ("before", "usage"),
    [
        ([frame(b"")] * 3000, READ),
        ([frame(b"") * 1999], READ),
        ([frame(b"") * 3000], NOTHING),
        ([frame(field(1, b"\x08\x01" * 6000))], READ),
        ([frame(field(2, b"\x08\x01" * 6000))], READ),
        ([frame(field(2, b"\x08\x01" * 3000)) * 3], READ),
    ],
    ids=["one by one", "as many as are read", "too many", "not needed", "too long", "too long together"],
)
def test_messages_of_grpc_are_read_up_to_a_number(before: list[bytes], usage: Usage) -> None:
    assert usage_of("application/grpc", [*before, frame(COMPLETE)]) == usage


@pytest.mark.parametrize(("size", "usage"), [(2**19, READ), (2**21, NOTHING)])
def test_compressed_messages_are_read_up_to_a_size(size: int, usage: Usage) -> None:
    large = zlib.compress(field(1, bytes(size)))
    first = b"\x01" + len(large).to_bytes(4, "big") + large
    assert usage_of("application/grpc", [first, frame(COMPLETE, "deflate")], "deflate") == usage


@pytest.mark.parametrize(("lines", "usage"), [(MAX_LINES - 1, READ), (MAX_LINES, NOTHING)])
def test_lines_of_events_are_read_up_to_a_number(lines: int, usage: Usage) -> None:
    assert usage_of("text/event-stream", [b"\n" * lines + b"data: {%s}\n" % USAGE]) == usage


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b'data: {"id":"%d","model":"served"}\n', MAX_LINES - 1),
        (b'data: {"id":"%d","model":"served","usage":{}}\n', MAX_LINES // 2),
        (
            b'data: {"id":"%d","response":{"model":"served","usage":{}},"message":{"usage":{}},"usage":{}}\n',
            MAX_LINES // 6,
        ),
        (b'data: {"id":"%d","model":"served","text":"' + b"x" * 2000 + b'"}\n', MAX_LINES // 2),
    ],
    ids=["names", "usage", "three levels", "long ones"],
)
def test_of_lines_that_take_longer_fewer_are_read(line: bytes, read: int) -> None:
    reader = ResponseReader("served", "asked")
    reader.begin(Headers([("content-type", "text/event-stream")]))
    sent = b"".join(line % number for number in range(MAX_LINES - 1))
    assert reader.feed(sent, False).count(b'"asked"') == pytest.approx(read, rel=0.05)


def test_after_too_many_lines_what_is_left_of_the_piece_passes_too() -> None:
    reader = ResponseReader("served", "asked")
    reader.begin(Headers([("content-type", "text/event-stream")]))
    piece = b'data: {"model":"served"}\n' * (MAX_LINES + 1) + b'data: {"mod'
    assert reader.feed(piece, False) == piece
    assert reader.feed(b'el":"served"}\n', True) == b'el":"served"}\n'


@pytest.mark.parametrize(("size", "usage"), [(1000, READ), (2**17, NOTHING)])
def test_a_usage_object_is_read_up_to_a_size(size: int, usage: Usage) -> None:
    details = {"prompt_tokens": 2, "completion_tokens": 3, "other": [0] * (size // 3)}
    assert usage_of("application/json", [json.dumps({"usage": details}).encode()]) == usage


@pytest.mark.parametrize(
    ("size", "names"), [(1000, ["asked", "asked"]), (300_000, ["asked", "served"]), (2**20, ["served", "served"])]
)
def test_objects_in_the_object_are_looked_at_up_to_a_size_together(size: int, names: list[str]) -> None:
    reader = ResponseReader("served", "asked")
    reader.begin(Headers([("content-type", "application/json")]))
    inner = {"model": "served", "text": "x" * size}
    answer = json.loads(
        reader.feed(json.dumps({"message": inner, "response": inner, "model": "served"}).encode(), True)
    )
    assert [answer[name]["model"] for name in ("response", "message")] == names
    assert answer["model"] == "asked"


@pytest.mark.parametrize(("piece", "name"), [(b"{}," * 3000, "asked"), (b"{}," * 20_000, "served")])
def test_marks_of_a_passing_object_are_looked_at_up_to_a_number(piece: bytes, name: str) -> None:
    reader = ResponseReader("served", "asked")
    reader.begin(Headers([("content-type", "application/json")]))
    reader.holds = False
    pieces = [b'{"a":[' + piece, piece, piece + b"{}", b'],"model":"served"}']
    text = b"".join(reader.feed(chunk, chunk is pieces[-1]) for chunk in pieces)
    assert json.loads(text)["model"] == name
