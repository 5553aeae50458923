"""What `vertexai-parser` reads of the JSON in gRPC messages, and of their responses."""

import json
import struct
from typing import Any

import pytest

from services.picker.parsers.protobuf import varint
from services.picker.parsers.vertexai import VertexAiParser
from services.picker.request import Content, Headers, Unparsable
from services.picker.responses.reader import ResponseReader
from services.picker.responses.usage import NOTHING, Usage

PARSER = VertexAiParser("vertexai-parser")
SERVICE = "/google.cloud.aiplatform.v1beta1.PredictionService"
GRPC = Headers([("content-type", "application/grpc")])


def field(number: int, value: bytes) -> bytes:
    """A field of bytes."""
    return varint(number << 3 | 2) + varint(len(value)) + value


def framed(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def http_body(data: bytes) -> bytes:
    return field(1, b"application/json") + field(2, data)


def asked(data: Any) -> bytes:
    """The request of any of the three methods."""
    return framed(field(1, b"projects/p/endpoints/e") + field(2, http_body(json.dumps(data).encode())))


def parse(method: str, body: bytes) -> Content:
    return PARSER.parse(f"{SERVICE}/{method}", GRPC, body)


@pytest.mark.parametrize(
    ("method", "data", "expected"),
    [
        (
            "ChatCompletions",
            {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True, "max_tokens": 5},
            Content(api="chat", model="m", model_fixed=True, stream=True, prompt=b"user\nHello\n", output_limit=5),
        ),
        ("RawPredict", {"input": "Hello"}, Content(api="responses", model_fixed=True, prompt=b"user\nHello\n")),
        ("StreamRawPredict", {"input": "Hello"}, Content(api="responses", model_fixed=True, prompt=b"user\nHello\n")),
    ],
)
def test_the_json_in_a_message(method: str, data: Any, expected: Content) -> None:
    assert parse(method, asked(data)) == expected
    assert PARSER.parse(f"{SERVICE.replace('v1beta1', 'v1')}/{method}", GRPC, asked(data)) == expected


def test_other_calls_pass_unread() -> None:
    assert PARSER.takes(GRPC)
    assert not PARSER.takes(Headers([("content-type", "application/json")]))
    assert PARSER.parse("/grpc.health.v1.Health/Check", GRPC, b"anything") == Content()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\0\0\0\0", "invalid gRPC frame"),
        (framed(b"\xff"), "the ChatCompletionsRequest can't be read: "),
        (framed(field(1, b"projects/p")), "the ChatCompletionsRequest has no http_body"),
        (framed(field(2, b"")), "the body is empty"),
        (asked({"model": "m"}), "messages: missing"),
    ],
)
def test_what_cant_be_read_is_refused(body: bytes, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse("ChatCompletions", body)
    assert str(caught.value).startswith(says), str(caught.value)


USAGE = b'{"object":"chat.completion","usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}'

MUCH = b'data: {"usage":{"a":[%s[]]}}\n' % (b"[]," * 6000)


@pytest.mark.parametrize(
    ("messages", "usage"),
    [
        ([http_body(USAGE)], Usage(10, 20, None)),
        ([http_body(b'data: {"choices":[]}\n\n'), http_body(b"data: " + USAGE + b"\n\n")], Usage(10, 20, None)),
        ([http_body(b"data: {}\n" * 5000 + b"data: " + USAGE + b"\n\n")], Usage(10, 20, None)),
        ([http_body(b"data: " + USAGE + b"\n" + b"data: {}\n" * 1999)], Usage(10, 20, None)),
        ([http_body(b"data: " + USAGE + b"\n" + b"data: {}\n" * 2000)], NOTHING),
        ([http_body(b"data: " + USAGE + b"\n" + MUCH * 1)], Usage(10, 20, None)),
        ([http_body(b"data: " + USAGE + b"\n" + MUCH * 2)], NOTHING),
        ([http_body(b"not JSON")], NOTHING),
        ([b"\xff"], NOTHING),
    ],
)
def test_the_tokens_of_a_response(messages: list[bytes], usage: Usage) -> None:
    for api in ("chat", "responses"):
        reader = ResponseReader(api=api)
        reader.begin(Headers([("content-type", "application/grpc")]))
        body = b"".join(map(framed, messages))
        for at in range(0, len(body), 7):
            reader.feed(body[at : at + 7], end=False)
        assert reader.usage == usage
