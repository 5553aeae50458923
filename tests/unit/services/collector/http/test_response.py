"""Answers of HTTP/1.1 servers, byte by byte."""

import gzip
import random
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from services.collector.http.response import (
    DECOMPRESSED,
    HEADER_LIMIT,
    SMALL,
    BadResponseError,
    Response,
    ResponseReader,
    TooLargeError,
    decompress,
)

PAGE = b"vllm:num_requests_waiting 3\n" * 4
LIMIT = 1000


def head(*headers: str, status: str = "HTTP/1.1 200 OK") -> bytes:
    return "\r\n".join([status, *headers, "", ""]).encode()


def read(
    data: bytes,
    *,
    limit: int = LIMIT,
    header_limit: int = HEADER_LIMIT,
    cuts: Sequence[int] = (),
    end: bool = False,
) -> Response | None:
    """The answer in the data, which come in pieces; with `end` the connection ends after them."""
    reader, at = ResponseReader(limit, header_limit), 0
    for cut in [*sorted(cuts), len(data)]:
        answer = reader.feed(data[at:cut]) if cut > at else None
        at = max(at, cut)
        if answer is not None:
            return whole(answer, limit)
    return whole(reader.end(), limit) if end else None


def whole(answer: Response, limit: int) -> Response:
    """With its body decompress."""
    return replace(answer, body=b"".join(decompress(answer, limit)), encoding="") if answer.encoding else answer


LENGTH = head("Content-Type: text/plain; version=0.0.4", f"content-length:{len(PAGE)} ") + PAGE
CHUNKS = (
    head("Transfer-Encoding: Chunked") + b'4\r\nvllm\r\n0a;name="v;alue";x\r\n:num_reque\r\n'
    b"%x\r\n" % (len(PAGE) - 14) + PAGE[14:] + b"\r\n0\r\nTrailer: x\r\n\r\n"
)
EARLY = "HTTP/1.1 103 Early Hints"
INTERIM = head("Link: </style.css>", status=EARLY)
SOUND = {
    "by length": LENGTH,
    "in chunks": CHUNKS,
    "after interim answers": head(status="HTTP/1.1 100 Continue") + INTERIM + LENGTH,
    "without a reason": head(f"Content-Length: {len(PAGE)}", status="HTTP/1.1 200") + PAGE,
    "with a header of blanks": head("X-A: a" + " " * 8000 + "b", f"Content-Length: {len(PAGE)}") + PAGE,
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
        with pytest.raises(BadResponseError):
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
        CHUNKS + LENGTH,
        CHUNKS + b"\r\n",
        head("Transfer-Encoding: chunked", "Connection: keep-alive", status="HTTP/1.0 200 OK")
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE),
    ],
    ids=["close", "HTTP/1.0", "more than its length", "more", "another", "a line end", "HTTP/1.0 in chunks"],
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


