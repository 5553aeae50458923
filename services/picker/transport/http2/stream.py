"""One stream: the messages of one gRPC call in both directions, each within the other side's window."""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Protocol

import structlog

from services.picker.body_buffer import BodyBuffer, MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Call, StatusCode
from services.picker.transport.http2 import frames, responses
from services.picker.transport.http2.errors import ErrorCode, StreamFailed
from services.picker.transport.http2.frames import MESSAGE_HEAD, MESSAGE_HEAD_SIZE
from services.picker.transport.http2.pieces import add, decompressed, taken
from services.picker.transport.http2.request_head import RequestHead

log = structlog.get_logger(__name__)

_END_HEADERS = frames.END_HEADERS
_END = frames.END_HEADERS | frames.END_STREAM
_EMPTY: deque[bytes | memoryview] = deque(maxlen=0)
_SHOWN = 100
"""Characters of a path in a log line."""
_BYTES_PER_MESSAGE = 8 * 2**10
"""Unzipped bytes that take as long as a message."""
SENT_PER_MESSAGE = 2**10
"""Bytes to the peer that count as a message: what a turn sends waits in `out` until its end."""
UPDATES_PER_FRAME = 10
"""WINDOW_UPDATE frames that a peer may send for each DATA frame that it gets."""
_WHOLE_MESSAGE = frames.MESSAGE_FRAME.pack


class Siblings(Protocol):
    """The open streams of a connection, of which this is one, and what they share."""

    options: Http2Options
    memory: MemoryBudget
    out: list[bytes | memoryview]
    """What is to be written next."""
    window: int
    """Bytes that the peer takes on all streams."""
    stream_window: int
    """Bytes that the peer takes on a new stream."""
    frame_limit: int
    """Bytes of a payload that the peer takes, and gets at most."""
    updates: int
    """WINDOW_UPDATE frames that the peer may send."""
    messages: int
    """Messages that are read before other connections have their turn; some bytes to the peer count as one, too."""
    timer: Callable[[], float]
    until: float
    """When their turn is at the latest, by `timer`."""
    now: float
    """Monotonic seconds, of the last read or tick."""

    watched: bool
    """Whether somebody is going to look into `out`; otherwise call `wake` after an addition."""
    wake: Callable[[], None]

    def block(self, stream: "Http2Stream") -> None:
        """The stream has bytes that wait for a window."""

    def unblock(self, stream: "Http2Stream") -> None:
        """Nothing of it waits any more."""

    def close(self, stream: "Http2Stream") -> None:
        """The stream has ended."""


