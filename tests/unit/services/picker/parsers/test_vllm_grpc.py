"""What `vllmgrpc-parser` reads of calls to vLLM's gRPC service. Messages are made by protobuf's own runtime."""

import gzip
import struct
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from services.picker.parsers.vllm_grpc import VllmGrpcParameters, VllmGrpcParser
from services.picker.request import Content, Headers, Unparsable
from tests.unit.services.picker.parsers.vllm_schema import message

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
EMBED = "/vllm.grpc.engine.VllmEngine/Embed"
PARSER = VllmGrpcParser("vllmgrpc-parser")


def frame(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


def parse(path: str, data: bytes, parser: VllmGrpcParser = PARSER, **headers: str) -> Content:
    return parser.parse(path, Headers([(name.replace("_", "-"), value) for name, value in headers.items()]), data)


def generate(**fields: Any) -> Content:
    return parse(GENERATE, frame(message("GenerateRequest", **fields).SerializeToString()))


def ids(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def test_a_text_is_the_prompt() -> None:
    found = generate(request_id="r", text="größe", stream=True, sampling_params={"max_tokens": 64, "n": 2})
    assert found == Content(api="generate", stream=True, prompt="größe".encode(), output_limit=64, parallel=2)


def test_token_ids_are_the_prompt_and_are_counted() -> None:
    found = generate(tokenized={"original_text": "x", "input_ids": [1, 300, 2**32 - 1]})
    assert found == Content(api="generate", prompt=ids(1, 300, 2**32 - 1), prompt_tokens=3)


def test_a_limit_of_nothing_is_a_limit() -> None:
    assert generate(text="x", sampling_params=message("SamplingParams")).output_limit is None
    zero = frame(message("GenerateRequest", text="x").SerializeToString() + b"\x22\x02\x40\x00")
    assert parse(GENERATE, zero).output_limit == 0


def test_pictures_make_equal_ids_differ() -> None:
    def prompt(*hashes: str) -> bytes:
        pictures = {"mm_hashes": hashes, "mm_placeholders": [{"offset": 1, "length": 2}], "pixel_values": b"x" * 999}
        return generate(tokenized={"input_ids": [1, 9, 9, 2]}, mm_inputs=pictures).prompt

    assert prompt("cat") == prompt("cat", "unused")
    assert len({prompt("cat"), prompt("dog"), prompt(""), prompt()}) == 3
    assert prompt() == prompt("") == ids(1, 9, 9, 2)
    assert prompt("cat")[:4] == ids(1)
    assert prompt("cat")[12:] == ids(2)


@pytest.mark.parametrize("values", [[5, 6], []])
def test_an_embedding_is_made_of_token_ids_which_may_be_none_at_all(values: list[int]) -> None:
    """That is for the server to judge."""
    data = frame(message("EmbedRequest", tokenized={"original_text": "x", "input_ids": values}).SerializeToString())
    assert parse(EMBED, data) == Content(api="embeddings", prompt=ids(*values), prompt_tokens=len(values))


def test_a_compressed_message_is_read() -> None:
    data = gzip.compress(message("GenerateRequest", text="hi").SerializeToString())
    assert parse(GENERATE, frame(data, 1), grpc_encoding="gzip").prompt == b"hi"


@pytest.mark.parametrize(
    ("limits", "encoding"),
    [({}, "zstd"), ({}, "GZIP"), ({"max_message_bytes": 3}, "gzip"), ({"max_compressed_bytes": 3}, "gzip")],
)
def test_a_message_that_cant_be_read_passes_only_where_it_can_name_no_servers(
    limits: dict[str, Any], encoding: str
) -> None:
    data = frame(gzip.compress(message("GenerateRequest", text="hi").SerializeToString()), 1)
    parser = VllmGrpcParser("p", VllmGrpcParameters(**limits))
    with pytest.raises(Unparsable, match="the GenerateRequest can't be read, and may name other servers: compressed"):
        parse(GENERATE, data, parser, grpc_encoding=encoding)
    assert parse(EMBED, data, parser, grpc_encoding=encoding) == Content()
    trusting = VllmGrpcParser("p", VllmGrpcParameters(**limits, transfer_parameters=True))
    assert parse(GENERATE, data, trusting, grpc_encoding=encoding) == Content()


@pytest.mark.parametrize(
    ("field", "refused"),
    [
        (b"\x32\x03\x0a\x01h", "kv_transfer_params: not taken from clients"),
        (b"\x42\x02{}", "kv_transfer_params_json: not taken from clients"),
        (b"\x32\x00\x42\x00\x48\x01", ""),
    ],
    ids=["message", "JSON", "nothing"],
)
def test_clients_dont_name_servers_from_which_a_model_server_takes_data(field: bytes, refused: str) -> None:
    data = frame(message("GenerateRequest", text="hi").SerializeToString() + field)
    trusting = VllmGrpcParser("trusting", VllmGrpcParameters(transfer_parameters=True))
    assert parse(GENERATE, data, trusting).prompt == b"hi"
    if refused:
        with pytest.raises(Unparsable, match=refused):
            parse(GENERATE, data)
    else:
        assert parse(GENERATE, data).prompt == b"hi"


@pytest.mark.parametrize("path", ["/vllm.grpc.engine.VllmEngine/Abort", "/grpc.health.v1.Health/Check", "/x"])
def test_other_calls_pass_unread(path: str) -> None:
    assert parse(path, b"plain text") == Content()


@pytest.mark.parametrize(
    ("path", "data", "says"),
    [
        (GENERATE, b"", "invalid gRPC frame: expected at least 5 bytes for header, got 0"),
        (
            GENERATE,
            frame(b""),
            "the GenerateRequest can't be read: it has neither text nor tokenized; one of them is needed",
        ),
        (EMBED, frame(b""), "the EmbedRequest can't be read: tokenized is missing; it is needed"),
        (GENERATE, frame(b"\x1a\x02\xff\xff"), "the GenerateRequest can't be read: 'utf-8' codec can't decode"),
        (GENERATE, frame(b"\x1a\x05x"), "the GenerateRequest can't be read: field 3 has 5 bytes, but only 1 are left"),
        (GENERATE, frame(b"\xff"), "the GenerateRequest can't be read: a number is cut off at the end"),
        (EMBED, frame(b"\x12\x03\x12\x01\x80"), "the EmbedRequest can't be read: the last number is cut off"),
    ],
)
def test_a_message_that_the_server_would_refuse_is_refused(path: str, data: bytes, says: str) -> None:
    with pytest.raises(Unparsable) as caught:
        parse(path, data)
    assert str(caught.value).startswith(says), str(caught.value)


def test_no_more_is_read_than_the_limits_say() -> None:
    parser = VllmGrpcParser("p", VllmGrpcParameters(max_fields=10, max_token_ids=5))
    many = message("GenerateRequest", tokenized={"input_ids": range(6)}).SerializeToString()
    with pytest.raises(Unparsable, match="6 token ids; the limit is 5"):
        parse(GENERATE, frame(many), parser)
    with pytest.raises(Unparsable, match="more than 10 fields"):
        parse(GENERATE, frame(b"\x28\x01" * 11), parser)
    with pytest.raises(Unparsable, match="more than 10 fields"):
        parse(GENERATE, frame(b"\x12\x14" + b"\x10\x01" * 10), parser)


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "request_id": st.text(max_size=5),
        "text": st.text(max_size=9),
        "tokenized": st.builds(
            lambda values: message("TokenizedInput", input_ids=values), st.lists(st.integers(0, 2**32 - 1), max_size=9)
        ),
        "sampling_params": st.builds(
            lambda tokens, n: message("SamplingParams", max_tokens=tokens, n=n),
            st.integers(1, 2**32 - 1),
            st.integers(0, 9),
        ),
        "stream": st.booleans(),
    },
)


