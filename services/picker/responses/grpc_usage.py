"""Reads the token usage in responses of vLLM's and Vertex AI's gRPC services, however a proxy cuts their messages.

The messages pass unchanged. Every message of a stream of vLLM's has the usage so far, so only the last one is read:
each complete answer, and the last piece of an answer without end. Vertex AI's carry JSON of the OpenAI API.
"""

from collections.abc import Callable, Mapping

from services.picker.body_buffer import BodyBuffer
from services.picker.parsers.grpc_frame import COMPRESSED, HEADER, INFLATED, first_message
from services.picker.parsers.protobuf import Reader
from services.picker.request import Unparsable
from services.picker.responses import document
from services.picker.responses.usage import NOTHING, Usage

_MAX_FIELDS = 5_000
"""Fields of the messages that come at once."""
_MAX_FRAMES = 2_000
"""Messages that come at once."""
_EVENT = 5
"""Fields that reading a JSON object counts for, besides what is in it."""
_VALUES = 4
"""Values of a JSON object that count for one field more, by its commas and opening braces and brackets."""
_MAX_PIECE = 4 * 2**10
"""Bytes of a piece of a stream that is kept until the next, and counts in no budget: longer ones are read at once."""
_PIECE = b"\x0a"
"""How a GenerateResponse begins that is a piece of a stream: field 1."""


class GrpcUsage:
    """Reads one response. `api` is what was asked for, one of `APIS`; `encoding` is the response's `grpc-encoding`;
    a message of more than `limit` bytes isn't read."""

    def __init__(self, api: str, encoding: str, limit: int, buffer: BodyBuffer) -> None:
        self._read = APIS[api]
        self._encoding = encoding
        self._limit = limit
        self._buffer = buffer
        """The beginning of a message."""
        self._needed = 0
        """Bytes of the held message that are needed to go on."""
        self._skipped = 0
        """Bytes still to come of a message that isn't read."""
        self._last = b""
        """The last piece of a stream, not read yet."""
        self._piece: Usage = NOTHING
        """The usage of a last piece that was read at once."""
        self._reader = Reader(_MAX_FIELDS)
        self._frames, self._compressed, self._inflated = _MAX_FRAMES, COMPRESSED, INFLATED
        """What is left to be read of what came at once: messages, bytes of compressed ones, and those uncompressed."""
        self._complete: Usage = NOTHING

    @property
    def usage(self) -> Usage:
        """The usage that the response has reported so far."""
        if self._complete is not NOTHING:
            return self._complete
        return self._reading(memoryview(self._last), Reader(_MAX_FIELDS)) if self._last else self._piece

    def feed(self, chunk: bytes) -> bool:
        """A piece of the body came. False when nothing more is to be read: no message can begin here, or be held, or
        what came at once takes too long to read."""
        self._reader = Reader(_MAX_FIELDS)
        self._frames, self._compressed, self._inflated = _MAX_FRAMES, COMPRESSED, INFLATED
        if self._skipped:
            passed = min(self._skipped, len(chunk))
            self._skipped -= passed
            chunk = chunk[passed:]
        buffer = self._buffer
        if buffer.size:
            buffer.add(chunk)
            if buffer.size < self._needed:
                return buffer.has_room()
            chunk = buffer.take()
        at, size = 0, len(chunk)
        while size - at >= HEADER.size:
            flag, length = HEADER.unpack_from(chunk, at)
            end = at + HEADER.size + length
            if flag > 1:
                return False
            if length > self._limit:
                self._skipped, at = max(end - size, 0), min(end, size)
            elif end > size:
                return self._hold(chunk[at:], end - at)
            elif self._message(chunk[at:end], compressed=flag == 1):
                at = end
            else:
                return False
        return self._hold(chunk[at:], HEADER.size) if at < size else True

    def _hold(self, begun: bytes, needed: int) -> bool:
        self._needed = needed
        self._buffer.add(begun)
        return self._buffer.has_room()

    def _message(self, frame: bytes, *, compressed: bool) -> bool:
        """Read a message, unless too much has come at once: then False."""
        self._frames -= 1
        self._compressed -= len(frame) * compressed
        if self._frames < 0 or self._compressed < 0:
            return False
        try:
            message = first_message(frame, self._encoding, self._inflated)
        except Unparsable:
            return True
        if message is None:  # of an unknown encoding, or too large
            return False
        self._inflated -= len(message) * compressed
        if message[:1] == _PIECE and self._read is _generated:
            if len(message) <= _MAX_PIECE:
                self._last = bytes(message)
            else:
                self._last, self._piece = b"", self._reading(message, self._reader)
        else:
            self._complete = _add_outputs(self._complete, self._reading(message, self._reader))
        return True

    def _reading(self, message: memoryview, reader: Reader) -> Usage:
        try:
            return self._read(message, reader)
        except ValueError:
            return NOTHING

    def __repr__(self) -> str:
        return f"<GrpcUsage holds {self._buffer.size} bytes, {self.usage}>"


def _generated(message: memoryview, reader: Reader) -> Usage:
    """Fields of GenerateResponse: 1 chunk or 2 complete, of which the latter has one field more before the counts."""
    usage = NOTHING
    for number, value in reader.fields(message):
        if number in (1, 2) and isinstance(value, memoryview):
            usage = _counts(value, reader, {number + 1: "prompt", number + 2: "completion", number + 3: "cached"})
    return usage


def _embedded(message: memoryview, reader: Reader) -> Usage:
    """Field of EmbedResponse: 2 prompt_tokens."""
    return _counts(message, reader, {2: "prompt"})


def _read_http_body(message: memoryview, reader: Reader) -> Usage:
    """Field of google.api.HttpBody: 2 data, which is a JSON object or some server-sent events. The last one with usage
    counts. It is looked for in `_MAX_FRAMES` events, and while what comes at once counts for less than its limit."""
    data = memoryview(b"")
    for number, value in reader.fields(message):
        if number == 2 and isinstance(value, memoryview):
            data = value
    events = bytes(data).rsplit(b"data:", _MAX_FRAMES)
    reader.read += len(events) - 1  # they count with the fields of all messages that come at once
    for text in reversed(events[-_MAX_FRAMES:]):
        if reader.read > _MAX_FIELDS:
            break
        if b'"usage"' in text:
            reader.read += _EVENT + sum(map(text.count, (b",", b"[", b"{"))) // _VALUES
            found = document.read(text, b"", b"")
            if found is not None and found.usage != NOTHING:
                return found.usage
    return NOTHING


APIS: dict[str, Callable[[memoryview, Reader], Usage]] = {
    "generate": _generated,
    "embeddings": _embedded,
    "chat": _read_http_body,
    "responses": _read_http_body,
}
"""What reads a message of the response, by what was asked for."""


def _counts(message: memoryview, reader: Reader, names: Mapping[int, str]) -> Usage:
    """The counts in a message, which leaves out zeros. One without prompt and output says nothing."""
    numbers = reader.numbers(message)
    found = {name: numbers.get(number, 0) for number, name in names.items()}
    return Usage(**found) if found["prompt"] or found.get("completion") else NOTHING


def _add_outputs(first: Usage, second: Usage) -> Usage:
    """Of two complete answers to one request: each has its own output, of the same prompt."""
    if second is NOTHING:
        return first
    if first.completion is None or second.completion is None:
        return second
    return Usage(second.prompt, first.completion + second.completion, second.cached)
