"""The open streams of a connection, and what they share: the peer's windows, and the bytes that are written next."""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from itertools import islice
from math import inf

import structlog

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import StatusCode
from services.picker.transport.http2 import frames
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode, flooded, violated
from services.picker.transport.http2.request_head import RequestHead
from services.picker.transport.http2.stream import Http2Stream

log = structlog.get_logger(__name__)

_REMEMBERED = 1000
"""Streams that ended before the peer had finished: what is under way for them is no error."""
_LATE_FRAMES = 4
"""Frames without content that may be under way for such a stream: its end, trailers, a RST_STREAM."""
_MAX_SETTINGS = 100
"""Settings of one frame; RFC 9113 has six."""
_HELD = 2**40
"""Subtracted from the connection's window to stop sending."""
_ENDED_AT_ONCE = 100
"""Streams that end together before others have their turn: a few milliseconds."""
_FRAMES_AT_ONCE = 100
"""Frames that are sent of what has waited for a window, before others have their turn: a millisecond or two."""
MESSAGES_PER_TURN = 256
"""Messages that are read before others have their turn: a frame may have thousands."""
_LONGEST = 64 * 2**10
"""Bytes of a payload that a peer gets, whatever it takes: streams send by turns."""
_FIRST_UPDATES = 1000
"""WINDOW_UPDATE frames that a peer may send before it gets a DATA frame; with each it may send some more."""


class StreamCount:
    """The open streams of all connections of a server, and how many there may be."""

    __slots__ = ("most", "open")

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0

    def __repr__(self) -> str:
        return f"<StreamCount {self.open} of {self.most}>"


