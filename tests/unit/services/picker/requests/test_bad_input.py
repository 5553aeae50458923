"""Whatever comes: every parser reads it or refuses it in words, and takes no memory out of proportion."""

import json
import struct
import tracemalloc
from collections.abc import Callable

import pytest
from msgspec import structs

from services.picker.requests.anthropic import AnthropicParser
from services.picker.requests.json_values import JsonParameters
from services.picker.requests.openai import OpenAIParser
from services.picker.requests.parsers import ParserChain
from services.picker.requests.passthrough import PassthroughParser
from services.picker.requests.request import Content, Headers, Unparsable
from services.picker.requests.splice import replace_model
from services.picker.requests.vllm_grpc import VllmGrpcParameters, VllmGrpcParser
from services.picker.requests.vllm_http import VllmHttpParser

CHAIN = ParserChain(
    [
        OpenAIParser("openai"),
        AnthropicParser("anthropic"),
        VllmHttpParser("vllm"),
        VllmGrpcParser("grpc"),
        PassthroughParser("other"),
    ]
)
JSON_FIELDS = {
    "/v1/chat/completions": '"messages":[{"role":"user","content":%s}]',
    "/v1/chat/completions/render": '"messages":[{"role":"user","content":%s}]',
    "/v1/completions": '"prompt":%s',
    "/v1/completions/render": '"prompt":%s',
    "/v1/embeddings": '"input":%s',
    "/v1/responses": '"input":%s',
    "/v1/conversations": '"items":[{"content":%s}]',
    "/v1/images/generations": '"prompt":%s',
    "/v1/messages": '"messages":[{"role":"user","content":%s}]',
    "/v1/messages/count_tokens": '"messages":[{"role":"user","content":%s}]',
    "/inference/v1/generate": '"token_ids":[1],"features":%s',
}
GRPC = ["/vllm.grpc.engine.VllmEngine/Generate", "/vllm.grpc.engine.VllmEngine/Embed"]
OTHER = ["/v1/rerank"]
HEADERS = Headers([(":method", "POST"), ("content-type", "application/json")])

VALUES = {
    "invalid UTF-8": b'"\xff\xfe"',
    "an overlong form": b'"\xc0\xaf"',
    "a lone surrogate": b'"\\ud800"',
    "a NUL": b'"\\u0000"',
    "a raw NUL": b'"\0"',
    "deep lists": b"[" * 20_000 + b"]" * 20_000,
    "deep objects": b'{"a":' * 20_000 + b"1" + b"}" * 20_000,
    "deep and never closed": b"[" * 200_000,
    "beyond 2^53": b"9007199254740993",
    "a huge integer": b"9" * 100_000,
    "a huge exponent": b"1e999999999",
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "a long text": b'"' + b"x" * 10_000_000 + b'"',
    "a long text of escapes": b'"' + b"\\u00e9" * 200_000 + b'"',
    "an empty text": b'""',
    "null": b"null",
    "true": b"true",
    "a list that mixes": b'["a",1,[2],{"text":"b"}]',
    "many empty lists": b"[" + b"[]," * 600_000 + b"[]]",
    "many numbers": b"[" + b"7," * 2_100_000 + b"7]",
}


def bodies(value: bytes, fields: str) -> list[bytes]:
    """The value as what the API reads, as a model, beside what is read, and twice."""
    before, _, after = fields.encode().partition(b"%s")
    field = before + value + after
    normal = before + b'"hi"' + after
    return [
        b'{"model":"m",' + field + b"}",
        b'{"model":' + value + b"," + normal + b"}",
        b'{"model":"m","other":' + value + b"," + normal + b"}",
        b'{"model":"m",' + normal + b"," + field + b',"model":"n"}',
        b'{"model":"m",' + field,
        value,
    ]