CHUNKED = head("Transfer-Encoding: chunked")
BAD = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", "begins with 'SSH-2.0-OpenSSH_9.2', which isn't HTTP/1.1"),
    "no HTTP at all": (b"\x16\x03\x01", "isn't HTTP/1.1"),
    "a blank line first": (b"\r\n" + LENGTH, "isn't HTTP/1.1"),
    "HTTP/0.9": (head(status="HTTP/0.9 200 OK"), "isn't HTTP/1.1"),
    "HTTP/2": (head(status="HTTP/2 200"), "begins with 'HTTP/2 200', which isn't HTTP/1.1"),
    "HTTP/1.2": (head(status="HTTP/1.2 200 OK"), "Invalid HTTP version, at 'HTTP/1.2 200 OK'"),
    "a status that is none": (head(status="HTTP/1.1 2000 OK"), "Invalid response status, at 'HTTP/1.1 2000 OK'"),
    "a status below all": (head(status="HTTP/1.1 099 OK"), "isn't HTTP/1.1"),
    "a status above all": (head(status="HTTP/1.1 600 OK"), "isn't HTTP/1.1"),
    "a switch of protocols": (head("Upgrade: h2c", status="HTTP/1.1 101 Switching Protocols"), "switches"),
    "a switch to nothing": (head(status="HTTP/1.1 101 Switching Protocols"), "switches"),
    "a header without a name": (head(": x"), "at ': x'"),
    "a header without a colon": (head("nonsense"), "at 'nonsense'"),
    "a folded header": (head("A: 1", " 2"), "at ' 2'"),
    "a blank before the colon": (head("Content-Length : 5"), "at 'Content-Length : 5'"),
    "a control character": (head("A: 1", "B: \x01"), r"Invalid header value char, at 'B: \\x01'"),
    "a line that a bare CR ends": (head("A: 1\rB: 2"), r"Missing expected LF after header value, at 'A: 1\\rB: 2'"),
    "a line that a bare LF ends": (head("A: 1\nB: 2"), r"Missing expected CR after header value, at 'A: 1\\nB: 2'"),
    "a long wrong line": (head("A: \x01" + "x" * 200), r"at 'A: \\x01x{76}…'"),
    "two lengths": (head("Content-Length: 5", "Content-Length: 6"), "Duplicate Content-Length, at 'Content-Length: 6'"),
    "one length twice": (head("Content-Length: 5", "Content-Length: 5"), "Duplicate Content-Length"),
    "a list of lengths": (head("Content-Length: 5, 5"), "at 'Content-Length: 5, 5'"),
    "a length of many zeros": (head("Content-Length: " + "0" * 5000), "Content-Length has 5000 digits"),
    "a negative length": (head("Content-Length: -1"), "at 'Content-Length: -1'"),
    "a length that is no number": (head("Content-Length: 1_0"), "at 'Content-Length: 1_0'"),
    "an empty length": (head("Content-Length:"), "Empty Content-Length"),
    "a length of many digits": (head("Content-Length: " + "1" * 30), "overflow, at 'Content-Length: 1{30}'"),
    "a length, then chunks": (
        head("Content-Length: 5", "Transfer-Encoding: chunked"),
        "at 'Transfer-Encoding: chunked'",
    ),
    "chunks, then a length": (head("Transfer-Encoding: chunked", "Content-Length: 5"), "at 'Content-Length: 5'"),
    "an unknown transfer encoding": (head("Transfer-Encoding: gzip, chunked"), "Transfer-Encoding is 'gzip, chunked'"),
    "chunks twice": (head(*["Transfer-Encoding: chunked"] * 2), "Transfer-Encoding is 'chunked, chunked'"),
    "an unknown content encoding": (head("Content-Encoding: br", "Content-Length: 1"), "Content-Encoding is 'br'"),
    "a chunk without a size": (CHUNKED + b"\r\n", "chunks are broken after 0 bytes of the page: Invalid character"),
    "a negative chunk": (CHUNKED + b"-1\r\n", "Invalid character in chunk size"),
    "a size with blanks": (CHUNKED + b"1 \r\na\r\n", "Invalid character in chunk size"),
    "a size of many digits": (CHUNKED + b"1" * 17 + b"\r\n", "overflow"),
    "a chunk that doesn't end": (CHUNKED + b"1\r\nabc", "broken after 1 bytes of the page"),
    "an endless size": (CHUNKED + b"1;" + b"x" * (LIMIT + HEADER_LIMIT), f"more than {LIMIT + HEADER_LIMIT} bytes"),
    "an endless trailer": (CHUNKED + b"0\r\nA: " + b"x" * (LIMIT + HEADER_LIMIT), "trailers of its chunks"),
    "endless trailers": (CHUNKED + b"0\r\n" + b"a: b\r\n" * (LIMIT + HEADER_LIMIT), "trailers of its chunks"),
    "an endless reason": (b"HTTP/1.1 200 " + b"x" * HEADER_LIMIT, f"{HEADER_LIMIT} bytes, at 'HTTP/1.1 200 x+…'"),
    "an endless header": (b"HTTP/1.1 200 OK\r\nX-A: a" + b" " * HEADER_LIMIT, "bytes, at 'X-A: a +…'"),
    "blanks within a header": (head("X-A: a" + " " * 60_000 + "b"), f"more than {HEADER_LIMIT} bytes, at 'X-A: a +…'"),
    "endless headers": (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * HEADER_LIMIT, f"more than {HEADER_LIMIT} bytes"),
    "endless interim answers": (INTERIM * 10_000, f"more than {HEADER_LIMIT} bytes"),
    "large interim answers": (head("a: " + "b" * 6000, status=EARLY) * 3, f"more than {HEADER_LIMIT} bytes"),
    "gzip that is none": (head("Content-Encoding: gzip", "Content-Length: 5") + b"hello", "isn't valid gzip"),
    "gzip that is incomplete": (
        head("Content-Encoding: gzip", "Content-Length: 20") + gzip.compress(PAGE * 4)[:20],
        "is incomplete",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_is_refused(what: str) -> None:
    data, why = BAD[what]
    with pytest.raises(BadResponseError, match=why):
        read(data)
    with pytest.raises(BadResponseError, match=why):
        read(data, cuts=range(0, len(data), 97))


def test_headers_of_exactly_the_limits_are_read() -> None:
    interim, page = INTERIM * 100, head(*["a: b"] * 1000, "Content-Length: 0")
    assert read(interim + page, header_limit=len(interim + page)) is not None
    with pytest.raises(BadResponseError):
        read(interim + page, header_limit=len(interim + page) - 1)


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
    answer = ResponseReader(len(packed)).feed(head("Content-Encoding: gzip", f"Content-Length: {len(packed)}") + packed)
    assert answer is not None
    pieces = list(decompress(answer, len(page)))
    assert b"".join(pieces) == page
    assert max(map(len, pieces)) <= DECOMPRESSED


@pytest.mark.parametrize("size", [len(PAGE), DECOMPRESSED - 23, DECOMPRESSED, 3 * DECOMPRESSED])
@pytest.mark.parametrize("more", [b"\0", gzip.compress(PAGE)], ids=["a byte", "another member"])
def test_nothing_may_follow_what_was_compressed(size: int, more: bytes) -> None:
    packed = gzip.compress(bytes(size), compresslevel=0)  # 23 bytes longer, where it is one piece
    with pytest.raises(BadResponseError, match="continues after its gzip data"):
        list(decompress(Response(200, "", {}, packed + more, reusable=True, encoding="gzip"), 2 * size))


def chunked(*sizes: int) -> bytes:
    chunks = b"".join(b"%x\r\n" % size + b"x" * size + b"\r\n" for size in sizes)
    return CHUNKED + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("sizes", [[1] * 50_000, [SMALL, SMALL + 1] * 3, [40_000, *[1] * 2000]])
@pytest.mark.parametrize("step", [1000, 10**6])
def test_an_answer_in_small_chunks_is_read(sizes: list[int], step: int) -> None:
    data = chunked(*sizes)
    answer = read(data, limit=10**6, cuts=range(0, len(data), step))
    assert answer is not None
    assert answer.body == b"x" * sum(sizes)
    assert type(answer.body) is bytes


BOMB = gzip.compress(b"0" * 1_000_000)
LARGE = {
    "a length": head(f"Content-Length: {LIMIT + 1}"),
    "a chunk": CHUNKED + b"%x\r\n" % (LIMIT + 1) + b"x" * (LIMIT + 1),
    "many chunks": CHUNKED + (b"64\r\n" + b"x" * 100 + b"\r\n") * 11,
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
    assert read(CHUNKED + b"%x\r\n" % LIMIT + body + b"\r\n0\r\n\r\n") is not None
    assert read(head() + body, end=True) is not None


@given(st.binary(max_size=60), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", head("Transfer-Encoding: chunked")]))
def test_whatever_comes_is_an_answer_or_refused(data: bytes, start: bytes) -> None:
    try:
        answer = read(start + data, end=True)
    except (BadResponseError, TooLargeError):
        return
    assert answer is not None