class Streams:
    """The streams of one connection. `wake` is called when `out` gets something outside of a call that flushes it.

    Streams that wait for a window are sent from by turns, a frame at a time.
    """

    def __init__(
        self,
        options: Http2Options,
        memory: MemoryBudget,
        count: StreamCount,
        now: float,
        wake: Callable[[], None],
        timer: Callable[[], float],
    ) -> None:
        self.options, self.memory, self._count = options, memory, count
        self.now = now
        """Monotonic seconds, of the last read or tick."""
        self.out: list[bytes | memoryview] = []
        """What is to be written next."""
        self.watched = False
        """Whether somebody is going to look into `out`; otherwise `wake` is called after an addition."""
        self.window = frames.DEFAULT_WINDOW
        """Bytes that the peer takes on all streams."""
        self.frame_limit = frames.MIN_FRAME_LIMIT
        """Bytes of a payload that the peer takes, and gets at most."""
        self.updates = _FIRST_UPDATES
        """WINDOW_UPDATE frames that the peer may send."""
        self.messages = MESSAGES_PER_TURN
        """Messages that are read before other connections have their turn; some bytes to the peer count as one, too."""
        self.timer, self.until = timer, inf
        """When their turn is at the latest, by `timer`."""
        self.open: dict[int, Http2Stream] = {}
        self.last_id = 0
        """The last stream that the peer has opened."""
        self.idle_since = now
        """Since when no stream is open."""
        self.stream_window = frames.DEFAULT_WINDOW
        """Bytes that the peer takes on a new stream."""
        self.wake = wake
        self._ended_early: dict[int, int] = {}
        """With how many further frames are excused."""
        self._late_resets = 0
        """RST_STREAM frames that are excused, whatever their stream."""
        self._held = 0
        self._waiting: dict[int, Http2Stream] = {}
        """Streams with something that waits for a window."""
        self._sendable: OrderedDict[int, Http2Stream] = OrderedDict()
        """Those whose own window is open, in the order of their turns. A dict's first key is found by passing over all
        that were removed before it."""
        self._timed: dict[int, Http2Stream] = {}
        """Streams with a deadline."""
        self._next_deadline = inf

    @property
    def room(self) -> bool:
        """Whether the peer may open another stream."""
        return len(self.open) < self.options.max_concurrent_streams and self._count.open < self._count.most

    def begin(self, stream_id: int, head: RequestHead) -> Http2Stream:
        """The peer opens a stream."""
        stream = self.open[stream_id] = Http2Stream(self, stream_id, head)
        self._count.open += 1
        return stream

    @property
    def waiting(self) -> Collection[Http2Stream]:
        """Streams with something that waits for a window."""
        return self._waiting.values()

    def block(self, stream: Http2Stream) -> None:
        """The stream has bytes that wait for a window."""
        self._waiting[stream.id] = stream
        if stream.window > 0:
            self._sendable[stream.id] = stream

    def unblock(self, stream: Http2Stream) -> None:
        """Nothing of it waits any more."""
        self._waiting.pop(stream.id, None)
        self._sendable.pop(stream.id, None)

    def close(self, stream: Http2Stream) -> None:
        """The stream has ended."""
        if self.open.pop(stream.id, None) is None:
            return
        self._count.open -= 1
        if self._waiting:
            self.unblock(stream)
        if self._timed:
            self._timed.pop(stream.id, None)
        if not stream.half_closed:
            self.note_early_end(stream.id)
        elif self._late_resets < _REMEMBERED:
            self._late_resets += 1
        if not self.open:
            self.idle_since = self.now

    def note_early_end(self, stream_id: int) -> None:
        """The stream has ended before the peer had."""
        if len(self._ended_early) >= _REMEMBERED:
            del self._ended_early[next(iter(self._ended_early))]
        self._ended_early[stream_id] = _LATE_FRAMES

    def ended_early(self, stream_id: int) -> bool:
        """Whether it is one of the last such streams."""
        return stream_id in self._ended_early

    def allow_late_reset(self, stream_id: int) -> bool:
        """Whether a RST_STREAM was under way when the stream ended: one for each stream that both sides have ended."""
        if self.allow_late_frame(stream_id):
            return True
        allowed = self._late_resets > 0
        self._late_resets -= allowed
        return allowed

    def allow_late_frame(self, stream_id: int) -> bool:
        """Whether a frame without content was under way for such a stream."""
        left = self._ended_early.get(stream_id, 0)
        if left:
            self._ended_early[stream_id] = left - 1
        return left > 0

    # Windows

    @property
    def unsent(self) -> bool:
        """Whether the windows allow something that waits, for which `flush` is to be called again."""
        return self.window > 0 and bool(self._sendable)

    def flush(self) -> None:
        """Send some of what the windows allow: one frame of the peer may open them for all streams."""
        for _ in range(_FRAMES_AT_ONCE):
            if not self.unsent or self.messages <= 0:
                break
            self._sendable.popitem(last=False)[1].flush()

    def widen(self, more: int) -> None:
        """The connection's window has opened. Raises ConnectionFailed."""
        self.window += _checked(more, self.window + self._held)
        self.flush()

    @property
    def held(self) -> bool:
        """Whether the socket takes nothing."""
        return self._held > 0

    def hold(self) -> None:
        """Send no more messages: what was sent isn't taken by the socket."""
        if not self._held:
            self._held = _HELD
            self.window -= _HELD

    def release(self) -> None:
        """Send messages again, what has waited first: some of it at once."""
        self.window += self._held
        self._held = 0
        self.flush()

    def widen_stream(self, stream: Http2Stream, more: int) -> None:
        """A stream's window has opened. Raises ConnectionFailed, which is about the stream alone."""
        stream.window += _checked(more, stream.window)
        if stream.pending:
            self.block(stream)
            self.flush()

    def apply(self, settings: bytes) -> None:
        """The payload of a SETTINGS frame; what it allows waits for `flush`. Raises ConnectionFailed."""
        if len(settings) % frames.SETTING.size:
            raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS have 6 bytes each")
        if len(settings) > _MAX_SETTINGS * frames.SETTING.size:
            raise flooded(f"more than {_MAX_SETTINGS} settings in a frame")
        window = self.stream_window
        for number, value in frames.SETTING.iter_unpack(settings):
            if number == frames.MAX_FRAME_SIZE:
                if not frames.MIN_FRAME_LIMIT <= value <= frames.MAX_FRAME_LIMIT:
                    raise violated(f"SETTINGS_MAX_FRAME_SIZE {value}")
                self.frame_limit = min(value, _LONGEST)
            elif number == frames.ENABLE_PUSH and value > 1:
                raise violated(f"SETTINGS_ENABLE_PUSH {value}")
            elif number == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, f"SETTINGS_INITIAL_WINDOW_SIZE {value}")
                window = value
        if window != self.stream_window:
            self._set_stream_window(window)

    def _set_stream_window(self, size: int) -> None:
        """The windows of all streams have changed. Raises ConnectionFailed."""
        more, self.stream_window = size - self.stream_window, size
        for stream in self.open.values():
            stream.window += more
            if stream.window > frames.MAX_WINDOW:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            if stream.pending:
                self.block(stream)

    # Time

    def set_deadline(self, stream: Http2Stream, timeout: float) -> None:
        """The client waits so many seconds."""
        stream.deadline = self.now + timeout
        self._next_deadline = min(self._next_deadline, stream.deadline)
        self._timed[stream.id] = stream

    def tick(self, now: float) -> bool:
        """Time has passed. A stream whose window the peer has left closed for too long is reset. Raises
        ConnectionFailed when it was the connection's. Few streams end at once: whether there are more."""
        self.now = now
        stalled = [
            stream for stream in self._waiting.values() if now - stream.blocked_since > self.options.stall_timeout
        ]
        if stalled:
            self._give_up(stalled[:_ENDED_AT_ONCE])
        late: list[Http2Stream] = []
        if now >= self._next_deadline:
            late = [stream for stream in self._timed.values() if stream.deadline <= now]
            for stream in late[:_ENDED_AT_ONCE]:
                self._timed.pop(stream.id, None)
                stream.expire()
            self._next_deadline = min((stream.deadline for stream in self._timed.values()), default=inf)
        return len(stalled) > _ENDED_AT_ONCE or len(late) > _ENDED_AT_ONCE

    def _give_up(self, stalled: list[Http2Stream]) -> None:
        """The peer hasn't read what it has asked for."""
        if self.window + self._held <= 0:
            raise flooded("the peer doesn't read what it has asked for")
        log.warning("grpc.streams_unread", streams=len(stalled))
        for stream in stalled:
            stream.reset(ErrorCode.ENHANCE_YOUR_CALM)

    # The end of streams

    def drop(self, stream: Http2Stream) -> None:
        """A stream is over without a further frame."""
        self.close(stream)
        stream.drop()

    def drop_some(self) -> bool:
        """The connection is over: some of its streams end; whether there are more."""
        for stream in list(islice(self.open.values(), _ENDED_AT_ONCE)):
            self.drop(stream)
        return bool(self.open)

    def cancel(self, details: str) -> Iterator[None]:
        """End all calls as UNAVAILABLE, and pause now and then."""
        for number, stream in enumerate(list(self.open.values()), 1):
            if stream.id in self.open:
                stream.finish(StatusCode.UNAVAILABLE, details)
            if number % _ENDED_AT_ONCE == 0:
                yield

    def __repr__(self) -> str:
        return f"<Streams {len(self.open)} open, {len(self._waiting)} waiting, window {self.window}>"


def _checked(more: int, window: int) -> int:
    """By how much a window opens."""
    if not more:
        raise violated("WINDOW_UPDATE by 0")
    if window + more > frames.MAX_WINDOW:
        raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {more}")
    return more
