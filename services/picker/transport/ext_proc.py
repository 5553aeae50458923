"""`ExternalProcessor/Process`: every stream gets a handler of its own, which is ended exactly once.

Messages pass as bytes. One that can't be decoded ends its own stream with a clear status; so does a failure in a
handler.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from time import monotonic, perf_counter
from typing import Literal, Protocol, get_args

import structlog
from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, Counter, Gauge

from services.picker.body_buffer import MemoryBudget
from services.picker.transport.calls import Metadata, StatusCode, Stream
from shared.tasks import Turns

log = structlog.get_logger(__name__)

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = f"/{SERVICE}/Process"

_MIDDLING = 16 * 2**10
"""Bytes of a message that may take some milliseconds. Many of them come at once, from as many streams."""

_SLICE = 0.001
"""Seconds for which one stream's small messages are taken before others have their turn."""
_INCOMPLETE = 10.0
"""Seconds after which a request that hasn't come as a whole makes room for others."""
_MANY_INCOMPLETE = 1.0
"""The same, while more than half of the streams are such ones."""
_LOOKED_AT = 4
"""Incomplete requests that a new one looks at, and of which it ends the old ones: the next one has room, too."""
_PER_MESSAGE = 64
"""Bytes that a message takes beside its own."""

_WHOLE = (list, tuple)
"""Types of answers that needn't be made in steps."""
Outcome = Literal["finished", "refused", "malformed", "failed", "turned away"]


class StreamHandler(Protocol):
    """Handles one stream, which is one HTTP request: takes messages in and hands answers out, without waiting."""

    wake: Callable[[], None]
    """Set by the transport; called when `outbox` has answers."""

    @property
    def closed(self) -> bool:
        """Whether the stream is to be ended when what was handed out is sent."""
        ...

    def receive(self, data: bytes) -> Iterable[bytes]:
        """A message of the proxy, a serialized `ProcessingRequest`; what to answer now, in order: serialized
        `ProcessingResponse`s. For a large message an iterator reads it and makes the answers on demand. An empty
        answer isn't sent: it lets other streams have a turn. Raises DecodeError for invalid bytes."""
        ...

    @property
    def waiting(self) -> bool:
        """Whether there are, will or may be answers that no message brings."""
        ...

    @property
    def ready(self) -> bool:
        """Whether there are such answers by now."""
        ...

    @property
    def idle(self) -> bool:
        """Whether the stream only waits for the next message: the stream isn't closed or handed back, and there are and
        will be no other answers. Asked after each message, so it is one question in the place of four."""
        ...

    @property
    def handed_back(self) -> str:
        """Why the proxy is to ask another picker, which ends the stream; empty if it isn't. Nothing was answered."""
        ...

    @property
    def held(self) -> int:
        """Bytes of the request that are kept."""
        ...

    @property
    def incomplete(self) -> bool:
        """Whether the request has not come as a whole."""
        ...

    def outbox(self) -> Iterable[bytes]:
        """The answers without a further message, once they can be made, in order. Empty ones as in `receive`."""
        ...

    def end(self) -> None:
        """The stream is over, for whatever reason. Called exactly once."""
        ...


