"""One HTTP/1.1 answer, read as its bytes come. Pure: bytes in, an answer out.

llhttp reads heads and chunks, strictly. What it leaves open is decided here: how much may come, which of the framings
(RFC 9112, section 6) are taken, and whether the connection can be used again. An answer that isn't 200 is complete with
its head: nobody reads its body. Work grows with the bytes alone, however they are cut into headers, chunks or packets,
and a body that comes compressed is expanded piece by piece.
"""

import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

HEADER_LIMIT = 16 * 1024
"""Bytes of the headers, if nothing else is said. Node.js takes as many; a model server sends 200. The smallest headers,
as many as fit, take 2 ms."""
CACHED_HEAD = 1024
"""Longer heads aren't remembered, so that a hostile server can't fill the memory."""
SMALL = 512
"""Bytes of a piece that is put together with others, to be an object no longer."""
EXPANDED = 64 * 1024
"""Bytes that are expanded in one go."""
_HEAD_END = b"\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
"""What readies llhttp for chunks, and for nothing after them."""
_SHOWN = 80
"""Characters of a line that an error shows."""
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class BadResponseError(Exception):
    """What came isn't an HTTP answer, or isn't a whole one."""


class TooLargeError(Exception):
    """The body is larger than was allowed."""


class Response(Struct, frozen=True):
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


class ResponseReader:
    """Reads one answer whose body has at most `limit` bytes.

    Its head and the interim answers before it have at most `header_limit` bytes. What stands between chunks and after
    them has at most as many bytes as both limits together.
    """

    __slots__ = (
        "_answer",
        "_chunks",
        "_framing",
        "_header_limit",
        "_held",
        "_left",
        "_limit",
        "_pieces",
        "_room",
        "_size",
        "begun",
    )

    def __init__(self, limit: int, header_limit: int = HEADER_LIMIT) -> None:
        self._limit = limit
        self._header_limit = header_limit
        self._room = header_limit
        """Bytes that heads may still have."""
        self._held = bytearray()
        """What came of a head that isn't complete."""
        self._answer: Response | None = None
        """The answer without its body, when the head has been read."""
        self._chunks: _Chunks | None = None
        """Where the body comes in chunks."""
        self._framing = limit + header_limit
        """Bytes that may still come in chunks without being of the body."""
        self._left: int | None = None
        """Bytes of the body that are still to come; None when chunks or the end of the connection end it."""
        self._pieces: list[bytes | bytearray] = []
        self._size = 0
        self.begun = False
        """Whether any byte has come."""

    def feed(self, data: bytes) -> Response | None:
        """More bytes; the answer when they complete it. Raises `BadResponseError` and `TooLargeError`."""
        self.begun = True
        if self._answer is None:
            head, data = self._read_heads(data)
            if head is None:
                return None
            self._answer, self._left = head.answer, head.length
            if head.answer.status != 200:
                return head.answer
            if self._left is not None and self._left > self._limit:
                raise TooLargeError
            if head.chunked:
                self._chunks = _Chunks()
        return self._read_plain(data) if self._chunks is None else self._read_chunks(self._chunks, data)

    def end(self) -> Response:
        """The connection has ended. Raises `BadResponseError` unless that completes the answer."""
        if self._answer is None or self._left is not None or self._chunks is not None:
            raise BadResponseError("the connection ended before the answer did")
        return self._complete(reusable=False)

    def _read_heads(self, data: bytes) -> tuple["_Head | None", bytes]:
        """(the answer's head, if it is there; what follows). Interim answers are passed over."""
        held = self._held
        while True:
            before = len(held)
            if before:
                held += data[: self._room - before]
            text = held or data
            end = text.find(_HEAD_END, max(0, before - len(_HEAD_END) + 1), self._room) + len(_HEAD_END)
            if not text.startswith(b"HTTP/1."[: len(text)]):
                raise _not_http(bytes(text))
            if end < len(_HEAD_END):
                if not before:
                    held += data[: self._room]
                if len(held) >= self._room:
                    line = bytes(held[held.rfind(b"\r\n") + 1 :]).strip(b"\r\n")
                    raise BadResponseError(f"its headers have more than {self._header_limit} bytes, at {_shown(line)}")
                return None, b""
            head = (_remembered if end <= CACHED_HEAD else _read_head)(bytes(text[:end]))
            data = data[end - before :]
            held.clear()
            self._room -= end
            if head is not None:
                return head, data

    def _read_plain(self, data: bytes) -> Response | None:
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

    def _read_chunks(self, chunks: "_Chunks", data: bytes) -> Response | None:
        error = chunks.feed(data)
        piece = chunks.take()
        self._framing -= len(data) - len(piece)
        self._take(piece)
        if self._framing < 0:
            most = self._limit + self._header_limit
            raise BadResponseError(f"sizes, extensions and trailers of its chunks have more than {most} bytes")
        if chunks.complete:
            return self._complete(reusable=chunks.clean)
        if error:
            raise BadResponseError(f"its chunks are broken after {self._size} bytes of the page: {error}")
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

    def _complete(self, *, reusable: bool) -> Response:
        answer = self._answer
        assert answer is not None, "the head has been read"
        first = self._pieces[0] if len(self._pieces) == 1 else None
        body = first if isinstance(first, bytes) else b"".join(self._pieces)
        return Response(
            answer.status, answer.reason, answer.headers, body, answer.reusable and reusable, answer.encoding
        )

    def __repr__(self) -> str:
        where = "head" if self._answer is None else f"{self._size} bytes of the body"
        return f"<ResponseReader {where}>"


