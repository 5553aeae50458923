"""A response on its way to the client: its bytes go through here, however they are cut.

A JSON object is held until it is whole, an event stream until the end of a line. What is larger than the limit, is
compressed, or isn't what its content type says passes unchanged: reading a response must never harm it. An object is
let go when it is whole, not when the response ends: by its trailers, a proxy takes nothing of the body any more.
"""

import re
from enum import Enum

import msgspec

from services.picker.chunks import Chunks
from services.picker.requests.request import Headers
from services.picker.responses import document
from services.picker.responses.usage import NOTHING, Usage

LIMIT = 4 * 2**20
"""Bytes of a JSON object, or of a line of an event stream, that are held to be read."""

_TRIES = 8
"""How often the limit may be read in vain to find out whether an object is whole: it may come in pieces that all look
like its end."""
_USAGE = re.compile(rb'"usage"[ \t]*:[ \t]*\{')
_DATA = b"data:"
_BLANKS = b" \t\r\n"


class Interest(Enum):
    """What a reader wants of a response."""

    NOTHING = "nothing"
    READ = "read"
    """Its body, which stays as it is."""
    CHANGE = "change"
    """Its body, which may come out with another length."""


class _Form(Enum):
    OTHER = "other"
    JSON = "json"
    EVENTS = "events"


class ResponseReader:
    """Reads one response. `served` is the model's name that the server was asked for, `asked` the client's own; with
    both, the client gets its own back."""

    __slots__ = (
        "_asked",
        "_begun",
        "_form",
        "_held",
        "_limit",
        "_prefix",
        "_replacement",
        "_served",
        "_tried",
        "received",
        "usage",
    )

    def __init__(self, served: str = "", asked: str = "", limit: int = LIMIT) -> None:
        renames = bool(served and asked and served != asked)
        self._served = msgspec.json.encode(served) if renames else b""
        self._asked = msgspec.json.encode(asked) if renames else b""
        self._limit = limit
        self._form = _Form.OTHER
        self._held = Chunks()
        self._begun = False
        """Whether something but blanks has come of an object."""
        self._tried = 0
        """Bytes that were looked at for whether they are a whole object."""
        self._prefix = b""
        """How the last event began, up to the name that was replaced: the next one mostly begins alike."""
        self._replacement = b""
        self.received = 0
        """Bytes of the body that came."""
        self.usage: Usage = NOTHING

    @property
    def changes(self) -> bool:
        """Whether it may change a body, and doesn't only read it."""
        return bool(self._served)

    def begin(self, headers: Headers) -> Interest:
        """The response's headers have come: what is wanted of its body."""
        kind = headers.get("content-type").partition(";")[0].strip().lower()
        if headers.get("content-encoding", "identity").strip().lower() in ("", "identity"):
            if kind == "text/event-stream":
                self._form = _Form.EVENTS
            elif kind == "application/json" or kind.endswith("+json"):
                self._form = _Form.JSON
        if self._form is _Form.OTHER:
            return Interest.NOTHING
        return Interest.CHANGE if self._served else Interest.READ

    def feed(self, chunk: bytes, end: bool) -> bytes:
        """A piece of the body came; what the client gets now. With `end` nothing is held back."""
        self.received += len(chunk)
        if self._form is _Form.EVENTS:
            return self._events(chunk, end)
        if self._form is _Form.JSON:
            return self._json(chunk, end)
        return chunk

    def _json(self, chunk: bytes, end: bool) -> bytes:
        if not self._begun:
            text = chunk.lstrip(_BLANKS)
            if not text:
                return chunk  # servers keep connections alive with them
            self._begun = True
            if not text.startswith(b"{"):
                self._form = _Form.OTHER
                return chunk
        held = self._held
        held.add(chunk)
        if held.size > self._limit:
            return self._give_up(chunk)
        if not end:
            if not self._served:
                return chunk  # what isn't changed needn't wait for the rest
            if not chunk.rstrip(_BLANKS).endswith(b"}"):
                return b""
            self._tried += held.size
            if self._tried > _TRIES * self._limit:
                return self._give_up(chunk)
        text = held.take()
        read = document.read(text, self._served, self._asked)
        if read is None and not end:
            held.add(text)
            return b""
        if read is not None:
            self._form = _Form.OTHER
            self.usage = self.usage.merged(read.usage)
            text = read.text
        return text if self._served else chunk

    def _events(self, chunk: bytes, end: bool) -> bytes:
        held = self._held
        cut = len(chunk) if end else chunk.rfind(b"\n") + 1
        if not cut and not end:
            held.add(chunk)
            if held.size > self._limit:
                return self._give_up(chunk)
            return b"" if self._served else chunk
        lines = chunk[:cut]
        if held.size:
            held.add(lines)
            lines = held.take()
        if rest := chunk[cut:]:
            held.add(rest)
        if self._served:
            return b"\n".join([self._line(line) for line in lines.split(b"\n")])
        if _USAGE.search(lines):
            for line in lines.split(b"\n"):
                self._line(line)
        return chunk

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(_DATA):
            return line
        if self._prefix and line.startswith(self._prefix) and not _USAGE.search(line):
            return self._replacement + line[len(self._prefix) :]
        start = 6 if line[5:6] == b" " else 5
        read = document.read(line[start:], self._served, self._asked)
        if read is None:  # [DONE], or nothing that can be read
            return line
        self.usage = self.usage.merged(read.usage)
        if not read.end:
            return line
        changed = line[:start] + read.text
        ending = len(read.text) - read.end
        self._prefix, self._replacement = line[: len(line) - ending], changed[: len(changed) - ending]
        return changed

    def _give_up(self, chunk: bytes) -> bytes:
        """Read no further: from here on everything passes, and first what was held back."""
        self._form = _Form.OTHER
        held = self._held.take()
        return held if self._served else chunk

    def __repr__(self) -> str:
        return f"<ResponseReader {self._form.value}, holds {self._held.size} bytes, {self.usage}>"
