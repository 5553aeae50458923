"""Answers of HTTP/1.1 servers, byte by byte."""

import gzip
import random
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.collector.http.response import (
    EXPANDED,
    FREE_CHUNKS,
    LEAST_CHUNK,
    MOST_HEAD,
    SMALL,
    Answer,
    AnswerReader,
    BadAnswerError,
    TooLargeError,
    expanded,
)

PAGE = b"vllm:num_requests_waiting 3\n" * 4
LIMIT = 1000


def head(*headers: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *headers, "", ""]).encode()


def read(data: bytes, *, limit: int = LIMIT, cuts: list[int] | None = None, end: bool = False) -> Answer | None:
    """The answer in the data, which come in pieces; with `end` the connection ends after them."""
    reader, at = AnswerReader(limit), 0
    for cut in [*sorted(cuts or []), len(data)]:
        answer = reader.feed(data[at:cut]) if cut > at else None
        at = max(at, cut)
        if answer is not None:
            return whole(answer, limit)
    return whole(reader.end(), limit) if end else None


def whole(answer: Answer, limit: int) -> Answer:
    """With its body expanded."""
    return replace(answer, body=b"".join(expanded(answer, limit)), encoding="") if answer.encoding else answer


LENGTH = head("Content-Type: text/plain; version=0.0.4", f"content-length:{len(PAGE)} ") + PAGE
CHUNKS = (
    head("Transfer-Encoding: Chunked") + b"4\r\nvllm\r\n0a ; name=value\r\n:num_reque\r\n"
    b"%x\r\n" % (len(PAGE) - 14) + PAGE[14:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
)
SOUND = {
    "by length": LENGTH,
    "in chunks": CHUNKS,
    "after interim answers": head(status="HTTP/1.1 100 Continue") + head(status="HTTP/1.1 103 Early Hints") + LENGTH,
    "without a reason": head(f"Content-Length: {len(PAGE)}", status="HTTP/1.1 200") + PAGE,
    "of equal lengths": head(f"Content-Length: {len(PAGE)}", f"Content-Length: {len(PAGE)}") + PAGE,
    "HTTP/1.0 kept": head(f"Content-Length: {len(PAGE)}", "Connection: Keep-Alive", status="HTTP/1.0 200 OK") + PAGE,
}


@pytest.mark.parametrize("name", SOUND)
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(1, 400)))
def test_an_answer_is_read_however_it_is_cut(name: str, cuts: list[int]) -> None:
    answer = read(SOUND[name], cuts=[cut for cut in cuts if cut < len(SOUND[name])])
    assert answer is not None
    assert (answer.status, answer.body, answer.reusable) == (200, PAGE, True)


@pytest.mark.parametrize("name", SOUND)
def test_an_answer_that_breaks_off_anywhere_is_none(name: str) -> None:
    for cut in range(len(SOUND[name])):
        with pytest.raises(BadAnswerError):
            read(SOUND[name][:cut], end=True)


def test_headers_are_by_small_names_and_joined() -> None:
    answer = read(head("A: 1", "b:\t2 ", "a: 3", "Content-Length: 0"))
    assert answer is not None
    assert answer.headers == {"a": "1, 3", "b": "2", "content-length": "0"}
    assert answer.body == b""


def test_without_a_length_the_end_of_the_connection_ends_the_page() -> None:
    answer = read(head("Content-Type: text/plain", status="HTTP/1.0 200 OK") + PAGE, cuts=[20, 60], end=True)
    assert answer is not None
    assert (answer.body, answer.reusable) == (PAGE, False)


@pytest.mark.parametrize(
    "data",
    [
        head(f"Content-Length: {len(PAGE)}", "Connection: close") + PAGE,
        head(f"Content-Length: {len(PAGE)}", status="HTTP/1.0 200 OK") + PAGE,
        LENGTH + b"more",
        CHUNKS + b"more",
    ],
    ids=["close", "HTTP/1.0", "more than its length", "more than its chunks"],
)
def test_a_connection_is_not_used_again_when(data: bytes) -> None:
    answer = read(data)
    assert answer is not None
    assert (answer.body, answer.reusable) == (PAGE, False)


def test_a_head_like_one_before_is_held_against_this_answers_limit() -> None:
    assert read(LENGTH, limit=len(PAGE)) is not None
    with pytest.raises(TooLargeError):
        read(LENGTH, limit=len(PAGE) - 1)
    other = read(LENGTH.replace(PAGE, PAGE.upper()))
    assert other is not None
    assert other.body == PAGE.upper()


@pytest.mark.parametrize("status", [204, 301, 302, 304, 404, 500, 503])
def test_an_answer_that_is_no_page_is_complete_with_its_head(status: int) -> None:
    answer = read(head("Location: /there", "Content-Length: 100000000", status=f"HTTP/1.1 {status} So so"))
    assert answer is not None
    assert (answer.status, answer.reason, answer.body, answer.reusable) == (status, "So so", b"", False)
    assert answer.headers["location"] == "/there"


