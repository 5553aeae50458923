"""A client of gRPC over HTTP/2 for benchmarks: many streams at a time, each of which says what comes next when its last
message has been answered, as Envoy's do.

It does no more than that takes: frames are packed with one call, headers are a constant block, those of the server
aren't decoded. A stream that ends before everything is said fails the benchmark.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TypeAlias

from hpack import Encoder

from services.picker.transport.ext_proc import METHOD
from services.picker.transport.http2 import frames
from services.picker.transport.http2.frames import HEAD, HEAD_SIZE, MESSAGE_FRAME, MESSAGE_HEAD, MESSAGE_HEAD_SIZE
from tests.waiting import eventually

Turn: TypeAlias = tuple[Sequence[bytes], int]
"""Messages that are sent at once, and how many answers to wait for; no messages end the stream."""
Say: TypeAlias = Callable[[int, int, bytes], Turn | None]
"""(number of the conversation, number of the turn, answers to the last turn) -> the next turn, or None to wait until
`go_on`."""
END: Turn = ((), 0)

_FRAME_LIMIT = 2**14
"""Bytes of a payload, as Envoy sends them."""
_HEADERS = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", METHOD),
    (":authority", "pickers"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
    ("x-envoy-internal", "true"),
    ("x-forwarded-for", "10.0.0.9"),
)
_WINDOW = 2**30
"""Bytes that the server may send, and after how many it may send as many more."""


class Stream:
    """One conversation."""

    def __init__(self, connection: "Connection", stream_id: int, number: int, window: int) -> None:
        self._connection = connection
        self.id, self.number, self.window = stream_id, number, window
        self.turn = 0
        """How many turns there have been."""
        self.began = self.sent = time.monotonic()
        self.answers = b""
        self.missing = 0
        """Answers that are to come."""
        self.part = b""
        """What has come of one that isn't whole."""
        self.pending = memoryview(b"")
        """What waits for the server's window."""

    def go_on(self) -> None:
        """Ask again what comes next."""
        self._connection.proceed(self)
        self._connection.flush()


