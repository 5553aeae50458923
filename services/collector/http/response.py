"""Reads one HTTP/1.1 response incrementally. Pure: bytes in, a response out.

llhttp parses heads and chunks strictly. This module adds limits, the choice of the framing (RFC 9112, section 6), and
whether the connection can be reused. A response with another status than 200 ends with its head. The work is linear in
the bytes, however they are split into headers, chunks and packets. Compressed bodies are decompressed in pieces.
"""

import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

HEADER_LIMIT = 16 * 1024
"""Default limit of the headers in bytes. It is that of Node.js; model servers send 200. The most headers that fit take
2 ms."""
CACHED_HEAD = 1024
"""Bytes of heads that are cached; a hostile server could fill the memory with longer ones."""
SMALL = 512
"""Bytes of a piece that is joined with its neighbours, so that it isn't an object of its own."""
DECOMPRESSED = 64 * 1024
"""Bytes of a decompressed piece."""
_HEAD_END = b"\r\n\r\n"
_CHUNKED = b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
"""Prepares llhttp for one chunked body."""
_MAX_DIGITS = 20
"""Of a length."""
_QUOTED = 80
"""Characters of a line that an error quotes."""
_WINDOW_BITS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


class BadResponseError(Exception):
    """An invalid or incomplete HTTP response."""


class TooLargeError(Exception):
    """The body exceeds the limit, or the one that the text names."""


class Response(Struct, frozen=True):
    """A complete response."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By lower-case name; repeated values are joined with commas."""
    body: bytes
    """Empty unless the status is 200."""
    reusable: bool
    """Whether the connection can take another request."""
    encoding: str = ""
    """The compression of the body, though none was requested; see `decompress`."""


class ResponseReader:
    """Reads one response with a body of at most `limit` bytes.

    `header_limit` bounds the head together with interim responses (1xx). The sum of both limits bounds chunk sizes,
    extensions and trailers.
    """

    def __init__(self, limit: int, header_limit: int = HEADER_LIMIT) -> None:
        self._limit = limit
        self._header_limit = header_limit
        self._room = header_limit
        """Bytes left for heads."""
        self._held = bytearray()
        """The beginning of an incomplete head."""
        self._head: Response | None = None
        """The response without its body, after the head."""
        self._chunks: _Chunks | None = None
        """The parser of a chunked body."""
        self._framing = limit + header_limit
        """Bytes left for chunk sizes, extensions and trailers."""
        self._left: int | None = None
        """Missing bytes of the body; None when chunks or the end of the connection end it."""
        self._pieces: list[bytes | bytearray] = []
        self._size = 0
        self.started = False
        """Whether any byte was received."""

    @property
    def size(self) -> int:
        """Bytes of the body so far."""
        return self._size

    def feed(self, data: bytes) -> Response | None:
        """Read more bytes. Returns the response when it is complete. Raises `BadResponseError` and `TooLargeError`."""
        self.started = True
        if self._head is None:
            head, data = self._read_heads(data)
            if head is None:
                return None
            self._head, self._left = head.response, head.length
            if head.response.status != 200:
                return head.response
            if self._left is not None and self._left > self._limit:
                raise TooLargeError
            if head.chunked:
                self._chunks = _Chunks()
        return self._read_plain(data) if self._chunks is None else self._read_chunks(self._chunks, data)

    def end(self) -> Response:
        """The connection has ended. Raises `BadResponseError` unless that completes the response."""
        if self._head is None or self._left is not None or self._chunks is not None:
            raise BadResponseError("the connection ended before the response did")
        return self._complete(reusable=False)

    def _read_heads(self, data: bytes) -> tuple["_Head | None", bytes]:
        """(the head if it is complete, the bytes after it). Skips interim responses."""
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
                    raise BadResponseError(f"its headers have more than {self._header_limit} bytes, at {_quoted(line)}")
                return None, b""
            head = (_cached_head if end <= CACHED_HEAD else _parse_head)(bytes(text[:end]))
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
        head = self._head
        assert head is not None, "the head has been read"
        first = self._pieces[0] if len(self._pieces) == 1 else None
        body = first if isinstance(first, bytes) else b"".join(self._pieces)
        return Response(head.status, head.reason, head.headers, body, head.reusable and reusable, head.encoding)

    def __repr__(self) -> str:
        where = "head" if self._head is None else f"{self._size} bytes of the body"
        return f"<ResponseReader {where}>"


class _Chunks:
    """Parses a chunked body."""

    def __init__(self) -> None:
        self._events = _ChunkEvents()
        self._parser = HttpResponseParser(self._events)
        self._parser.feed_data(_CHUNKED)
        self._tail = b""
        """The last bytes."""

    @property
    def complete(self) -> bool:
        return self._events.complete

    @property
    def clean(self) -> bool:
        """Whether nothing follows the last chunk and its trailers. llhttp accepts line ends there."""
        return self._tail[1:] == _HEAD_END and self._tail[:1] not in b"\r\n"

    def feed(self, data: bytes) -> str:
        """Parse more bytes. Returns an error message, or an empty string."""
        self._tail = (self._tail + data[-5:])[-5:]
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._tail = b""
            return str(error)
        return ""

    def take(self) -> bytes:
        """The body since the last call."""
        pieces = self._events.pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return body


