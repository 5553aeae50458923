"""The usage of vLLM's gRPC responses, however they are cut. Messages are made by protobuf's own runtime."""

import gzip
import struct
import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.picker.body_buffer import MemoryBudget
from services.picker.request import Headers
from services.picker.responses.reader import Interest, ResponseReader
from services.picker.responses.usage import NOTHING, Usage
from tests.unit.services.picker.parsers.vllm_schema import message


def frame(data: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BI", flag, len(data)) + data


def piece(completion: int, prompt: int = 7, cached: int = 0) -> bytes:
    chunk = message(
        "GenerateStreamChunk",
        token_ids=[1, 2, 3],
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
    )
    return frame(message("GenerateResponse", chunk=chunk).SerializeToString())


def complete(completion: int = 10, prompt: int = 7, cached: int = 4) -> bytes:
    whole = message(
        "GenerateComplete",
        output_ids=[300] * completion,
        finish_reason="stop",
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
    )
    return frame(message("GenerateResponse", complete=whole).SerializeToString())


def reader(
    api: str = "generate",
    kind: str = "application/grpc",
    encoding: str = "",
    limit: int = 2**20,
    budget: MemoryBudget | None = None,
) -> ResponseReader:
    made = ResponseReader(limit=limit, api=api, budget=budget)
    assert made.begin(Headers([("content-type", kind), ("grpc-encoding", encoding)])) is Interest.READ
    return made


def told(pieces: Iterable[bytes], response_reader: ResponseReader) -> Usage:
    for piece in pieces:
        assert response_reader.feed(piece, False) == piece
    assert response_reader.feed(b"", True) == b""
    return response_reader.usage


@given(st.lists(st.integers(0, 200), max_size=12))
def test_usage_is_read_wherever_messages_are_cut(places: list[int]) -> None:
    text = piece(1) + piece(2) + complete()
    edges = [0, *sorted({place % (len(text) + 1) for place in places}), len(text)]
    budget = MemoryBudget()
    assert told([text[start:end] for start, end in pairwise(edges)], reader(budget=budget)) == Usage(7, 10, 4)
    assert budget.used == 0


def test_of_a_stream_that_breaks_off_its_last_piece_counts() -> None:
    assert told([piece(1), piece(2, cached=3), complete()[:-1]], reader()) == Usage(7, 2, 3)


def test_each_of_several_answers_to_one_request_has_its_own_output() -> None:
    assert told([piece(1), complete(10), piece(1), complete(5)], reader()) == Usage(7, 15, 4)


def test_embeddings_tell_their_prompt() -> None:
    sent = message("EmbedResponse", embedding=[0.5] * 100, prompt_tokens=9, embedding_dim=100)
    assert told([frame(sent.SerializeToString())], reader("embeddings")) == Usage(9, None, None)


def test_compressed_messages_are_read() -> None:
    text = frame(gzip.compress(complete()[5:]), 1)
    assert told([text], reader(encoding="gzip", kind="Application/gRPC+proto")) == Usage(7, 10, 4)
    assert told([text], reader(encoding="zstd")) == NOTHING
    assert told([text, complete(1)], reader()) == Usage(7, 1, 4)


@pytest.mark.parametrize(
    "text",
    [
        b"no healthy upstream",
        frame(b"\xff\xff\xff"),
        frame(b"\x12\x03\xff\xff\xff"),
        frame(b""),
        complete(0, 0, 0),
        b"\x00" * 1000,
        b"",
    ],
)
def test_what_tells_no_usage_passes(text: bytes) -> None:
    assert told([text[:3], text[3:]], reader()) == NOTHING


def test_a_message_beyond_the_limit_is_passed_over_and_the_next_one_is_read() -> None:
    large, budget = complete(5000), MemoryBudget()
    text = large + complete(1) + large
    for size in (1, 7, 100, len(text)):
        response_reader = reader(limit=100, budget=budget)
        for at in range(0, len(text), size):
            response_reader.feed(text[at : at + size], False)
            assert budget.used <= 105
        assert response_reader.usage == Usage(7, 1, 4)
    assert told([large, complete(1)], reader(limit=100)) == Usage(7, 1, 4)


def test_long_pieces_arent_kept_until_the_next() -> None:
    chunk = message("GenerateStreamChunk", token_ids=[300] * 100_000, prompt_tokens=7, completion_tokens=2)
    long = frame(message("GenerateResponse", chunk=chunk).SerializeToString())
    tracemalloc.start()
    readers = [reader() for _ in range(20)]
    assert [told([long], response_reader) for response_reader in readers] == [Usage(7, 2, 0)] * 20
    assert tracemalloc.get_traced_memory()[0] < 2 * len(long)
    tracemalloc.stop()
    assert told([piece(3)], readers[0]) == Usage(7, 3, 0), "the last piece counts"


def test_nothing_is_held_where_there_is_no_room() -> None:
    budget = MemoryBudget(50)
    budget.used = 45
    response_reader = reader(budget=budget)
    assert told([complete()[:20], complete()[20:]], response_reader) == NOTHING
    assert budget.used == 45
    assert told([complete()], reader(budget=budget)) == Usage(7, 10, 4)


@pytest.mark.parametrize(
    ("api", "kind"),
    [
        ("completions", "application/grpc"),
        ("", "application/grpc"),
        ("generate", "application/grpc-web"),
        ("generate", ""),
    ],
)
def test_other_responses_arent_read(api: str, kind: str) -> None:
    assert ResponseReader(api=api).begin(Headers([("content-type", kind)])) is Interest.NOTHING