class Http2Stream:
    """One stream. The connection passes in what the peer sends; the call sends what the peer gets.

    `receive_data` raises StreamFailed, and whatever the call raises.
    """

    __slots__ = (
        "_call",
        "_compressed",
        "_congested",
        "_finishing",
        "_gzip",
        "_head_sent",
        "_http_status",
        "_left",
        "_length",
        "_message",
        "_path",
        "_paused",
        "_pending",
        "_prefix",
        "_received",
        "_siblings",
        "answered",
        "blocked_since",
        "deadline",
        "half_closed",
        "id",
        "pending",
        "since",
        "unread_since",
        "window",
    )

    def __init__(self, siblings: Siblings, stream_id: int, head: RequestHead) -> None:
        self.id = stream_id
        self._gzip, self._http_status = head.gzip, head.http_status
        self._path = head.path[:_SHOWN]
        """Of the head no more is kept: a peer may have many streams, each with long headers."""
        self.window = siblings.stream_window
        """Bytes that the peer takes on this stream; below 0 after it has changed its mind."""
        self.since = siblings.now
        """When it was opened."""
        self.deadline = inf
        self.half_closed = False
        """Whether the peer has ended its side."""
        self.answered = False
        """Whether a message or a status has been sent."""
        self.pending = 0
        """Bytes that wait for a window."""
        self.blocked_since = 0.0
        """When the last of them left, in the connection's seconds."""
        self.unread_since = 0.0
        """Since when some do."""
        self._siblings = siblings
        self._call: Call | None = None
        self._received = 0
        """Bytes that the peer may not send again until it is told so."""
        self._left = head.content_length
        """Bytes of the body that are to come, if the peer told how many there are."""
        self._paused = False
        self._prefix = b""
        """The beginning of a message's head."""
        self._length = -1
        """Bytes of the message that has begun; -1 for none."""
        self._compressed = False
        self._congested = False
        """Whether the call was told so."""
        self._message: BodyBuffer | None = None
        """What has come of it."""
        self._pending: deque[bytes | memoryview] = _EMPTY
        self._head_sent = False
        self._finishing: bytes | None = None
        """Trailers that follow what is pending."""

    def begin(self, call: Call) -> None:
        """The call that gets the messages, unless it is over by now."""
        if self._finishing is None:
            self._call = call
        else:
            call.end()

    # What the peer sends

    def receive_data(self, payload: bytes, size: int) -> int:
        """The payload of a DATA frame, and the bytes that it counts with its padding. How many bytes at its end aren't
        read, because the messages before them are as many as one turn reads: they come again as a frame of their own.
        """
        self._received += size
        options = self._siblings.options
        if self._received > options.stream_window:
            raise StreamFailed(self.id, ErrorCode.FLOW_CONTROL_ERROR, "more than the stream's window")
        if self._left is not None:
            self._left -= len(payload)
            if self._left < 0:
                raise StreamFailed(self.id, ErrorCode.PROTOCOL_ERROR, "more than content-length")
        call, unread = self._call, 0
        if call is not None and (unread := self._read_messages(call, payload, options.max_message_size)):
            self._received -= unread
            if self._left is not None:
                self._left += unread
        if self._received * 2 > options.stream_window:
            self._credit()
        return unread

    def _read_messages(self, call: Call, payload: bytes, most: int) -> int:
        at, size, siblings = 0, len(payload), self._siblings
        while at < size and self._finishing is None:
            if self._length < 0:
                if siblings.messages <= 0 or (at and siblings.timer() >= siblings.until):
                    return size - at
                siblings.messages -= 1
                if size - at >= MESSAGE_HEAD_SIZE and not self._prefix:
                    compressed, length = MESSAGE_HEAD.unpack_from(payload, at)
                    start = at + MESSAGE_HEAD_SIZE
                    end = start + length
                    if end <= size and length <= most and not compressed:  # as nearly all messages are
                        at = end
                        call.receive(payload[start:end])
                        continue
                head = self._prefix + payload[at : at + MESSAGE_HEAD_SIZE - len(self._prefix)]
                at += len(head) - len(self._prefix)
                self._prefix = head
                if len(head) == MESSAGE_HEAD_SIZE:
                    self._begin_message(*MESSAGE_HEAD.unpack(head))
                continue
            end = at + self._length - (0 if self._message is None else self._message.size)
            piece = payload if at == 0 and end >= size else payload[at:end]
            at += len(piece)
            self._add(call, piece)
        return 0

    def _begin_message(self, compressed: int, length: int) -> None:
        options = self._siblings.options
        most = min(options.max_message_size, options.max_decompressed_size) if compressed else options.max_message_size
        if length > most:
            self.finish(StatusCode.RESOURCE_EXHAUSTED, f"a message of {length} bytes; the limit is {most}")
        elif compressed and not self._gzip:
            self.finish(StatusCode.INTERNAL, "a compressed message without grpc-encoding")
        self._length, self._compressed, self._prefix = length, compressed != 0, b""
        if not length and self._call is not None:
            self._add(self._call, b"")

    def _add(self, call: Call, piece: bytes) -> None:
        message = self._message
        if message is None:
            message = self._message = BodyBuffer(self._siblings.memory, droppable=True)
        if not message.has_room(len(piece)):
            self.finish(StatusCode.RESOURCE_EXHAUSTED, "the bodies of all requests take too much memory")
            return
        message.add(piece)
        if message.size < self._length:
            return
        self._length, self._message = -1, None
        whole = message.take()
        if self._compressed:
            most = self._siblings.options.max_decompressed_size
            content = decompressed(whole, most)
            if content is None:
                self.finish(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"the message isn't valid gzip, or exceeds {most} bytes when decompressed",
                )
                return
            whole = content
            self._siblings.messages -= len(content) // _BYTES_PER_MESSAGE
        call.receive(whole)

    def receive_end(self) -> None:
        """The peer has sent everything."""
        self.half_closed = True
        if self._left:
            raise StreamFailed(self.id, ErrorCode.PROTOCOL_ERROR, "less than content-length")
        call = self._call
        if call is None:
            if self._finishing is None and self._http_status:
                self._refuse(self._http_status)
        elif self._length >= 0 or self._prefix:
            self.finish(StatusCode.INTERNAL, "the call ends within a message")
        else:
            call.half_close()

    def _refuse(self, http_status: int) -> None:
        """Answer a request that isn't gRPC's."""
        self._siblings.out.append(frames.frame(frames.HEADERS, _END_HEADERS, self.id, responses.refusal(http_status)))
        self._head_sent = self.answered = True
        self._finishing = b""
        self._queue(b"", responses.NOT_GRPC, len(responses.NOT_GRPC))

    def _credit(self) -> None:
        if self._paused or self.half_closed or not self._received:
            return
        self._siblings.out.append(frames.window_update(self.id, self._received))
        self._written()
        self._received = 0

    # What the call does

    @property
    def congested(self) -> bool:
        """Whether as much is pending as the stream is to hold."""
        return self.pending > self._siblings.options.send_buffer

    def send(self, message: bytes) -> None:
        """Send a message; what exceeds a window waits until the peer opens it."""
        if self._finishing is not None:
            return
        siblings = self._siblings
        out = siblings.out
        if not self._head_sent:
            self._head_sent = self.answered = True
            out.append(frames.frame(frames.HEADERS, _END_HEADERS, self.id, responses.RESPONSE))
        size = len(message) + MESSAGE_HEAD_SIZE
        if size <= self.window and size <= siblings.window and size <= siblings.frame_limit and not self.pending:
            self.window -= size
            siblings.window -= size
            siblings.messages -= size // SENT_PER_MESSAGE
            siblings.updates += UPDATES_PER_FRAME
            out.append(_WHOLE_MESSAGE(size >> 16, size & 0xFFFF, 0, 0, self.id, 0, size - MESSAGE_HEAD_SIZE))
            out.append(message)
        else:
            self._queue(MESSAGE_HEAD.pack(0, len(message)), message, size)
        if not siblings.watched:
            siblings.wake()

    def _queue(self, head: bytes, message: bytes, size: int) -> None:
        """Send what the windows allow of a message and its head; the rest waits. Where there is no memory for it, the
        stream is reset."""
        siblings = self._siblings
        if not siblings.memory.has_room(size):
            self.reset(ErrorCode.ENHANCE_YOUR_CALM)
            return
        siblings.memory.used += size
        if not self.pending:
            self._pending, self.blocked_since, self.unread_since = deque(), siblings.now, siblings.now
        add(self._pending, head, message)
        self.pending += size
        while self.pending and self.window > 0 and siblings.window > 0:
            if siblings.watched and siblings.messages <= 0:
                break  # the rest follows in later turns
            self.flush()
        if self.pending:
            self._congested = self.congested
            siblings.block(self)

    def finish(self, status: StatusCode = StatusCode.OK, details: str = "") -> None:
        """End the call: trailers follow what is pending."""
        if self._finishing is not None:
            return
        trailers = responses.trailers(status, details)
        if not self._head_sent:
            trailers = responses.RESPONSE + trailers
        self._head_sent = self.answered = True
        self._finishing = trailers
        if self.pending:
            self._end_call()
        else:
            self._end(trailers)
        self._written()

    def pause(self) -> None:
        """Promise the peer nothing more."""
        self._paused = True

    def resume(self) -> None:
        """Promise as much as before again."""
        self._paused = False
        if self._received * 2 > self._siblings.options.stream_window:
            self._credit()

    # What the connection does

    def flush(self) -> None:
        """Send what the windows allow, one frame at most."""
        siblings, pending = self._siblings, self._pending
        size = min(self.window, siblings.window, siblings.frame_limit, self.pending)
        if size > 0:
            payload = taken(pending, size)
            self.pending -= size
            siblings.memory.used -= size
            self.window -= size
            siblings.window -= size
            siblings.messages -= size // SENT_PER_MESSAGE
            siblings.updates += UPDATES_PER_FRAME
            self.blocked_since = siblings.now
            ends = not self.pending and self._finishing == b""  # what isn't a call has no trailers
            flags = frames.END_STREAM if ends else 0
            siblings.out.append(frames.HEAD.pack(size >> 16, size & 0xFFFF, frames.DATA, flags, self.id))
            siblings.out += payload
            if not self.pending and self._finishing is not None:
                self._end(self._finishing)
            elif self._congested and not self.congested:
                self._congested = False
                self._notify_drained()
        if self.pending:
            siblings.block(self)
        else:
            siblings.unblock(self)

    def _written(self) -> None:
        if not self._siblings.watched:
            self._siblings.wake()

    def fail(self) -> None:
        """The call has raised what is being handled."""
        log.exception("grpc.call_failed", path=self._path)
        self.finish(StatusCode.INTERNAL, "the picker has failed on this request")

    def expire(self) -> None:
        """The deadline is over."""
        if self._finishing is None and self._http_status:
            self._refuse(self._http_status)
        else:
            self.finish(StatusCode.DEADLINE_EXCEEDED, "the deadline of grpc-timeout is over")

    @property
    def held(self) -> int:
        """Bytes that the stream keeps: those that wait for a window, and its call's."""
        return self.pending + (0 if self._call is None else self._call.held)

    def reset(self, code: ErrorCode) -> None:
        """End the stream, whatever waits."""
        self._siblings.out.append(frames.rst_stream(self.id, code))
        self._siblings.close(self)
        self.drop()
        self._written()

    def drop(self) -> None:
        """The stream is over without a further frame: it was reset, or the connection is lost."""
        self._finishing = b""
        self._siblings.memory.used -= self.pending
        self.pending, self._pending = 0, _EMPTY
        self._end_call()

    def _end(self, trailers: bytes) -> None:
        out = self._siblings.out
        if trailers:
            out.append(frames.frame(frames.HEADERS, _END, self.id, trailers))
        if not self.half_closed:  # the peer needn't send the rest (RFC 9113, section 8.1)
            out.append(frames.rst_stream(self.id, ErrorCode.NO_ERROR))
        self._finishing = trailers
        self._end_call()
        self._siblings.close(self)

    def _end_call(self) -> None:
        if self._message is not None:
            self._message.clear()
        call, self._call = self._call, None
        if call is not None:
            try:
                call.end()
            except Exception:  # the top of a call: the others go on
                log.exception("grpc.call_failed", path=self._path)

    def _notify_drained(self) -> None:
        if self._call is not None:
            try:
                self._call.drained()
            except Exception:  # noqa: BLE001 - as above
                self.fail()

    def __repr__(self) -> str:
        state = "finished" if self._finishing is not None else "half-closed" if self.half_closed else "open"
        return f"<Http2Stream {self.id}, {state}, {self._message!r}, {self.pending} pending>"
