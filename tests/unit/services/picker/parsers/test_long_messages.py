"""gRPC messages that would take long to read: what is still known of them, and which pass unread."""

import zlib
from typing import Any

import pytest

from services.picker.parsers.json_counts import MAX_DECODED
from services.picker.parsers.vllm_grpc import VllmGrpcParameters, VllmGrpcParser
from services.picker.request import Content, Headers, Unparsable
from tests.benchmarks.bench_longest import empty_blocks, field, frame
from tests.unit.services.picker.parsers.test_bad_input import HEADERS

GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
MANY = 200_000
IDS = field(2, field(2, b"\x81\x01" * MANY))


def read(message: bytes, **most: Any) -> Content:
    return VllmGrpcParser("p", VllmGrpcParameters(**most)).parse(GENERATE, HEADERS, frame(message))


def test_many_token_ids_are_counted_and_stand_as_they_came() -> None:
    content = read(IDS)
    assert (content.prompt_tokens, content.prompt) == (MANY, b"\x81\x01" * MANY)
    longer = read(field(2, field(2, b"\x81\x01" * MANY + b"\x07")))
    assert longer.prompt.startswith(content.prompt)
    pictures = read(IDS + field(7, field(6, b"cat"))), read(IDS + field(7, field(6, b"dog")))
    assert len({parsed.prompt for parsed in (content, *pictures)}) == 3


def test_of_a_long_text_the_beginning_is_kept_and_all_of_it_counted() -> None:
    content = read(field(3, b"word" * MAX_DECODED))
    assert (len(content.prompt), content.prompt_tokens) == (MAX_DECODED, MAX_DECODED)


def test_ids_in_several_fields_are_one_prompt() -> None:
    parts = field(2, field(2, b"\x07\x81\x01") + b"\x10\xff\xff\xff\xff\xff\x01") + field(2, field(2, b"\x08"))
    content = read(parts)
    assert content.prompt == b"".join(id.to_bytes(4, "little") for id in (7, 129, 0xFFFFFFFF, 8))


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"\x28\x01" * 5001, "more than 5000 fields"),
        (field(2, field(2, b"\x07" * 2_000_001)), "2000001 token ids; the limit is 2000000"),
    ],
)
def test_a_message_beyond_the_limits_is_refused(message: bytes, says: str) -> None:
    with pytest.raises(Unparsable, match=says):
        read(message)


@pytest.mark.parametrize(
    "sent",
    [
        zlib.compress(field(3, b"x" * 2**20)),
        empty_blocks(70_000),
    ],
    ids=["becomes too much", "is too much"],
)
def test_a_compressed_message_beyond_the_limits_is_not_read(sent: bytes) -> None:
    headers = Headers([(":method", "POST"), ("content-type", "application/json"), ("grpc-encoding", "deflate")])
    body = b"\x01" + len(sent).to_bytes(4, "big") + sent
    trusting = VllmGrpcParser("p", VllmGrpcParameters(transfer_parameters=True))
    assert trusting.parse(GENERATE, headers, body) == Content()