@given(parts=st.lists(FIELDS, min_size=1, max_size=3), loose=st.binary(max_size=8))
def test_messages_read_as_protobuf_reads_them(parts: list[dict[str, Any]], loose: bytes) -> None:
    """Also when they come in parts, which the wire format puts together, and when they are broken."""
    data = b"".join(message("GenerateRequest", **part).SerializeToString() for part in parts) + loose
    expected = message("GenerateRequest")
    try:
        expected.ParseFromString(data)
    except DecodeError:
        expected = None
    try:
        found = parse(GENERATE, frame(data))
    except Unparsable:
        assert expected is None or expected.WhichOneof("input") is None or _unread(loose)
        return
    if expected is None:
        return  # protobuf looks at fields that nobody reads here, and at groups
    assert found.stream == expected.stream
    if expected.WhichOneof("input") == "text":
        assert found.prompt == expected.text.encode()
    else:
        assert found.prompt == ids(*expected.tokenized.input_ids)
        assert found.prompt_tokens == len(expected.tokenized.input_ids)
    limit = expected.sampling_params.max_tokens
    assert (found.output_limit or 0) == limit
    assert found.parallel == max(expected.sampling_params.n, 1)


def _unread(loose: bytes) -> bool:
    """Whether the bytes begin groups, which protobuf passes over."""
    return any(byte & 7 in (3, 4) for byte in loose)
