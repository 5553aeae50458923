"""One HTTP/2 connection of a server, as a state machine (RFC 9113): bytes in, calls of methods, bytes out. No I/O.

What is to be written gathers in `out`. Time is monotonic seconds and comes from outside.
"""

from collections.abc import Callable, Collection, Iterator
from math import inf

import structlog
from msgspec.structs import replace

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Methods, StatusCode
from services.picker.transport.http2 import frames
from services.picker.transport.http2.control_frames import PRIORITY_SIZE, ControlFrames, check_dependency
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode, StreamFailed, flooded, violated
from services.picker.transport.http2.frame_reader import Frame, FrameReader
from services.picker.transport.http2.header_blocks import HeaderBlocks
from services.picker.transport.http2.held_bytes import UNCOUNTED, HeldBytes
from services.picker.transport.http2.lifetime import Lifetime
from services.picker.transport.http2.request_head import Malformed, RequestHead, check_trailers, read_head
from services.picker.transport.http2.stream import Http2Stream
from services.picker.transport.http2.streams import MESSAGES_PER_TURN, StreamCount, Streams

log = structlog.get_logger(__name__)

_PER_TURN = 64
"""Frames that are read before other connections have their turn."""
_SECONDS_PER_TURN = 0.005
"""Seconds of a turn: a frame may take some milliseconds, however short it is."""


