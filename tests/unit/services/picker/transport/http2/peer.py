"""A client of one connection without sockets: it says bytes and hears frames.

Time stands still unless a test moves it.
"""

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from hpack import Decoder, Encoder

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Metadata, Methods, StatusCode, Stream
from services.picker.transport.http2.connection import Http2Connection
from services.picker.transport.http2.errors import ErrorCode
from services.picker.transport.http2.streams import StreamCount

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITIZED = 0x4, 0x8, 0x20
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 0x4, 0x5
OPTIONS = Http2Options(max_message_size=2**20)


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> ErrorCode:
        """Of RST_STREAM and GOAWAY."""
        return ErrorCode(struct.unpack(">L", self.payload[-4:] if self.kind == RST_STREAM else self.payload[4:8])[0])

    @property
    def number(self) -> int:
        """What a WINDOW_UPDATE adds; the last stream of a GOAWAY."""
        found: int = struct.unpack(">L", self.payload[:4])[0]
        return found


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def settings(values: dict[int, int] | None = None) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HL", *item) for item in (values or {}).items()))


def window_update(stream: int, more: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", more))


def reset(stream: int, code: int = ErrorCode.CANCEL) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def data(stream: int, payload: bytes, flags: int = 0, pad: int | None = None) -> bytes:
    if pad is not None:
        flags, payload = flags | PADDED, bytes((pad,)) + payload + bytes(pad)
    return frame(DATA, flags, stream, payload)


def message(content: bytes, compressed: int = 0) -> bytes:
    """With its length before it (gRPC)."""
    return struct.pack(">BL", compressed, len(content)) + content


REQUEST: tuple[tuple[str, str], ...] = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/test.Test/Echo"),
    (":authority", "picker"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def request(**changes: str | None) -> list[tuple[str, str]]:
    """A request's headers, with some of them changed, added or, by None, left out: `content_type`, `method`, `path`."""
    headers = dict(REQUEST)
    for name, value in changes.items():
        name = f":{name}" if f":{name}" in headers else name.replace("_", "-")
        if value is None:
            headers.pop(name, None)
        else:
            headers[name] = value
    return list(headers.items())


def block(headers: Iterable[tuple[str, str]] = REQUEST) -> bytes:
    """A header block that leaves the table as it is."""
    return Encoder().encode([(name, value, True) for name, value in headers])


def headers(stream: int, flags: int = END_HEADERS, fields: Iterable[tuple[str, str]] = REQUEST) -> bytes:
    return frame(HEADERS, flags, stream, block(fields))


class Recorded:
    """A call as the server's methods see it. By its path it echoes, keeps silent, or fails where the path says so."""

    def __init__(self, stream: Stream, metadata: Metadata, name: str) -> None:
        self.stream, self.metadata, self.name = stream, metadata, name
        self.messages: list[bytes] = []
        self.said: list[bytes] = []
        self.half_closed = self.drains = self.ends = self.held = 0

    def receive(self, message: bytes) -> None:
        self.messages.append(message)
        self._fail("receive")
        if self.name == "Echo":
            self.answer(message)

    def answer(self, message: bytes) -> None:
        if not self.ends:
            self.said.append(message)
        self.stream.send(message)

    def half_close(self) -> None:
        self.half_closed += 1
        self._fail("half_close")
        if self.name != "Silent":
            self.stream.finish()

    def drained(self) -> None:
        self.drains += 1
        self._fail("drained")

    def end(self) -> None:
        self.ends += 1
        self._fail("end")

    def _fail(self, where: str) -> None:
        if self.name == where:
            raise ZeroDivisionError(f"a bug in {where}")


NAMES = ("Echo", "Silent", "begin", "receive", "half_close", "drained", "end")


class Peer:
    """The client, and what became of its calls. It has said the preface unless `greets` is false."""

    def __init__(
        self,
        options: Http2Options = OPTIONS,
        *,
        greets: bool = True,
        sets: dict[int, int] | None = None,
        methods: Methods | None = None,
        memory: MemoryBudget | None = None,
        count: StreamCount | None = None,
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.now = 0.0
        self.calls: list[Recorded] = []
        self.memory = MemoryBudget() if memory is None else memory
        self.wakes = 0
        methods = {f"/test.Test/{name}": self._method(name) for name in NAMES} if methods is None else methods
        count = StreamCount(options.max_streams) if count is None else count
        self.connection = Http2Connection(methods, options, self.memory, count, now=0.0, wake=self._wake, timer=timer)
        self.decoder = Decoder()
        self.heard: list[Frame] = []
        """All frames of the server."""
        if greets:
            self.say(PREFACE, settings(sets), frame(SETTINGS, ACK, 0))

    def say(self, *pieces: bytes) -> list[Frame]:
        """What the server answers to these bytes."""
        more = self.connection.receive(b"".join(pieces), self.now)
        while more:
            more = self.connection.receive(b"", self.now)
        return self.hear()

    def call(self, name: str = "Echo", stream: int = 1, flags: int = END_HEADERS) -> Recorded:
        """Begin a call."""
        self.say(headers(stream, flags, request(path=f"/test.Test/{name}")))
        return self.calls[-1]

    def wait(self, now: float) -> list[Frame]:
        """What the server says when it is that late."""
        self.now = now
        self.connection.tick(now)
        return self.hear()

    def hear(self) -> list[Frame]:
        """What the server has said since. After a failure all streams have ended, as by turns."""
        while self.connection.failure is not None and self.connection.lost():
            pass
        written, heard = b"".join(self.connection.out), []
        self.connection.out.clear()
        while written:
            size = int.from_bytes(written[:3], "big")
            kind, flags, stream = struct.unpack(">BBL", written[3:9])
            heard.append(Frame(kind, flags, stream, written[9 : 9 + size]))
            assert len(heard[-1].payload) == size, "a frame that isn't whole"
            written = written[9 + size :]
        self.heard += heard
        return heard

    def decode(self, block: Frame) -> dict[str, str]:
        """The headers of a frame, each decoded once and in order."""
        return {str(name): str(value) for name, value in self.decoder.decode(block.payload)}

    def failure(self) -> ErrorCode | None:
        """The code of the GOAWAY that ended the connection."""
        if self.connection.failure is None:
            return None
        last = self.heard[-1]
        assert (last.kind, last.code) == (GOAWAY, self.connection.failure.code)
        return last.code

    def resets(self) -> dict[int, ErrorCode]:
        """By stream, the code of its RST_STREAM."""
        return {received.stream: received.code for received in self.heard if received.kind == RST_STREAM}

    def data(self, stream: int = 1) -> bytes:
        """All DATA of a stream."""
        return b"".join(
            received.payload for received in self.heard if (received.kind, received.stream) == (DATA, stream)
        )

    def status(self, stream: int = 1) -> tuple[StatusCode, str]:
        """`grpc-status` and `grpc-message` of a stream that has ended."""
        blocks = [received for received in self.heard if (received.kind, received.stream) == (HEADERS, stream)]
        assert blocks[-1].flags & END_STREAM, blocks
        found = Decoder().decode(blocks[-1].payload)
        fields = {str(name): str(value) for name, value in found}
        return StatusCode(int(fields["grpc-status"])), fields.get("grpc-message", "")

    def _method(self, name: str) -> Callable[[Stream, Metadata], Recorded]:
        def begin(stream: Stream, metadata: Metadata) -> Recorded:
            if name == "begin":
                raise ZeroDivisionError("a bug in begin")
            self.calls.append(Recorded(stream, metadata, name))
            return self.calls[-1]

        return begin

    def _wake(self) -> None:
        self.wakes += 1