def outcome(path: str, body: bytes, headers: Headers = HEADERS) -> Content | str:
    try:
        return CHAIN.parse(path, headers, body)
    except Unparsable as error:
        return str(error)


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
@pytest.mark.parametrize("path", [*JSON_FIELDS, *GRPC, *OTHER])
def test_every_body_is_read_or_refused_in_short_words(path: str, value: bytes) -> None:
    for body in bodies(value, JSON_FIELDS.get(path, '"x":%s')):
        found = outcome(path, body)
        if isinstance(found, str):
            assert 0 < len(found) < 400, found
        elif found.takes_model:
            assert outcome(path, replace_model(body, "else")) == structs.replace(found, model="else")


@pytest.mark.parametrize("path", JSON_FIELDS)
def test_duplicate_keys_read_as_servers_read_them(path: str) -> None:
    body = b'{"model":"first",%s,"model":"last"}' % (JSON_FIELDS[path] % '"hi"').encode()
    found = outcome(path, body)
    assert isinstance(found, Content)
    assert found.model == json.loads(body)["model"] == "last"


def frame(data: bytes) -> bytes:
    return struct.pack(">BI", 0, len(data)) + data


def field(number: int, data: bytes) -> bytes:
    size, pieces = len(data), bytearray([number << 3 | 2])
    while size > 0x7F:
        pieces.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes(pieces) + bytes([size]) + data


OBJECTS = JsonParameters().max_objects - 10
VALUES_READ = JsonParameters().max_values - 10
FIELDS_READ = VllmGrpcParameters().max_fields - 10
IDS_READ = VllmGrpcParameters().max_token_ids
BOUND = 256 * 2**20


def many(before: str, one: str, count: int, after: str) -> bytes:
    return (before + f"{one}," * (count - 1) + one + after).encode()


LARGE: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "messages": ("/v1/chat/completions", lambda by: many('{"messages":[', "{}", by * OBJECTS, "]}")),
    "texts": ("/v1/chat/completions", lambda by: many('{"messages":[{"content":[', '""', by * VALUES_READ, "]}]}")),
    "token ids": ("/v1/completions", lambda by: many('{"prompt":[', "300", by * VALUES_READ, "]}")),
    "prompts": ("/v1/completions", lambda by: many('{"prompt":[', "[]", by * OBJECTS, "]}")),
    "a model": ("/v1/completions", lambda by: many('{"prompt":"x","model":[', '""', by * VALUES_READ, "]}")),
    "a limit": ("/v1/completions", lambda by: many('{"prompt":"x","n":[', '""', by * VALUES_READ, "]}")),
    "blocks": ("/v1/messages", lambda by: many('{"messages":[{"content":[', "{}", by * OBJECTS, "]}]}")),
    "hashes": (
        "/inference/v1/generate",
        lambda by: many('{"token_ids":[1],"features":{"mm_hashes":{"image":[', '""', by * VALUES_READ, "]}}}"),
    ),
    "fields": (GRPC[0], lambda by: frame(b"\x28\x01" * by * FIELDS_READ)),
    "parts": (GRPC[0], lambda by: frame(b"\x12\x00" * by * FIELDS_READ)),
    "packed ids": (GRPC[1], lambda by: frame(field(2, field(2, b"\x07" * by * IDS_READ)))),
    "placeholders": (GRPC[0], lambda by: frame(field(2, field(2, b"\x07")) + field(7, b"\x2a\x00" * by * FIELDS_READ))),
    "a tensor": (GRPC[0], lambda by: frame(field(2, field(2, b"\x07")) + field(7, field(2, b"\x07" * by * 10**7)))),
}


@pytest.mark.parametrize("by", [1, 3], ids=["as many as are read", "three times as many"])
@pytest.mark.parametrize(("path", "make"), LARGE.values(), ids=LARGE.keys())
def test_memory_is_bounded_however_many_values_come(path: str, make: Callable[[int], bytes], by: int) -> None:
    """Without limits, lists of nothing would take up to thirty times what the body takes."""
    body = make(by)
    tracemalloc.start()
    try:
        outcome(path, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BOUND