class Http2Connection:
    """Reads what a client sends, and calls the methods of `methods`.

    `wake` is called when `out` gets something outside of `receive`. `memory` counts messages that aren't complete,
    `count` the streams of all connections. By `timer`, in seconds, a turn ends.
    """

    def __init__(
        self,
        methods: Methods,
        options: Http2Options,
        memory: MemoryBudget,
        count: StreamCount,
        *,
        now: float,
        wake: Callable[[], None],
        timer: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.failure: ConnectionFailed | None = None
        """Why the connection is to be closed when `out` is written."""
        self.dropped = False
        """Whether it had to make room for others: nothing of it is to stay in memory."""
        self.took = 0.0
        """Seconds of the last turn."""
        self._options = options
        self._methods = methods
        self._wake, self._timer = wake, timer
        self._frames = FrameReader(options.max_frame_size)
        self._pending_frame: Frame | None = None
        """The messages of the last frame that wait for the next turn, as a frame."""
        self._blocks = HeaderBlocks(options.max_header_list, options.max_continuations, read_head)
        self._block: tuple[int, int] | None = None
        """The stream whose header block isn't complete, and the flags of its HEADERS frame."""
        self._block_since = self._part_since = inf
        """When the block began, and when that of which a part has come, be it a block or a frame."""
        self._behind_since = inf
        """Since when frames wait for their turn."""
        self._held = HeldBytes(memory, self._drop)
        self._unsent, self._unsent_since = 0, inf
        """Bytes that wait for the socket, and since when there are any."""
        self._streams = Streams(options, memory, count, now, wake, timer)
        self._open = self._streams.open
        self._last_taken = frames.STREAM_ID
        """The last stream that is taken."""
        self._received = 0
        """Bytes that the peer may not send again until it is told so."""
        self._lifetime = Lifetime(options, now)
        self._controls = ControlFrames(options, self._streams, self._lifetime, now)
        ours = {
            frames.MAX_CONCURRENT_STREAMS: options.max_concurrent_streams,
            frames.INITIAL_WINDOW_SIZE: options.stream_window,
            frames.MAX_FRAME_SIZE: options.max_frame_size,
            frames.MAX_HEADER_LIST_SIZE: options.max_header_list,
        }
        self.out = self._streams.out
        """What is to be written."""
        self.out.append(frames.settings(ours))
        if options.connection_window > frames.DEFAULT_WINDOW:
            self.out.append(frames.window_update(0, options.connection_window - frames.DEFAULT_WINDOW))

    @property
    def open(self) -> int:
        """How many streams are open."""
        return len(self._open)

    def receive(self, data: bytes, now: float) -> bool:
        """Take what the client has sent; whether there is more to do, for which `receive` of nothing is called."""
        reader, streams = self._frames, self._streams
        streams.now = self._lifetime.received_at = now
        if self.failure is not None:
            return False
        if data:
            reader.feed(data)
        streams.watched, streams.messages = True, MESSAGES_PER_TURN
        find, stream_id = self._open.get, _NONE
        rest, timer = self._take_pending(), self._timer
        began = at = timer()
        until = streams.until = began + _SECONDS_PER_TURN
        try:
            if streams.unsent:
                streams.flush()
            for _ in range(_PER_TURN):
                if at >= until:
                    break
                frame = rest or reader.read()
                if frame is None:
                    break
                rest = None
                kind, flags, stream_id, payload = frame
                try:
                    stream = find(stream_id)
                    if kind or flags or not payload or stream is None or stream.half_closed or self._block:
                        self._take(kind, flags, stream_id, payload)
                        if self._pending_frame is not None or self._blocks.should_yield():
                            break
                    else:  # DATA, as nearly all frames are
                        self._count(len(payload))
                        if unread := stream.receive_data(payload, len(payload)):
                            self._set_pending(stream_id, flags, payload[-unread:])
                            break
                except StreamFailed as failure:
                    self._reset(failure)
                except ConnectionFailed:
                    raise
                except Exception:  # noqa: BLE001 - the top of a call: the others go on
                    self._failed(stream_id)
                at = timer()
        except ConnectionFailed as failure:
            self.fail(failure)
            return False
        finally:
            streams.watched = False
            self.took = timer() - began
        if reader.have or self._held.size or self._part_since < inf or self._behind_since < inf:
            self._note_unread(stream_id != _NONE)
        return self.unfinished

    def feed(self, data: bytes) -> None:
        """The client has sent this, for a later turn."""
        if self.failure is None:
            self._frames.feed(data)
            self._note_unread(False)

    @property
    def unfinished(self) -> bool:
        """Whether there is more to do without further bytes."""
        return self._pending_frame is not None or self._frames.complete or self._streams.unsent

    @property
    def unread(self) -> Collection[Http2Stream]:
        """Streams with something that waits for a window."""
        return self._streams.waiting

    def tick(self, now: float, unsent: int = 0) -> bool:
        """Time has passed: deadlines, keepalive, and what has waited for too long. Called some times a second; whether
        there is more to do at once. So many bytes are `unsent`, as for `note_unsent`."""
        if unsent or self._held.size:
            self.note_unsent(unsent, now)
            self._held.make_room()
        if self.failure is not None:
            return False
        try:
            self._lifetime.check(now, None if self._open else self._streams.idle_since)
            self._check_part(now)
            more = self._streams.tick(now)
        except ConnectionFailed as failure:
            self.fail(failure)
            self._wake()
            return False
        if self._lifetime.due_ping(now):
            self.out.append(frames.frame(frames.PING, 0, 0, _KEEPALIVE))
            self._wake()
        return more

    def drain(self, *, last: bool) -> None:
        """Tell the client to open no further streams. First it is only warned, so that none is lost that is under way;
        what comes after the `last` warning isn't taken."""
        if self.failure is not None:
            return
        if last:
            self._last_taken = min(self._streams.last_id, self._last_taken)  # never more (RFC 9113, section 6.8)
        self.out.append(frames.goaway(self._last_taken, ErrorCode.NO_ERROR, "the server stops"))
        self._wake()

    def cancel(self, details: str) -> Iterator[None]:
        """End all calls as UNAVAILABLE, some at a time: others have their turn in between."""
        return self._streams.cancel(details)

    def fail(self, failure: ConnectionFailed) -> None:
        """End the connection: what is under way ends with it, as when it is `lost`, which is to be called."""
        self.failure = failure
        self._forget_frames()
        last = min(self._streams.last_id, self._last_taken)
        self.out.append(frames.goaway(last, failure.code, failure.text))

    def note_unsent(self, unsent: int, now: float) -> None:
        """So many bytes have been written, and wait for the socket."""
        self._unsent = unsent
        self._unsent_since = min(self._unsent_since, now) if unsent > UNCOUNTED else inf
        self._count_held(now)

    def hold(self) -> None:
        """The socket takes no more: messages wait, and so do those who make them."""
        self._streams.hold()

    def release(self) -> None:
        """The socket takes more again. `unfinished` says whether `receive` of nothing is to be called."""
        self._streams.release()

    def lost(self) -> bool:
        """The connection is over. Some of its streams end; whether there are more, for which this is called again when
        others have had their turn."""
        self._forget_frames()
        return self._streams.drop_some()

    def forget(self) -> None:
        """Its last stream has ended. Nobody is woken any more: references in a circle would stay in memory for long."""
        self._wake = self._streams.wake = self._held.drop = _nothing

    def _forget_frames(self) -> None:
        self._frames.clear()
        self._blocks.clear()
        self._pending_frame = None
        self._part_since = self._behind_since = inf
        self._count_held(self._streams.now)

    def _drop(self) -> None:
        """It has held too much for too long."""
        self.dropped = True
        if self.failure is None:
            self.fail(flooded("no memory for what it has begun to send, or doesn't read"))
        self._wake()

    # What isn't read

    def _note_unread(self, read: bool) -> None:
        """Count what has come and isn't read. With `read`, frames before it were."""
        behind = self.unfinished
        self._behind_since = min(self._behind_since, self._streams.now) if behind else inf
        if behind:
            self._part_since = inf
        elif self._block is not None:
            self._part_since = self._block_since
        elif not self._frames.have:
            self._part_since = inf
        elif read or self._part_since == inf:
            self._part_since = self._streams.now
        self._count_held(self._streams.now)

    def _count_held(self, now: float) -> None:
        pending = self._pending_frame
        waiting = 0 if pending is None else len(pending[3])
        size = self._frames.have + self._blocks.gathered + waiting + self._unsent
        since = min(self._part_since, self._behind_since, self._unsent_since)
        self._held.update(0 if self.dropped else size, now - since)

    def _check_part(self, now: float) -> None:
        """Raises ConnectionFailed for a frame, or a header block, that isn't complete in time."""
        if self._streams.held:  # nothing more of it is read
            self._block_since = now
            if self._part_since < inf:
                self._part_since = now
        elif now - self._part_since > self._options.stall_timeout:
            raise flooded("a frame or a header block isn't complete in time")

    # Frames

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream_id != self._block[0]):
            raise violated("a header block isn't followed by its CONTINUATION")
        if kind == frames.DATA:
            self._on_data(stream_id, flags, payload)
        elif kind == frames.HEADERS:
            self._on_headers(stream_id, flags, payload)
        elif kind == frames.CONTINUATION:
            self._on_continuation(stream_id, flags, payload)
        else:
            self._controls.receive(kind, flags, stream_id, payload)

    def _failed(self, stream_id: int) -> None:
        """A call has raised."""
        stream = self._open.get(stream_id)
        if stream is None:
            log.exception("grpc.call_failed")
        else:
            stream.fail()

    def _count(self, size: int) -> None:
        """Bytes of DATA count as read: what isn't, its stream's window limits."""
        self._received += size
        window = self._options.connection_window
        if self._received * 2 > window:
            if self._received > window:
                raise ConnectionFailed(ErrorCode.FLOW_CONTROL_ERROR, "more than the connection's window")
            self.out.append(frames.window_update(0, self._received))
            self._received = 0

    def _take_pending(self) -> Frame | None:
        """What was put back."""
        rest, self._pending_frame = self._pending_frame, None
        return rest

    def _set_pending(self, stream_id: int, flags: int, unread: bytes) -> None:
        """Read the end of a DATA frame in the next turn."""
        self._received -= len(unread)
        self._pending_frame = frames.DATA, flags, stream_id, unread

    def _reset(self, failure: StreamFailed) -> None:
        if failure.code is not ErrorCode.REFUSED_STREAM:
            self._controls.count_reset("too many streams had to be reset")
        self.out.append(frames.rst_stream(failure.stream_id, failure.code))
        stream = self._open.get(failure.stream_id)
        if stream is None:
            self._streams.note_early_end(failure.stream_id)
        else:
            self._streams.drop(stream)

    def _on_data(self, stream_id: int, flags: int, payload: bytes) -> None:
        size = len(payload)
        self._count(size)
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        stream = self._open.get(stream_id)
        if stream is None or stream.half_closed:
            self._on_late_data(stream_id, payload)
        else:
            if not payload and not flags & frames.END_STREAM:
                self._controls.count("empty DATA")
            if unread := stream.receive_data(payload, size):
                self._set_pending(stream_id, flags & frames.END_STREAM, payload[-unread:])
            elif flags & frames.END_STREAM:
                self._end(stream)

    def _on_late_data(self, stream_id: int, payload: bytes) -> None:
        """DATA on a stream that the peer has ended, or we have, or that never was."""
        if stream_id > self._streams.last_id or stream_id % 2 == 0:
            raise violated(f"DATA on stream {stream_id}, which isn't open")
        if not self._streams.ended_early(stream_id):
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end")
        if not payload and not self._streams.allow_late_frame(stream_id):
            self._controls.count("late DATA")

    def _end(self, stream: Http2Stream) -> None:
        """The peer has sent everything on this stream."""
        if stream.id in self._open:
            stream.receive_end()

    def _on_headers(self, stream_id: int, flags: int, payload: bytes) -> None:
        if flags & frames.PADDED:
            payload = _unpadded(payload)
        if flags & frames.PRIORITIZED:
            if len(payload) < PRIORITY_SIZE:
                raise ConnectionFailed(ErrorCode.FRAME_SIZE_ERROR, "HEADERS are too short for their priority")
            check_dependency(stream_id, payload)
            payload = payload[PRIORITY_SIZE:]
        if stream_id % 2 == 0:
            raise violated(f"HEADERS on stream {stream_id}, which isn't a client's")
        if not flags & frames.END_HEADERS:
            self._block, self._block_since = (stream_id, flags), self._streams.now
            self._part_since = self._block_since
            self._blocks.begin(payload)
        else:
            self._on_block(stream_id, flags, payload)

    def _on_continuation(self, stream_id: int, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise violated("CONTINUATION without HEADERS")
        self._blocks.append(payload)
        if flags & frames.END_HEADERS:
            flags, self._block = self._block[1], None
            self._on_block(stream_id, flags, self._blocks.take())

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> None:
        if stream_id <= self._streams.last_id:
            self._on_late_block(stream_id, flags, block)
            return
        self._streams.last_id = stream_id
        try:
            head = self._blocks.get(block) or self._read_head(block)
        except Malformed as error:
            raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if stream_id > self._last_taken:
            self._streams.note_early_end(stream_id)  # the peer knows that it isn't taken (RFC 9113, section 6.8)
            return
        if not self._streams.room:
            raise StreamFailed(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        stream = self._streams.begin(stream_id, head)
        stream.half_closed = flags & frames.END_STREAM != 0
        if head.http_status:
            self._streams.set_deadline(stream, self._options.handshake_timeout)
        else:
            self._begin(stream, head)
        if flags & frames.END_STREAM:
            self._end(stream)

    def _read_head(self, block: bytes) -> RequestHead:
        """The head of a request; one that is too long is refused, and the connection goes on: others share it."""
        head = self._blocks.read(block)
        if not self._blocks.too_long:
            return head
        text = f"more than {self._options.max_header_list} bytes of headers"
        return replace(head, metadata=(), refusal=(StatusCode.RESOURCE_EXHAUSTED, text))

    def _begin(self, stream: Http2Stream, head: RequestHead) -> None:
        method = self._methods.get(head.path)
        if head.refusal is not None:
            stream.finish(*head.refusal)
        elif method is None:
            stream.finish(StatusCode.UNIMPLEMENTED, f"there is no method {head.path[:100]}")
        else:
            if head.timeout != inf:
                self._streams.set_deadline(stream, head.timeout)
            stream.begin(method(stream, head.metadata))

    def _on_late_block(self, stream_id: int, flags: int, block: bytes) -> None:
        """Trailers, or headers of a stream that isn't open any more."""
        headers = self._blocks.decode(block)
        stream = self._open.get(stream_id)
        if stream is None:
            if not self._streams.ended_early(stream_id):
                raise ConnectionFailed(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which has ended")
            if not self._streams.allow_late_frame(stream_id):
                self._controls.count("late HEADERS")
            return
        if stream.half_closed:
            raise StreamFailed(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end")
        if self._blocks.too_long:
            raise StreamFailed(stream_id, ErrorCode.ENHANCE_YOUR_CALM, "trailers that are too long")
        try:
            check_trailers(headers)
        except Malformed as error:
            raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR, str(error)) from error
        if not flags & frames.END_STREAM:
            raise StreamFailed(stream_id, ErrorCode.PROTOCOL_ERROR, "trailers that don't end the stream")
        self._end(stream)

    def __repr__(self) -> str:
        return f"<Http2Connection {self._streams!r}, {self._frames!r}>"


_KEEPALIVE = b"pointsmn"
_NONE = -1
"""The stream of no frame."""


def _unpadded(payload: bytes) -> bytes:
    """A payload without its padding and that's length."""
    if not payload or payload[0] >= len(payload):
        raise violated("padding as long as its frame")
    return payload[1 : len(payload) - payload[0]]


def _nothing() -> None:
    """Nobody is to be woken."""
