"""One HTTP/1.1 answer, read as its bytes come. Pure: bytes in, an answer out.

A collector asks thousands of times a second for the same page of the same server; that is all that this has to do, and
it costs a fraction of what a general client does (docs/performance.md). What isn't plain is refused rather
than guessed at: the framing of an answer is by its length, by chunks, or by the end of the connection (RFC 9112,
section 6). An answer that isn't 200 is complete with its head: nobody reads its body. Nothing takes long in one go,
whatever a server sends: an answer in crumbs is refused, and a body that comes compressed is expanded piece by piece.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

MOST_HEAD = 64 * 1024
"""Bytes of a head, or of what stands between two chunks."""
CACHED_HEAD = 1024
"""Longer heads aren't remembered, so that a hostile server can't fill the memory."""
LEAST_CHUNK = 16
"""Bytes that the chunks of an answer have to have on average, if there are more than `FREE_CHUNKS`: each costs a
microsecond."""
FREE_CHUNKS = 1000
SMALL = 512
"""Bytes of a piece that is put together with others, to be an object no longer."""
EXPANDED = 64 * 1024
"""Bytes that are expanded in one go."""
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
    encoding: str = ""
    """How the body is compressed, which nobody has asked for; empty where it isn't. `expanded` expands it."""


class AnswerReader:
    """Reads one answer whose body has at most `limit` bytes."""

    __slots__ = (
        "_answer",
        "_chunk",
        "_chunked",
        "_chunks",
        "_head",
        "_left",
        "_limit",
        "_pieces",
        "_size",
        "begun",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._head: bytes = b""
        """What came before it was known what it is: of the head, or between two chunks."""
        self._answer: Answer | None = None
        """The answer without its body, when the head has been read."""
        self._chunked = False
        self._chunk = -1
        """Bytes of the chunk that are still to come; -1 between chunks."""
        self._chunks = 0
        """How many have begun."""
        self._left: int | None = None
        """Bytes of the body that are still to come; None when the end of the connection ends it."""
        self._pieces: list[bytes | bytearray] = []
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
            head = _remembered(data[:end]) if end <= CACHED_HEAD else _read_head(data[:end])
            data = data[end + 4 :]
            if head is None:
                continue  # an interim answer: the real one follows
            self._chunked, self._left = head.chunked, head.length
            if self._left is not None and self._left > self._limit:
                raise TooLargeError
            return head.answer, data
        return None, data

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
            self._chunks += 1
            if self._chunks > FREE_CHUNKS and self._chunks * LEAST_CHUNK > self._size + number:
                raise BadAnswerError(f"the answer is in crumbs: {self._size} bytes in {self._chunks} chunks")
            at, self._chunk = end + 2, number
        self._head = data[at:]
        if len(self._head) > MOST_HEAD:
            raise BadAnswerError("there is no end to what stands between two chunks")
        return None

    def _take(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._limit:
            raise TooLargeError
        if len(piece) > SMALL:
            self._pieces.append(piece)
        elif piece:
            if not self._pieces or not isinstance(last := self._pieces[-1], bytearray):
                self._pieces.append(last := bytearray())
            last += piece

    def _complete(self, *, reusable: bool) -> Answer:
        answer = self._answer
        assert answer is not None, "the head has been read"
        first = self._pieces[0] if len(self._pieces) == 1 else None
        body = first if isinstance(first, bytes) else b"".join(self._pieces)
        return Answer(answer.status, answer.reason, answer.headers, body, answer.reusable and reusable, answer.encoding)

    def __repr__(self) -> str:
        where = "head" if self._answer is None else f"{self._size} bytes of the body"
        return f"<AnswerReader {where}>"


class _Head(Struct, frozen=True):
    """What a head says."""

    answer: Answer
    chunked: bool = False
    length: int | None = None
    """Of the body; None where chunks, or the end of the connection, end it."""


def _read_head(head: bytes) -> _Head | None:
    """What a head says, without the empty line that ends it; None for that of an interim answer. Raises
    `BadAnswerError`."""
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise BadAnswerError(f"the answer begins with {first[:60]!r}, which isn't HTTP/1.1")
    version, code, reason = status.groups()
    if code[:1] == b"1":
        if code == b"101":
            raise BadAnswerError("the server switches to another protocol")
        return None
    headers: dict[str, str] = {}
    for line in lines:
        match = _HEADER.fullmatch(line)
        if match is None:
            raise BadAnswerError(f"the header {line[:60]!r} is none")
        name, value = match.group(1).decode().lower(), match.group(2).decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    asked = headers.get("connection", "").lower()
    reusable = code == b"200" and "close" not in asked and (version == b"1" or "keep-alive" in asked)
    text = (reason or b"").decode("latin-1")
    if code != b"200":
        return _Head(Answer(int(code), text, headers, b"", reusable))
    chunked, length, encoding = _framing(headers)
    framed = chunked or length is not None
    return _Head(Answer(int(code), text, headers, b"", reusable and framed, encoding), chunked, length)


_remembered = lru_cache(maxsize=256)(_read_head)
"""Most heads are those of the answers before, of this server or of another like it."""


def _framing(headers: Mapping[str, str]) -> tuple[bool, int | None, str]:
    """(whether the body comes in chunks, else its length if that is said, how it is compressed)."""
    encoding = headers.get("content-encoding", "").lower()
    if encoding == "identity":
        encoding = ""
    if encoding and encoding not in _WINDOW_BITS:
        raise BadAnswerError(f"the content is encoded as {encoding[:60]!r}, which wasn't asked for")
    transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
    if transfer is not None:
        if transfer.lower() != "chunked":
            raise BadAnswerError(f"the transfer is encoded as {transfer[:60]!r}, which wasn't asked for")
        return True, None, encoding
    if length is None:
        return False, None, encoding
    one, *others = {part.strip() for part in length.split(",")}
    if others or not (one.isascii() and one.isdigit() and len(one) <= 18):
        raise BadAnswerError(f"the content's length is {length[:60]!r}")
    return False, int(one), encoding


def expanded(answer: Answer, limit: int) -> Iterator[bytes]:
    """The body of a compressed answer in pieces, together at most `limit` bytes.

    Raises `BadAnswerError` and `TooLargeError`.
    """
    expander = zlib.decompressobj(_WINDOW_BITS[answer.encoding])
    size = 0
    for start in range(0, len(answer.body), EXPANDED):
        rest, full = answer.body[start : start + EXPANDED], True
        while (rest or full) and not expander.eof:
            try:
                piece = expander.decompress(rest, EXPANDED)
            except zlib.error as error:
                raise BadAnswerError(f"the content isn't what {answer.encoding} gives: {error}") from error
            rest, full = expander.unconsumed_tail, len(piece) == EXPANDED
            size += len(piece)
            if size > limit:
                raise TooLargeError
            yield piece
    if not expander.eof:
        raise BadAnswerError("the compressed content breaks off")
