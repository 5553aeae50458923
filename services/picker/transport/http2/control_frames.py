"""Frames that carry no message and open no stream (RFC 9113, sections 6.3 to 6.9), and how many a peer may send."""

from services.picker.settings.http2_options import Http2Options
from services.picker.transport.http2 import frames
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode, StreamFailed, flooded, violated
from services.picker.transport.http2.frames import UINT32
from services.picker.transport.http2.lifetime import Lifetime
from services.picker.transport.http2.streams import Streams

PRIORITY_SIZE = 5
_MIN_GOAWAY = 8
_RAPID = 1.0
"""Seconds after its beginning within which a stream's reset counts. Later ones are clients that have given up."""
_STREAMS_PER_FRAME = 100
"""Streams that are changed at the cost of reading a frame."""


class ControlFrames:
    """Reads them for one connection. Its methods raise ConnectionFailed and StreamFailed."""

    def __init__(self, options: Http2Options, streams: Streams, lifetime: Lifetime, now: float) -> None:
        self._streams, self._lifetime = streams, lifetime
        self._resets = TokenBucket(options.resets_per_second, now)
        self._frames = TokenBucket(options.control_frames_per_second, now)
        self._handlers = {
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    def receive(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """A frame has come."""
        if handle := self._handlers.get(kind):
            handle(stream_id, flags, payload)
        else:
            self.count("unknown")

    def count(self, what: str, cost: float = 1.0) -> None:
        """A frame has come that carries no message."""
        if not self._frames.take(self._streams.now, cost):
            raise flooded(f"too many {what} frames")

    def count_reset(self, what: str) -> None:
        """A stream is reset that had no answer."""
        if not self._resets.take(self._streams.now):
            raise flooded(what)

    def _on_priority(self, stream_id: int, flags: int, payload: bytes) -> None:
        self.count("PRIORITY")
        if stream_id == 0:
            raise violated("PRIORITY on stream 0")
        _check_size("PRIORITY", payload, PRIORITY_SIZE)  # the stream may be idle, where nothing can be reset
        check_dependency(stream_id, payload)

    def _on_rst_stream(self, stream_id: int, flags: int, payload: bytes) -> None:
        _check_size("RST_STREAM", payload, 4)
        if stream_id > self._streams.last_id or stream_id % 2 == 0:
            raise violated(f"RST_STREAM on stream {stream_id}, which isn't open")
        stream = self._streams.open.get(stream_id)
        if stream is None:
            if not self._streams.allow_late_reset(stream_id):
                self.count("late RST_STREAM")
            return
        if not stream.answered and self._streams.now - stream.since < _RAPID:
            self.count_reset("too many streams were reset before their answer")
        stream.half_closed = True
        self._streams.drop(stream)

    def _on_settings(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id != 0:
            raise violated("SETTINGS on a stream")
        self.count("SETTINGS", 1 + len(self._streams.open) / _STREAMS_PER_FRAME)
        if flags & frames.ACK:
            _check_size("SETTINGS ACK", payload, 0)
            self._lifetime.acknowledged = True
            return
        self._streams.apply(payload)
        self._streams.out.append(frames.SETTINGS_ACK)  # first: RFC 9113, section 6.5.3
        self._streams.flush()

    def _on_push_promise(self, stream_id: int, flags: int, payload: bytes) -> None:
        raise violated("PUSH_PROMISE from a client")

    def _on_ping(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id != 0:
            raise violated("PING on a stream")
        _check_size("PING", payload, 8)
        self.count("PING")
        if not flags & frames.ACK:
            self._streams.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, stream_id: int, flags: int, payload: bytes) -> None:
        if stream_id != 0:
            raise violated("GOAWAY on a stream")
        if len(payload) < _MIN_GOAWAY:
            raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY has {_MIN_GOAWAY} bytes or more")
        self.count("GOAWAY")

    def _on_window_update(self, stream_id: int, flags: int, payload: bytes) -> None:
        _check_size("WINDOW_UPDATE", payload, 4)
        streams = self._streams
        streams.updates -= 1
        if streams.updates < 0:
            self.count("WINDOW_UPDATE")
        more = UINT32.unpack(payload)[0] & frames.STREAM_ID
        if stream_id == 0:
            streams.widen(more)
        elif stream_id > self._streams.last_id or stream_id % 2 == 0:
            raise violated(f"WINDOW_UPDATE on stream {stream_id}, which isn't open")
        elif (stream := self._streams.open.get(stream_id)) is not None:
            try:
                streams.widen_stream(stream, more)
            except ConnectionFailed as error:
                raise StreamFailed(stream_id, error.code, error.text) from error

    def __repr__(self) -> str:
        return f"<ControlFrames {self._frames!r}>"


def check_dependency(stream_id: int, priority: bytes) -> None:
    """Raises ConnectionFailed for a stream that depends on itself."""
    if UINT32.unpack_from(priority)[0] & frames.STREAM_ID == stream_id:
        raise violated(f"stream {stream_id} depends on itself")


def _check_size(name: str, payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, f"{name} has {size} bytes")


class TokenBucket:
    """How often something may happen: so many times a second, and ten seconds' worth at once."""

    __slots__ = ("_left", "_most", "_per_second", "_since")

    BURST = 10.0
    """Seconds whose worth may be spent at once."""

    def __init__(self, per_second: float, now: float) -> None:
        self._per_second = per_second
        self._left = self._most = per_second * self.BURST
        self._since = now

    def take(self, now: float, cost: float = 1.0) -> bool:
        """Whether it may happen once more; something dearer counts as several."""
        self._left = min(self._left + (now - self._since) * self._per_second, self._most)
        self._since = now
        if self._left < cost:
            return False
        self._left -= cost
        return True

    def __repr__(self) -> str:
        return f"<TokenBucket {self._left:.0f} of {self._most:.0f}>"
