"""One HTTP/1.1 answer, read as its bytes come. Pure: bytes in, an answer out.

A collector asks thousands of times a second for the same page of the same server; that is all that this has to do, and
it costs a sixth of what a general client does (`tests/benchmarks/bench_scrape.py`). What isn't plain is refused rather
than guessed at: the framing of an answer is by its length, by chunks, or by the end of the connection (RFC 9112,
section 6). An answer that isn't 200 is complete with its head: nobody reads its body.
"""

import re
import zlib
from collections.abc import Mapping

from msgspec import Struct

MOST_HEAD = 64 * 1024
"""Bytes of a head, or of what stands between two chunks."""
_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: ([^\r\n]*))?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(.*?)[ \t]*", re.DOTALL)
_CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?", re.DOTALL)
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class BadAnswerError(Exception):
    """What came isn't an HTTP answer, or isn't a whole one."""


class TooLargeError(Exception):
    """The body is larger than was allowed."""


class Answer(Struct, frozen=True):
    """A complete answer."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By name in small letters; values of one name are joined by commas."""
    body: bytes
    """Empty unless the status is 200."""
    reusable: bool
    """Whether the connection can take another request."""


class AnswerReader:
    """Reads one answer whose body has at most `limit` bytes."""

    __slots__ = ("_answer", "_chunk", "_chunked", "_encoding", "_head", "_left", "_limit", "_pieces", "_size", "begun")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head: bytes = b""
        """What came before it was known what it is: of the head, or between two chunks."""
        self._answer: Answer | None = None
        """The answer without its body, when the head has been read."""
        self._chunked = False
        self._chunk = -1
        """Bytes of the chunk that are still to come; -1 between chunks."""
        self._left: int | None = None
        """Bytes of the body that are still to come; None when the end of the connection ends it."""
        self._encoding = ""
        self._pieces: list[bytes] = []
        self._size = 0
        self.begun = False
        """Whether any byte has come."""

    def feed(self, data: bytes) -> Answer | None:
        """More bytes; the answer when they complete it. Raises `BadAnswerError` and `TooLargeError`."""
        self.begun = True
        if self._answer is None:
            data = self._head + data
            answer, data = self._read_heads(data)
            if answer is None:
                if len(data) > MOST_HEAD or data[:7] != b"HTTP/1."[: len(data)]:
                    raise BadAnswerError("the answer isn't HTTP/1.1")
                self._head = data
                return None
            self._answer, self._head = answer, b""
            if answer.status != 200:
                return answer
        return self._read_chunks(data) if self._chunked else self._read_plain(data)

    def end(self) -> Answer:
        """The connection has ended. Raises `BadAnswerError` unless that completes the answer."""
        if self._answer is None or self._left is not None or self._chunked:
            raise BadAnswerError("the connection ended before the answer did")
        return self._complete(reusable=False)

    def _read_heads(self, data: bytes) -> tuple[Answer | None, bytes]:
        """(the answer without its body, if its head is there; what follows). Interim answers are passed over."""
        while 0 <= (end := data.find(b"\r\n\r\n")) <= MOST_HEAD:
            answer = self._read_head(data[:end])
            data = data[end + 4 :]
            if answer is not None:
                return answer, data
        return None, data

    def _read_head(self, head: bytes) -> Answer | None:
        first, *lines = head.split(b"\r\n")
        status = _STATUS.fullmatch(first)
        if status is None:
            raise BadAnswerError(f"the answer begins with {first[:60]!r}, which isn't HTTP/1.1")
        version, code, reason = status.groups()
        if code[:1] == b"1":
            if code == b"101":
                raise BadAnswerError("the server switches to another protocol")
            return None  # an interim answer: the real one follows
        headers: dict[str, str] = {}
        for line in lines:
            match = _HEADER.fullmatch(line)
            if match is None:
                raise BadAnswerError(f"the header {line[:60]!r} is none")
            name, value = match.group(1).decode().lower(), match.group(2).decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        asked = headers.get("connection", "").lower()
        reusable = code == b"200" and "close" not in asked and (version == b"1" or "keep-alive" in asked)
        if code == b"200":
            self._frame(headers)
            reusable = reusable and (self._chunked or self._left is not None)
        return Answer(int(code), (reason or b"").decode("latin-1"), headers, b"", reusable)

    def _frame(self, headers: Mapping[str, str]) -> None:
        self._encoding = headers.get("content-encoding", "").lower()
        if self._encoding and self._encoding != "identity" and self._encoding not in _WINDOW_BITS:
            raise BadAnswerError(f"the content is encoded as {self._encoding[:60]!r}, which wasn't asked for")
        transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
        if transfer is not None:
            if transfer.lower() != "chunked":
                raise BadAnswerError(f"the transfer is encoded as {transfer[:60]!r}, which wasn't asked for")
            self._chunked = True
        elif length is not None:
            lengths = {one.strip() for one in length.split(",")}
            (one, *others) = lengths
            if others or not (one.isascii() and one.isdigit() and len(one) <= 18):
                raise BadAnswerError(f"the content's length is {length[:60]!r}")
            self._left = int(one)
            if self._left > self._limit:
                raise TooLargeError

    def _read_plain(self, data: bytes) -> Answer | None:
        if self._left is None:
            self._take(data)
            return None
        if len(data) < self._left:
            self._left -= len(data)
            self._take(data)
            return None
        beyond = len(data) > self._left
        self._take(data[: self._left] if beyond else data)
        return self._complete(reusable=not beyond)

    def _read_chunks(self, data: bytes) -> Answer | None:
        """A chunk is its size, a line end, so many bytes, a line end; the last has size 0, and trailers follow it."""
        if self._head:
            data, self._head = self._head + data, b""
        at = 0
        while True:
            if self._chunk > 0:
                piece = data[at : at + self._chunk]
                self._take(piece)
                self._chunk -= len(piece)
                at += len(piece)
                if self._chunk:
                    return None
            if self._chunk == 0:
                if len(data) - at < 2:
                    break
                if data[at : at + 2] != b"\r\n":
                    raise BadAnswerError("a chunk doesn't end where it should")
                at, self._chunk = at + 2, -1
            end = data.find(b"\r\n", at)
            if end < 0:
                break
            size = _CHUNK.fullmatch(data[at:end])
            if size is None:
                raise BadAnswerError(f"{data[at : min(end, at + 60)]!r} is no size of a chunk")
            number = int(size.group(1), 16)
            if number == 0:
                # Trailers are read to their end, an empty line, and say nothing that anybody wants.
                if data[end + 2 : end + 4] == b"\r\n":
                    return self._complete(reusable=len(data) == end + 4)
                last = data.find(b"\r\n\r\n", end)
                if last < 0:
                    break
                return self._complete(reusable=len(data) == last + 4)
            if self._size + number > self._limit:
                raise TooLargeError
            at, self._chunk = end + 2, number
        self._head = data[at:]
        if len(self._head) > MOST_HEAD:
            raise BadAnswerError("there is no end to what stands between two chunks")
        return None

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError
        if piece:
            self._pieces.append(piece)

    def _complete(self, *, reusable: bool) -> Answer:
        answer = self._answer
        assert answer is not None, "the head has been read"
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._encoding in _WINDOW_BITS:
            body = self._expand(body)
        return Answer(answer.status, answer.reason, answer.headers, body, answer.reusable and reusable)

    def _expand(self, body: bytes) -> bytes:
        expander = zlib.decompressobj(_WINDOW_BITS[self._encoding])
        try:
            expanded = expander.decompress(body, self._limit + 1)
        except zlib.error as error:
            raise BadAnswerError(f"the content isn't what {self._encoding} gives: {error}") from error
        if len(expanded) > self._limit:
            raise TooLargeError
        if not expander.eof:
            raise BadAnswerError("the compressed content breaks off")
        return expanded

    def __repr__(self) -> str:
        where = "head" if self._answer is None else f"{self._size} bytes of the body"
        return f"<AnswerReader {where}>"