class Connection(asyncio.Protocol):
    """One connection of an `Http2Client`."""

    def __init__(self, client: "Http2Client") -> None:
        self._client = client
        self._transport: Any = None
        self.streams: dict[int, Stream] = {}
        self._next_id = 1
        encoder = Encoder()
        self._block, self._next_block = encoder.encode(_HEADERS), encoder.encode(_HEADERS)
        self._window = self._stream_window = frames.DEFAULT_WINDOW
        self._received = 0
        self._data = b""
        self._out: list[bytes | memoryview] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        settings = frames.settings({frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: _WINDOW})
        self._out += [frames.PREFACE, settings, frames.window_update(0, _WINDOW)]
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.streams:
            self._client.fail(ConnectionError(f"the connection is lost with {len(self.streams)} streams: {exc}"))

    def close(self) -> None:
        self.streams.clear()
        self._transport.close()

    def open(self, number: int) -> Stream:
        """Begin a conversation; `flush` sends it."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        stream = self.streams[stream_id] = Stream(self, stream_id, number, self._stream_window)
        self._out.append(frames.frame(frames.HEADERS, frames.END_HEADERS, stream_id, self._block))
        self._block = self._next_block
        self.proceed(stream)
        return stream

    def proceed(self, stream: Stream) -> None:
        """Say what comes next."""
        turn = self._client.say(stream.number, stream.turn, stream.answers)
        if turn is None:
            return
        messages, stream.missing = turn
        stream.turn += 1
        stream.answers = b""
        for message in messages:
            self._send(stream, message)
        if not messages:
            self._out.append(frames.frame(frames.DATA, frames.END_STREAM, stream.id))
        stream.sent = time.monotonic()

    def _send(self, stream: Stream, message: bytes) -> None:
        size = len(message) + MESSAGE_HEAD_SIZE
        if size <= _FRAME_LIMIT and size <= stream.window and size <= self._window and not stream.pending:
            stream.window -= size
            self._window -= size
            self._out.append(MESSAGE_FRAME.pack(0, size, 0, 0, stream.id, 0, size - MESSAGE_HEAD_SIZE))
            self._out.append(message)
        else:
            whole = b"".join((stream.pending, MESSAGE_HEAD.pack(0, len(message)), message))
            stream.pending = memoryview(whole)
            self._send_pending(stream)

    def _send_pending(self, stream: Stream) -> None:
        while size := min(len(stream.pending), _FRAME_LIMIT, max(stream.window, 0), max(self._window, 0)):
            self._out += (HEAD.pack(0, size, frames.DATA, 0, stream.id), stream.pending[:size])
            stream.pending = stream.pending[size:]
            stream.window -= size
            self._window -= size

    def flush(self) -> None:
        if self._out:
            data = b"".join(self._out)
            self._out.clear()
            self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._data:
            data = self._data + data
        at, end = 0, len(data)
        while end - at >= HEAD_SIZE:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            after = at + HEAD_SIZE + (high << 16 | low)
            if after > end:
                break
            payload = data[at + HEAD_SIZE : after]
            at = after
            if kind == frames.DATA:
                self._take_data(stream_id, payload)
            elif kind == frames.HEADERS:
                if flags & frames.END_STREAM:
                    self._end(stream_id)
            else:
                self._take_control(kind, flags, stream_id, payload)
        self._data = data[at:]
        self.flush()

    def _take_data(self, stream_id: int, payload: bytes) -> None:
        self._received += len(payload)
        if self._received > _WINDOW // 2:
            self._out.append(frames.window_update(0, self._received))
            self._received = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if stream.part:
            payload = stream.part + payload
        at = 0
        while len(payload) - at >= MESSAGE_HEAD_SIZE:
            after = at + MESSAGE_HEAD_SIZE + MESSAGE_HEAD.unpack_from(payload, at)[1]
            if after > len(payload):
                break
            at = after
            stream.missing -= 1
        stream.answers += payload[:at]
        stream.part = payload[at:]
        if not stream.missing:
            if stream.turn == self._client.timed + 1:
                now = time.monotonic()
                self._client.times.append((now - stream.began, now - stream.sent))
            self.proceed(stream)

    def _take_control(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == frames.WINDOW_UPDATE:
            more = frames.UINT32.unpack(payload)[0]
            if stream_id == 0:
                self._window += more
                for stream in list(self.streams.values()):
                    self._send_pending(stream)
            elif stream_id in self.streams:
                self.streams[stream_id].window += more
                self._send_pending(self.streams[stream_id])
        elif kind == frames.SETTINGS and not flags & frames.ACK:
            values = dict(frames.SETTING.iter_unpack(payload))
            former, self._stream_window = self._stream_window, values.get(frames.INITIAL_WINDOW_SIZE, 65_535)
            for stream in self.streams.values():
                stream.window += self._stream_window - former
                self._send_pending(stream)
            self._out.append(frames.SETTINGS_ACK)
        elif kind == frames.PING and not flags & frames.ACK:
            self._out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif kind == frames.RST_STREAM and stream_id in self.streams:
            self._client.fail(ConnectionError(f"stream {stream_id} is reset: {payload.hex()}"))
        elif kind == frames.GOAWAY:
            self._client.fail(ConnectionError(f"GOAWAY: {payload[8:].decode()}"))

    def _end(self, stream_id: int) -> None:
        stream = self.streams.pop(stream_id)
        if stream.missing:
            self._client.cut_off(stream)
        self._client.on_end(self)


class Http2Client:
    """Has conversations, in turns that `say` names, on so many connections to a port of 127.0.0.1."""

    def __init__(self, port: int, say: Say, *, connections: int = 1, timed: int = -1, strict: bool = True) -> None:
        """`timed` is the turn whose `times` are kept. Streams that the server ends early are only counted unless the
        client is `strict`."""
        self._port, self._count = port, connections
        self.say, self.timed, self._strict = say, timed, strict
        self.times: list[tuple[float, float]] = []
        """Seconds from the stream's beginning, and from the turn's messages, to its last answer."""
        self._connections: list[Connection] = []
        self.started = self.ended = self.cut = 0
        self._deadline = 0.0
        self._idle = asyncio.Event()
        self._failure: Exception | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port)
            self._connections.append(connection)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for connection in self._connections:
            connection.close()

    @property
    def streams(self) -> list[Stream]:
        """Those that are open."""
        return [stream for connection in self._connections for stream in connection.streams.values()]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for it. Raises what has failed."""
        await eventually(lambda: self._failure is not None or condition(), lambda: self)
        if self._failure is not None:
            raise self._failure

    def start(self) -> None:
        """Begin a conversation."""
        connection = self._connections[self.started % self._count]
        self._open(connection)
        connection.flush()

    async def converse(self, seconds: float, at_a_time: int) -> int:
        """For so long, begin a conversation whenever one has ended; how many there were when the last had ended."""
        before = self.ended
        self._deadline = time.monotonic() + seconds
        self._idle.clear()
        for _ in range(at_a_time):
            self.start()
        await self._idle.wait()
        if self._failure is not None:
            raise self._failure
        return self.ended - before

    def _open(self, connection: Connection) -> None:
        self.started += 1
        connection.open(self.started)

    def on_end(self, connection: Connection) -> None:
        """A conversation has ended."""
        self.ended += 1
        if time.monotonic() < self._deadline:
            self._open(connection)
        elif self.ended == self.started:
            self._idle.set()

    def cut_off(self, stream: Stream) -> None:
        """The server has ended a conversation early."""
        self.cut += 1
        if self._strict:
            self.fail(ConnectionError(f"a conversation has ended in turn {stream.turn - 1}"))

    def fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._idle.set()

    def __repr__(self) -> str:
        return f"<Http2Client of port {self._port}, {self.started - self.ended} of {self.started} streams open>"
