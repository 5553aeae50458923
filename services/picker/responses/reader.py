"""Reads a response on its way to the client, however its bytes are cut.

The reader holds a JSON object until it is whole, and an event stream until the end of a line. A response passes
unchanged if it is larger than the limit, compressed, or not what its content type says: reading must never harm it.
Some proxies accept no body bytes with the trailers, so held bytes would be lost; for them the reader holds only what
may be the model's name.
"""

import re
from enum import Enum

import msgspec

from services.picker.body_buffer import BodyBuffer, MemoryBudget
from services.picker.request import Headers
from services.picker.responses import document, grpc_usage
from services.picker.responses.grpc_usage import GrpcUsage
from services.picker.responses.model_name import ModelNameRewriter
from services.picker.responses.usage import NOTHING as NO_USAGE
from services.picker.responses.usage import Usage

LIMIT = 4 * 2**20
"""Bytes of a JSON object, or of a line of an event stream, that are held to be read."""

MAX_LINES = 2000
"""Lines of an event stream that are read of one chunk, and JSON objects in them: a usage object, or one of another
level, takes as long as a line."""
_OBJECT = 2048
"""Bytes of a line that count as an object: reading them takes nearly as long."""
GROWTH = 2**20
"""Bytes by which restored names may lengthen a short response. A long one may double."""

_TRIES = 8
"""How often as many bytes as the limit may be read in vain: an object may come in pieces that all look like its end."""
_USAGE = re.compile(rb'"(?:usage|meta_info)"[ \t]*:[ \t]*\{')
_MAX_SEARCHED = 256 * 2**10
"""Bytes of an event that is searched before it is read: a search can take as long."""
_MAX_PREFIX = 4096
"""Bytes of an event's beginning that is remembered, which counts in no budget."""
_LINE_END = re.compile(rb"[\r\n]")
_DATA = b"data:"
_BLANKS = b" \t\r\n"


class Interest(Enum):
    """What a reader does with a response's body."""

    NOTHING = "nothing"
    READ = "read"
    """Reads it; it stays as it is."""
    CHANGE = "change"
    """Changes it; its length may change, too."""


# A member through its enum costs eight times as much as a name of the module in Python 3.11.
NOTHING, READ, CHANGE = Interest


class _Format(Enum):
    OTHER = "other"
    JSON = "json"
    EVENTS = "events"
    GRPC = "grpc"


_OTHER, _JSON, _EVENTS, _GRPC = _Format