class ExtProc:
    """The method of a picker. It counts its streams, and turns those away that it can't serve."""

    def __init__(
        self,
        open_stream: Callable[[], StreamHandler],
        *,
        max_streams: int = 20_000,
        memory: MemoryBudget | None = None,
        registry: CollectorRegistry | None = None,
        not_ready: Callable[[], str | None] = lambda: None,
        on_metadata: Callable[[Metadata], None] = lambda _: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`not_ready` returns why nothing can be decided yet, or None. As long as there is a reason, streams end as
        UNAVAILABLE at once, so a proxy asks another picker; so do those beyond `max_streams`: each is memory, and no
        proxy counts all pickers'. First, requests make room that are still incomplete after ten seconds, or after one
        while they are more than half of all. `memory` counts messages that wait; beyond its limit their streams end as
        RESOURCE_EXHAUSTED. `on_metadata` takes every stream's initial metadata. `clock` is in seconds."""
        self._open_stream = open_stream
        self.open = 0
        """Streams under way."""
        self._incomplete: OrderedDict[ExtProcCall, float] = OrderedDict()
        """Of those, the ones whose requests haven't come as a whole, as far as anybody has looked; and when they began,
        the oldest first."""
        self._clock = clock
        self.turns = Turns()
        self.memory = MemoryBudget() if memory is None else memory
        self._max_streams = max_streams
        self._not_ready = not_ready
        self._on_metadata = on_metadata
        streams = Counter(
            "pointsman_ext_proc_streams",
            "Ended ext_proc streams: finished (half-closed, cancelled or lost: gRPC doesn't "
            "distinguish them), refused (answered by the picker), malformed (a message that isn't a "
            "ProcessingRequest), failed (an error in the picker), turned away (the picker has no "
            "endpoints yet, or the maximum of streams)",
            ["outcome"],
            registry=registry,
        )
        self._ended = {outcome: streams.labels(outcome) for outcome in get_args(Outcome)}
        gauge = Gauge("pointsman_ext_proc_open_streams", "Open ext_proc streams", registry=registry)
        gauge.set_function(lambda: self.open)

    def begin(self, stream: Stream, metadata: Metadata) -> "ExtProcCall":
        """Begin a stream: the `Method` of this service."""
        reason = self._not_ready()
        now = self._clock()
        if reason is None and self.open >= self._max_streams and not self._make_room(now):
            reason = f"{self._max_streams} streams are open, the limit of this picker"
        if reason is None:
            self._on_metadata(metadata)
        call = ExtProcCall(self, stream, self._open_stream() if reason is None else None)
        self.open += 1
        if reason is None:
            self._incomplete[call] = now
        else:
            call.turn_away(reason)
        return call

    def complete(self, call: "ExtProcCall") -> None:
        """A stream's request has come as a whole, or won't."""
        self._incomplete.pop(call, None)

    def ended(self, call: "ExtProcCall", outcome: Outcome) -> None:
        """A stream has ended."""
        self.open -= 1
        self._incomplete.pop(call, None)
        self._ended[outcome].inc()

    def _make_room(self, now: float) -> bool:
        """End streams of incomplete requests, the oldest first. Whether there is room."""
        many = len(self._incomplete) > self._max_streams // 2
        before = now - (_MANY_INCOMPLETE if many else _INCOMPLETE)
        for call, began in list(islice(self._incomplete.items(), _LOOKED_AT)):
            if began > before:
                break
            incomplete = call.incomplete
            self.complete(call)
            if incomplete:
                call.turn_away("its request isn't complete, and others need its room")
        return self.open < self._max_streams

    def __repr__(self) -> str:
        return f"<ExtProc {self.open} streams open>"


class ExtProcCall:
    """One stream. Answers are sent in order; while some of them are made in steps, messages wait."""

    __slots__ = (
        "_answers",
        "_begun",
        "_half_closed",
        "_handler",
        "_held",
        "_messages",
        "_outcome",
        "_service",
        "_stalled",
        "_stream",
        "_woken",
    )

    def __init__(self, service: ExtProc, stream: Stream, handler: StreamHandler | None) -> None:
        self._outcome: Outcome = "finished"
        self._service = service
        self._stream = stream
        self._handler = handler
        self._answers: Iterator[bytes] | None = None
        """Answers that are made in steps."""
        self._messages: deque[bytes] | None = None
        """Messages that wait, while there is something to be done before."""
        self._held = 0
        """Bytes that they take."""
        self._stalled = False
        """Whether what is to be done waits until the stream takes more answers."""
        self._woken = False
        """Whether the outbox is going to be looked into."""
        self._half_closed = False
        """Whether the stream ends when that is done."""
        self._begun = True
        """Whether the service counts the request as incomplete."""

    def receive(self, message: bytes) -> None:
        handler = self._handler
        if handler is None:
            return
        if self._messages is not None:
            self._enqueue(self._messages, message)
        elif len(message) > _MIDDLING or self._stream.congested:
            self._enqueue(self._begin_steps(), message)
        else:
            self._take(handler, message)

    def half_close(self) -> None:
        if self._messages is not None or self._woken:
            self._half_closed = True
        else:
            self._stream.finish()

    def drained(self) -> None:
        """The stream takes more answers."""
        if self._stalled:
            self._stalled = False
            self._service.turns.add(self._step, heavy=True)

    @property
    def incomplete(self) -> bool:
        """Whether the request has not come as a whole."""
        return self._handler is not None and self._handler.incomplete

    def turn_away(self, reason: str) -> None:
        """End the stream, so that the proxy asks another picker."""
        self._outcome = "turned away"
        self._stream.finish(StatusCode.UNAVAILABLE, reason)

    @property
    def held(self) -> int:
        return self._held + (0 if self._handler is None else self._handler.held)

    def end(self) -> None:
        handler, self._handler = self._handler, None
        self._answers = self._messages = None
        self._service.memory.used -= self._held
        self._service.ended(self, self._outcome)
        if handler is not None:
            handler.wake = _nothing
            handler.end()

    def _take(self, handler: StreamHandler, message: bytes) -> None:
        """Passes one message on, and sends the answers that are made at once."""
        try:
            answers = handler.receive(message)
            if type(answers) not in _WHOLE:
                self._answers = iter(answers)
                if self._messages is None:
                    self._begin_steps()
                return
            for answer in answers:
                if answer:
                    self._stream.send(answer)
        except DecodeError as error:
            self._malformed(error)
            return
        except Exception:  # noqa: BLE001 - the top of a stream: the others must go on
            self._fail()
            return
        if self._begun:
            self._look_whether_complete(handler)
        if self._messages is None and not handler.idle:
            self._advance(handler)

    def _look_whether_complete(self, handler: StreamHandler) -> None:
        if not handler.incomplete:
            self._begun = False
            self._service.complete(self)

    def _advance(self, handler: StreamHandler) -> None:
        """What is to be done without a further message: more answers, an end, or to wait for either."""
        if handler.ready:
            self._wake()
        elif handler.handed_back:
            self.turn_away(handler.handed_back)
        elif handler.closed:
            self._outcome = "refused"
            self._stream.finish()
        elif self._half_closed:
            self._stream.finish()
        else:
            handler.wake = self._wake if handler.waiting else _nothing

    def _wake(self) -> None:
        """There are answers that no message brings."""
        if not self._woken and self._handler is not None:
            self._woken = True
            self._service.turns.add(self._send_outbox)

    def _send_outbox(self) -> bool:
        self._woken = False
        handler = self._handler
        if handler is None or self._messages is not None:
            return False  # afterwards it is looked into anyway
        if not handler.ready:
            self._advance(handler)
            return False
        try:
            answers = handler.outbox()
            if type(answers) not in _WHOLE:
                self._answers = iter(answers)
                self._begin_steps()
                return False
            for answer in answers:
                if answer:
                    self._stream.send(answer)
        except Exception:  # noqa: BLE001 - as above
            self._fail()
            return False
        self._advance(handler)
        return False

    def _begin_steps(self) -> deque[bytes]:
        """From here on messages wait for their turn."""
        self._messages = messages = deque[bytes]()
        self._stream.pause()
        self._service.turns.add(self._step, heavy=True)
        return messages

    def _enqueue(self, messages: deque[bytes], message: bytes) -> None:
        """The message waits for its turn."""
        size, memory = len(message) + _PER_MESSAGE, self._service.memory
        if memory.has_room(size):
            memory.used += size
            self._held += size
            messages.append(message)
        else:
            self._outcome = "refused"
            self._stream.finish(StatusCode.RESOURCE_EXHAUSTED, "the bodies of all requests take too much memory")

    def _dequeue(self, messages: deque[bytes]) -> bytes:
        """The first message that waits."""
        message = messages.popleft()
        size = len(message) + _PER_MESSAGE
        self._service.memory.used -= size
        self._held -= size
        return message

    def _step(self) -> bool:
        """Makes one answer, or takes one message; whether there is more to do."""
        handler = self._handler
        if handler is None or self._messages is None:
            return False
        if self._stream.congested:
            self._stalled = True
            return False
        if self._answers is not None:
            try:
                answer = next(self._answers, None)
            except DecodeError as error:
                self._malformed(error)
                return False
            except Exception:  # noqa: BLE001 - as above
                self._fail()
                return False
            if answer:
                self._stream.send(answer)
            elif answer is None:
                self._answers = None
        elif self._messages and not (handler.closed or handler.handed_back):
            self._take_some(handler, self._messages)
            if self._messages and self._answers is None:  # other streams have their turn before the next ones
                self._service.turns.add(self._step, heavy=True)
                return False
        else:
            self._messages = None
            self._stream.resume()
            if self._begun:
                self._look_whether_complete(handler)
            self._advance(handler)
            return False
        return self._handler is not None

    def _take_some(self, handler: StreamHandler, messages: deque[bytes]) -> None:
        """Takes the next message; with small ones, about a millisecond's worth."""
        until = perf_counter() + _SLICE
        while messages and self._handler is not None and self._answers is None and not self._stream.congested:
            small = len(messages[0]) <= _MIDDLING
            self._take(handler, self._dequeue(messages))
            if not small or handler.closed or handler.handed_back or perf_counter() >= until:
                break

    def _malformed(self, error: DecodeError) -> None:
        self._outcome = "malformed"
        self._stream.finish(StatusCode.INVALID_ARGUMENT, f"a message is no ProcessingRequest: {error}")

    def _fail(self) -> None:
        log.exception("ext_proc.stream_failed")
        self._outcome = "failed"
        self._stream.finish(StatusCode.INTERNAL, "the picker has failed on this request")

    def __repr__(self) -> str:
        return f"<ExtProcCall {self._handler!r}>"


def _nothing() -> None:
    """Nobody waits for the answers."""