class _Chunks:
    """The chunks of one body."""

    __slots__ = ("_events", "_parser", "_tail")

    def __init__(self) -> None:
        self._events = _ChunkEvents()
        self._parser = HttpResponseParser(self._events)
        self._parser.feed_data(_CHUNKED)
        self._tail = b""
        """The last bytes that came."""

    @property
    def complete(self) -> bool:
        return self._events.complete

    @property
    def clean(self) -> bool:
        """Whether nothing has come after the last chunk and its trailers. Line ends would be no error to llhttp."""
        return self._tail[1:] == _HEAD_END and self._tail[:1] not in b"\r\n"

    def feed(self, data: bytes) -> str:
        """More bytes. Returns what is wrong with them, if something is."""
        self._tail = (self._tail + data[-5:])[-5:]
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._tail = b""
            return str(error)
        return ""

    def take(self) -> bytes:
        """What has come of the body since the last call."""
        pieces = self._events.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body


class _ChunkEvents:
    """What llhttp tells of chunks. The method that is called for each of them is the list's own, which takes a tenth of
    the time of one in Python."""

    __slots__ = ("complete", "on_body", "pieces")

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.complete = False

    def on_message_complete(self) -> None:
        self.complete = True


class _Head(Struct, frozen=True):
    """What a head says."""

    answer: Response
    chunked: bool = False
    length: int | None = None
    """Of the body; None where chunks, or the end of the connection, end it."""


class _HeadEvents:
    """What llhttp tells of a head."""

    __slots__ = ("complete", "reason", "values")

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.reason = ""
        self.complete = False

    def on_status(self, reason: bytes) -> None:
        self.reason = reason.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self.values.setdefault(name.decode("ascii").lower(), []).append(value.decode("latin-1").rstrip(" \t"))

    def on_headers_complete(self) -> None:
        self.complete = True


def _read_head(head: bytes) -> _Head | None:
    """What a head says; None for that of an interim answer. Raises `BadResponseError`."""
    events = _HeadEvents()
    parser = HttpResponseParser(events)
    try:
        parser.feed_data(head)
    except (HttpParserError, HttpParserUpgrade) as error:
        # 101 ends with its head what can be read
        if not events.complete:
            raise BadResponseError(f"{error}, at {_shown(_wrong_line(head))}") from error
    status, version = parser.get_status_code(), parser.get_http_version()
    headers = {name: ", ".join(values) for name, values in events.values.items()}
    if not 100 <= status < 600:
        raise _not_http(head)
    if status == 101:
        raise BadResponseError("the server switches to another protocol")
    if status < 200:
        return None
    asked = headers.get("connection", "").lower()
    reusable = "close" not in asked and (version == "1.1" or "keep-alive" in asked)
    if status != 200:
        return _Head(Response(status, events.reason, headers, b"", reusable=False))
    chunked, length, encoding = _framing(headers)
    # RFC 9112, section 6.1: HTTP/1.0 has no chunks, and a connection on which they come anyway isn't used again
    reusable = reusable and (length is not None or (chunked and version == "1.1"))
    return _Head(Response(status, events.reason, headers, b"", reusable, encoding), chunked, length)


_remembered = lru_cache(maxsize=256)(_read_head)
"""Most heads are those of the answers before, of this server or of another like it."""


def _framing(headers: Mapping[str, str]) -> tuple[bool, int | None, str]:
    """(whether the body comes in chunks, else its length if that is said, how it is compressed). llhttp has refused
    lengths that aren't numbers, several of them, and one beside a transfer encoding."""
    encoding = headers.get("content-encoding", "").lower()
    if encoding == "identity":
        encoding = ""
    if encoding and encoding not in _WINDOW_BITS:
        raise BadResponseError(f"Content-Encoding is {encoding[:_SHOWN]!r}, which wasn't asked for")
    transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
    if transfer is not None and transfer.lower() != "chunked":
        raise BadResponseError(f"Transfer-Encoding is {transfer[:_SHOWN]!r}, which wasn't asked for")
    return transfer is not None, None if length is None else int(length), encoding


def _wrong_line(head: bytes) -> bytes:
    """The line of a head at which llhttp stops."""
    parser = HttpResponseParser(object())
    for line in head.split(b"\r\n"):
        try:
            parser.feed_data(line + b"\r\n")
        except HttpParserError:
            return line
    return b""


def _not_http(head: bytes) -> BadResponseError:
    first, _, _ = head.partition(b"\r\n")
    return BadResponseError(f"the answer begins with {_shown(first)}, which isn't HTTP/1.1")


def _shown(line: bytes) -> str:
    """A line as an error shows it."""
    text = line[: _SHOWN + 1].decode("latin-1")
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def expanded(answer: Response, limit: int) -> Iterator[bytes]:
    """The body of a compressed answer in pieces, together at most `limit` bytes.

    Raises `BadResponseError` and `TooLargeError`.
    """
    expander = zlib.decompressobj(_WINDOW_BITS[answer.encoding])
    size = 0
    for start in range(0, len(answer.body), EXPANDED):
        rest, full = answer.body[start : start + EXPANDED], True
        while (rest or full) and not expander.eof:
            try:
                piece = expander.decompress(rest, EXPANDED)
            except zlib.error as error:
                raise BadResponseError(f"the content isn't what {answer.encoding} gives: {error}") from error
            rest, full = expander.unconsumed_tail, len(piece) == EXPANDED
            size += len(piece)
            if size > limit:
                raise TooLargeError
            yield piece
    if not expander.eof:
        raise BadResponseError("the compressed content breaks off")
