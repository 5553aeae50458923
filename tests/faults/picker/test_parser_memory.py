"""Bodies made to fill the memory: what parsing takes stays bounded, within the limits and beyond them."""

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from services.picker.parsers.json_values import JsonParameters
from services.picker.parsers.vllm_grpc import VllmGrpcParameters
from tests.unit.services.picker.parsers.test_bad_input import GRPC, outcome


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


def many(before: str, part: str, count: int, after: str) -> bytes:
    return (before + f"{part}," * (count - 1) + part + after).encode()


LARGE: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "messages": ("/v1/chat/completions", lambda by: many('{"messages":[', "{}", by * OBJECTS, "]}")),
    "texts": ("/v1/chat/completions", lambda by: many('{"messages":[{"content":[', '""', by * VALUES_READ, "]}]}")),
    "token ids": ("/v1/completions", lambda by: many('{"prompt":[', "300", by * VALUES_READ, "]}")),
    "hashes": (
        "/inference/v1/generate",
        lambda by: many('{"token_ids":[1],"features":{"mm_hashes":{"image":[', '""', by * VALUES_READ, "]}}}"),
    ),
    "parts": (GRPC[0], lambda by: frame(b"\x12\x00" * by * FIELDS_READ)),
    "packed ids": (GRPC[1], lambda by: frame(field(2, field(2, b"\x07" * by * IDS_READ)))),
    "a tensor": (GRPC[0], lambda by: frame(field(2, field(2, b"\x07")) + field(7, field(2, b"\x07" * by * 10**7)))),
}


@pytest.mark.parametrize(("what", "by"), [*((what, 1) for what in LARGE), ("texts", 3), ("a tensor", 3)])
def test_memory_is_bounded_however_many_values_come(what: str, by: int) -> None:
    """As many as are read, and three times as many. Without limits, lists of nothing would take up to thirty times what
    the body takes."""
    path, make = LARGE[what]
    body = make(by)
    tracemalloc.start()
    try:
        outcome(path, body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < BOUND