class ResponseReader:
    """Reads one response. The server was asked for `target_model`; where the client called it `client_model`, it gets
    this name back. `api` is the request's API, as `Content` names it. What is held counts in `budget`."""

    # As long as nothing has been read, which is most readers' whole life:
    _format = _OTHER
    _begun = False
    """Whether the object has begun; blanks may precede it."""
    _tried = 0
    """Bytes that were read in vain, because the object wasn't whole."""
    _prefix = b""
    """The beginning of the last event, up to the replaced name: the next one mostly begins alike."""
    _replacement = b""
    _growth = GROWTH
    """Bytes by which the response may still grow."""
    _rewriter: ModelNameRewriter | None = None
    """Set while the beginning of an object, or of an event's line, has gone on. The rest is only read."""
    holds = True
    """Whether the proxy takes held bytes however the body ends. If not, only parts of a name are held."""
    _usage: Usage = NO_USAGE
    _usage_left = document.MAX_USAGE
    """Bytes of usage objects that may be read of this chunk."""
    _lines_left = MAX_LINES * _OBJECT
    """Bytes of its lines that may be, with their objects."""
    _grpc: GrpcUsage | None = None

    def __init__(
        self,
        target_model: str = "",
        client_model: str = "",
        limit: int = LIMIT,
        *,
        api: str = "",
        budget: MemoryBudget | None = None,
    ) -> None:
        renames = bool(target_model and client_model and target_model != client_model)
        self._target = msgspec.json.encode(target_model) if renames else b""
        self._client = msgspec.json.encode(client_model) if renames else b""
        self._api = api
        self.limit = limit
        """Bytes that are held to be read."""
        self._buffer = BodyBuffer(budget)

    @property
    def usage(self) -> Usage:
        """The tokens that the response has reported so far."""
        return self._usage if self._grpc is None else self._grpc.usage

    def begin(self, headers: Headers) -> Interest:
        """Take the response's headers; what to do with its body."""
        kind = headers.get("content-type").partition(";")[0].strip().lower()
        if headers.get("content-encoding", "identity").strip().lower() in ("", "identity"):
            if kind == "text/event-stream":
                self._format = _EVENTS
            elif kind == "application/json" or kind.endswith("+json"):
                self._format = _JSON
            elif kind.startswith("application/grpc") and kind[16:17] in ("", "+") and self._api in grpc_usage.APIS:
                self._format = _GRPC
                self._grpc = GrpcUsage(self._api, headers.get("grpc-encoding"), self.limit, self._buffer)
                return READ
        if self._format is _OTHER:
            return NOTHING
        return CHANGE if self._target else READ

    def feed(self, chunk: bytes, end: bool) -> bytes:
        """Take a piece of the body; what the client gets now. With `end`, nothing is held back."""
        self._usage_left, self._lines_left = document.MAX_USAGE, MAX_LINES * _OBJECT
        if self._format is _EVENTS:
            return self._bounded(chunk, self._events(chunk, end))
        if self._format is _JSON:
            return self._bounded(chunk, self._json(chunk, end))
        if self._format is _GRPC and self._grpc is not None and not self._grpc.feed(chunk):
            self.drop()
        return chunk

    def drop(self) -> None:
        """Stop reading, and release the held bytes."""
        self._format = _OTHER
        self._buffer.clear()
        self._rewriter = None

    def _bounded(self, chunk: bytes, out: bytes) -> bytes:
        """What goes on of a piece, after which nothing more is put back when the response has grown too much."""
        self._growth += 2 * len(chunk) - len(out)
        return out if self._growth >= 0 or self._format is _OTHER else out + self._pass_through(b"")

    def _json(self, chunk: bytes, end: bool) -> bytes:
        if self._rewriter is not None:
            return self._feed_rewriter(self._rewriter, chunk, end)
        if not self._begun:
            text = chunk.lstrip(_BLANKS)
            if not text:
                return chunk  # servers keep connections alive with them
            self._begun = True
            if not text.startswith(b"{"):
                self._format = _OTHER
                return chunk
        if not end and not (self._target and chunk.rstrip(_BLANKS).endswith(b"}")):
            return self._hold(chunk, chunk)
        text = chunk
        if self._buffer.size:
            self._buffer.add(chunk)
            text = self._buffer.take()
        if not end:
            self._tried += len(text)
        read = None
        if len(text) <= self.limit and self._tried <= _TRIES * self.limit:
            read = self._read(text)
            if read is None and not end:
                return self._hold(text, chunk)
        self._format = _OTHER
        if read is not None:
            text = read.text
        return text if self._target else chunk

    def _hold(self, text: bytes, chunk: bytes, lead: bytes = b"") -> bytes:
        """Hold an object that isn't whole, or a piece of it; in a line it follows `lead`. Returns what passes of its
        last piece, `chunk`."""
        self._buffer.add(text)
        if self._exceeds_limits():
            return self._pass_through(chunk)
        if not self._target:
            return chunk  # what isn't changed needn't wait for the rest
        if self.holds:
            return b""
        self._rewriter = ModelNameRewriter(self._target, self._client, lead)
        return self._rewriter.feed(chunk)

    def _feed_rewriter(self, rewriter: ModelNameRewriter, chunk: bytes, end: bool) -> bytes:
        """An object's next piece, where what came before has gone on."""
        buffer = self._buffer
        buffer.add(chunk)
        chunk = rewriter.feed(chunk)
        if self._exceeds_limits():
            return self._pass_through(chunk)
        if not end and not rewriter.done:
            return chunk
        self._read(buffer.take())
        return self._pass_through(chunk)

    def _events(self, chunk: bytes, end: bool) -> bytes:
        if self._rewriter is not None:
            return self._rest_of_line(self._rewriter, chunk, end)
        buffer = self._buffer
        if len(chunk) > self.limit:
            buffer.add(chunk)
            return self._pass_through(chunk)
        if not buffer.size and chunk.endswith(b"\n"):  # whole events, as servers send them
            if not self._target:
                if (b'"usage"' in chunk or self._api == "generate") and _USAGE.search(chunk):
                    self._lines(chunk)
                return chunk
            if chunk.find(b"\n") >= len(chunk) - 2 and b"\r" not in chunk:  # a single line
                return self._rewrite_like_last(chunk) or self._line(chunk)
            return self._lines(chunk)
        cut = len(chunk) if end else max(chunk.rfind(b"\n"), chunk.rfind(b"\r")) + 1
        lines, rest = chunk[:cut], chunk[cut:]
        if buffer.size and (cut or end):
            buffer.add(lines)
            lines = buffer.take()
        if self._target or _USAGE.search(lines):
            lines = self._lines(lines)
        if rest and self._format is _EVENTS:
            rest = self._hold(rest, rest, _DATA)
        return lines + rest if self._target else chunk

    def _rest_of_line(self, rewriter: ModelNameRewriter, chunk: bytes, end: bool) -> bytes:
        """What follows of a line whose beginning has gone on, and all lines after it."""
        ending = _LINE_END.search(chunk)
        cut = ending.end() if ending else len(chunk)
        line, rest = chunk[:cut], chunk[cut:]
        self._buffer.add(line)
        line = rewriter.feed(line)
        if self._exceeds_limits():
            return self._pass_through(line) + rest
        if ending or end:
            self._rewriter = None
            line += rewriter.rest()
            self._line(self._buffer.take())  # for its usage
        return line + self._events(rest, end) if rest else line

    def _lines(self, lines: bytes) -> bytes:
        """Whole lines as they go on; as they are, when they are too many or take too long, and so is all that
        follows."""
        if len(lines) > self.limit or lines.count(b"\n") + lines.count(b"\r") > MAX_LINES:
            self._format = _OTHER
            return lines
        out: list[bytes] = []
        parts = lines.splitlines(keepends=True)
        for number, line in enumerate(parts):
            if self._lines_left <= 0:
                self._format = _OTHER
                out += parts[number:]
                break
            out.append(self._line(line))
        return b"".join(out)

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA):
            return line
        if changed := self._rewrite_like_last(line):
            return changed
        start = 6 if line[5:6] == b" " else 5
        read = self._read(line[start:])
        if read is None or not read.end:  # [DONE], nothing that can be read, or no name to replace
            return line
        changed = line[:start] + read.text
        ending = len(read.text) - read.end
        if len(changed) - ending <= _MAX_PREFIX:
            self._prefix, self._replacement = line[: len(line) - ending], changed[: len(changed) - ending]
        return changed

    def _read(self, text: bytes) -> document.Document | None:
        """Read an object, and note its usage."""
        read = document.read(text, self._target, self._client, self._usage_left)
        if read is not None:
            self._usage_left -= read.read
            self._lines_left -= len(text) + read.objects * _OBJECT
            self._usage = self._usage.merged(read.usage)
        return read

    def _rewrite_like_last(self, event: bytes) -> bytes:
        """An event that begins as the last one did, as it goes on; empty for one that has more to be looked at."""
        prefix = self._prefix
        if not prefix or len(event) > _MAX_SEARCHED or not event.startswith(prefix):
            return b""
        rest = event[len(prefix) :]
        if b'"model"' in rest or (b'"usage"' in rest and _USAGE.search(rest)):
            return b""
        return self._replacement + rest

    def _exceeds_limits(self) -> bool:
        return self._buffer.size > self.limit or not self._buffer.has_room()

    def _pass_through(self, chunk: bytes) -> bytes:
        """Read no further: from here on everything passes, and first what was held back. `chunk` is what would have
        gone on."""
        self._format = _OTHER
        buffered = self._buffer.take()
        if self._rewriter is not None:
            return chunk + self._rewriter.rest()
        return buffered if self._target else chunk

    def __repr__(self) -> str:
        return f"<ResponseReader {self._format.value}, holds {self._buffer.size} bytes, {self.usage}>"