BAD = {
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "no HTTP at all": b"\x16\x03\x01",
    "HTTP/2": head(status="HTTP/2 200"),
    "a status that is none": head(status="HTTP/1.1 2000 OK"),
    "a switch of protocols": head("Upgrade: h2c", status="HTTP/1.1 101 Switching Protocols"),
    "a header without a name": head(": x"),
    "a header without a colon": head("nonsense"),
    "a folded header": head("A: 1", " 2"),
    "a blank before the colon": head("Content-Length : 5"),
    "two lengths": head("Content-Length: 5", "Content-Length: 6"),
    "a negative length": head("Content-Length: -1"),
    "a length that is no number": head("Content-Length: 1_0"),
    "a length of many digits": head("Content-Length: " + "1" * 30),
    "an unknown transfer encoding": head("Transfer-Encoding: gzip, chunked"),
    "an unknown content encoding": head("Content-Encoding: br", "Content-Length: 1"),
    "a chunk without a size": head("Transfer-Encoding: chunked") + b"\r\n",
    "a negative chunk": head("Transfer-Encoding: chunked") + b"-1\r\n",
    "a chunk that doesn't end": head("Transfer-Encoding: chunked") + b"1\r\nabc",
    "an endless size": head("Transfer-Encoding: chunked") + b"1;" + b"x" * (MOST_HEAD + 1),
    "an endless trailer": head("Transfer-Encoding: chunked") + b"0\r\n" + b"x" * (MOST_HEAD + 1),
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
    "a large head": head("a: " + "b" * MOST_HEAD),
    "gzip that is none": head("Content-Encoding: gzip", "Content-Length: 5") + b"hello",
    "gzip that breaks off": head("Content-Encoding: gzip", "Content-Length: 20") + gzip.compress(PAGE * 4)[:20],
}


@pytest.mark.parametrize("what", BAD)
def test_is_refused(what: str) -> None:
    with pytest.raises(BadAnswerError):
        read(BAD[what])


@pytest.mark.parametrize(
    ("encoding", "packed"), [("gzip", gzip.compress(PAGE, mtime=0)), ("deflate", zlib.compress(PAGE))]
)
def test_a_page_that_was_compressed_unasked_is_read_all_the_same(encoding: str, packed: bytes) -> None:
    answer = read(head(f"Content-Encoding: {encoding}", f"Content-Length: {len(packed)}") + packed)
    assert answer is not None
    assert answer.body == PAGE


def test_what_was_compressed_is_expanded_in_small_pieces() -> None:
    page = PAGE * 10_000 + random.Random(1).randbytes(300_000)
    packed = gzip.compress(page)
    answer = AnswerReader(len(packed)).feed(head("Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed)
    assert answer is not None
    pieces = list(expanded(answer, len(page)))
    assert b"".join(pieces) == page
    assert max(map(len, pieces)) <= EXPANDED


def chunked(*sizes: int) -> bytes:
    chunks = b"".join(b"%x\r\n" % size + b"x" * size + b"\r\n" for size in sizes)
    return head("Transfer-Encoding: chunked") + chunks + b"0\r\n\r\n"


def test_an_answer_in_crumbs_is_refused() -> None:
    with pytest.raises(BadAnswerError, match="in crumbs: 1000 bytes in 1001 chunks"):
        read(chunked(*[1] * 50_000), limit=10**6)


@pytest.mark.parametrize(
    "sizes", [[1] * FREE_CHUNKS, [LEAST_CHUNK] * 5000, [40_000] + [1] * 2000, [SMALL, SMALL + 1] * 3]
)
def test_an_answer_in_small_chunks_is_read(sizes: list[int]) -> None:
    answer = read(chunked(*sizes), limit=10**6)
    assert answer is not None
    assert answer.body == b"x" * sum(sizes)
    assert type(answer.body) is bytes


BOMB = gzip.compress(b"0" * 1_000_000)
LARGE = {
    "a length": head(f"Content-Length: {LIMIT + 1}"),
    "a chunk": head("Transfer-Encoding: chunked") + b"%x\r\n" % (LIMIT + 1),
    "many chunks": head("Transfer-Encoding: chunked") + b"64\r\n" % () + (b"x" * 100 + b"\r\n64\r\n") * 10,
    "no end": head() + b"x" * (LIMIT + 1),
    "what was compressed": head("Content-Encoding: gzip", f"Content-Length: {len(BOMB)}") + BOMB,
}


@pytest.mark.parametrize("what", LARGE)
def test_a_page_beyond_the_limit_is_refused_for(what: str) -> None:
    with pytest.raises(TooLargeError):
        read(LARGE[what], limit=max(LIMIT, len(BOMB)) if what.startswith("what") else LIMIT)


def test_a_page_of_exactly_the_limit_is_read() -> None:
    body = b"x" * LIMIT
    assert read(head(f"Content-Length: {LIMIT}") + body) is not None
    assert read(head("Transfer-Encoding: chunked") + b"%x\r\n" % LIMIT + body + b"\r\n0\r\n\r\n") is not None
    assert read(head() + body, end=True) is not None


@given(st.binary(max_size=60), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", head("Transfer-Encoding: chunked")]))
def test_whatever_comes_is_an_answer_or_refused(data: bytes, start: bytes) -> None:
    try:
        answer = read(start + data, end=True)
    except (BadAnswerError, TooLargeError):
        return
    assert answer is not None