class _ChunkEvents:
    """llhttp's callbacks for chunks. `on_body` is a method of the list, ten times faster than one in Python."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.on_body = self.pieces.append
        self.complete = False

    def on_message_complete(self) -> None:
        self.complete = True


class _Head(Struct, frozen=True):
    """A parsed head."""

    response: Response
    chunked: bool = False
    length: int | None = None
    """Length of the body; None when chunks or the end of the connection end it."""


class _HeadEvents:
    """llhttp's callbacks for a head."""

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


def _parse_head(head: bytes) -> _Head | None:
    """Parses a head. None for that of an interim response. Raises `BadResponseError`."""
    events = _HeadEvents()
    parser = HttpResponseParser(events)
    try:
        parser.feed_data(head)
    except (HttpParserError, HttpParserUpgrade) as error:
        # llhttp stops after the head of a 101
        if not events.complete:
            raise BadResponseError(f"{error}, at {_quoted(_wrong_line(head))}") from error
    status, version = parser.get_status_code(), parser.get_http_version()
    headers = {name: ", ".join(values) for name, values in events.values.items()}
    if not 100 <= status < 600:
        raise _not_http(head)
    if status == 101:
        raise BadResponseError("the server switches to another protocol")
    if status < 200:
        return None
    connection = headers.get("connection", "").lower()
    reusable = "close" not in connection and (version == "1.1" or "keep-alive" in connection)
    if status != 200:
        return _Head(Response(status, events.reason, headers, b"", reusable=False))
    chunked, length, encoding = _framing(headers)
    # RFC 9112, section 6.1: a connection with chunks in HTTP/1.0 isn't reused
    reusable = reusable and (length is not None or (chunked and version == "1.1"))
    return _Head(Response(status, events.reason, headers, b"", reusable, encoding), chunked, length)


_cached_head = lru_cache(maxsize=256)(_parse_head)
"""Most heads repeat."""


def _framing(headers: Mapping[str, str]) -> tuple[bool, int | None, str]:
    """(whether the body is chunked, its length, its compression). llhttp refuses lengths that aren't numbers, several
    lengths, and a length beside a transfer encoding."""
    encoding = headers.get("content-encoding", "").lower()
    if encoding == "identity":
        encoding = ""
    if encoding and encoding not in _WINDOW_BITS:
        raise BadResponseError(f"Content-Encoding is {encoding[:_QUOTED]!r}, which wasn't requested")
    transfer, length = headers.get("transfer-encoding"), headers.get("content-length")
    if transfer is not None and transfer.lower() != "chunked":
        raise BadResponseError(f"Transfer-Encoding is {transfer[:_QUOTED]!r}, which wasn't requested")
    if length is not None and len(length) > _MAX_DIGITS:  # zeros, of which Python reads 4 300
        raise BadResponseError(f"Content-Length has {len(length)} digits")
    return transfer is not None, None if length is None else int(length), encoding


def _wrong_line(head: bytes) -> bytes:
    """The line of a head that llhttp refuses."""
    parser = HttpResponseParser(object())
    for line in head.split(b"\r\n"):
        try:
            parser.feed_data(line + b"\r\n")
        except HttpParserError:
            return line
    return b""


def _not_http(head: bytes) -> BadResponseError:
    first, _, _ = head.partition(b"\r\n")
    return BadResponseError(f"the response begins with {_quoted(first)}, which isn't HTTP/1.1")


def _quoted(line: bytes) -> str:
    """A line for an error message."""
    text = line[: _QUOTED + 1].decode("latin-1")
    return repr(text if len(text) <= _QUOTED else text[:_QUOTED] + "…")


def decompress(response: Response, limit: int) -> Iterator[bytes]:
    """Decompresses a body of at most `limit` bytes in pieces. Raises `BadResponseError` and `TooLargeError`."""
    decompressor = zlib.decompressobj(_WINDOW_BITS[response.encoding])
    size = 0
    for start in range(0, len(response.body), DECOMPRESSED):
        rest, full = response.body[start : start + DECOMPRESSED], True
        while (rest or full) and not decompressor.eof:
            try:
                piece = decompressor.decompress(rest, DECOMPRESSED)
            except zlib.error as error:
                raise BadResponseError(f"the content isn't valid {response.encoding}: {error}") from error
            rest, full = decompressor.unconsumed_tail, len(piece) == DECOMPRESSED
            size += len(piece)
            if size > limit:
                raise TooLargeError
            yield piece
        if decompressor.unused_data or (decompressor.eof and start + DECOMPRESSED < len(response.body)):
            raise BadResponseError(f"the content continues after its {response.encoding} data")
    if not decompressor.eof:
        raise BadResponseError("the compressed content is incomplete")
