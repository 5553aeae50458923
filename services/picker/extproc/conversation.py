"""One ext_proc stream as a state machine: messages of a proxy in, events and answers out. No I/O, no clock.

The proxy's body mode determines which answer carries the decision:
- FULL_DUPLEX_STREAMED: the answer to the request headers, after the end of the body. The body goes back in pieces.
- BUFFERED: the answer to the body. The headers are answered at once. So a request with trailers and no body is refused.
- NONE, STREAMED, and requests without a body: the answer to the headers.

Messages may come in any order: `receive` doesn't raise, and `Completed` comes exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import chain
from sys import getsizeof

from google.protobuf.message import DecodeError

from services.picker import metadata
from services.picker.body_buffer import BodyBuffer, MemoryBudget
from services.picker.extproc import incoming, outgoing, refusals
from services.picker.extproc.events import NO_HEADERS, Completed, Event, Limits, Refused, RequestHead, RequestReady
from services.picker.extproc.headers import read_few, read_headers
from services.picker.extproc.incoming import Context, Message
from services.picker.extproc.messages import GATEWAY_MODES, BodyMode
from services.picker.extproc.outgoing import Mutation
from services.picker.extproc.refusals import ErrorFormat
from services.picker.extproc.request_answers import request_answers
from services.picker.extproc.response import Response
from services.picker.parsers.json_edit import replace_model
from services.picker.request import Headers, Refusal, Route
from services.picker.responses.reader import ResponseReader
from shared.content_length import content_length

# A member through its enum costs 0.08 µs in Python 3.11, a name of the module 0.01 µs; a conversation asks 30 times.
_BUFFERED_PARTIAL, _FULL_DUPLEX, _GRPC = BodyMode.BUFFERED_PARTIAL, BodyMode.FULL_DUPLEX_STREAMED, BodyMode.GRPC
_BUFFERED = (BodyMode.BUFFERED, _BUFFERED_PARTIAL)
_HEADERS_DECIDE = (BodyMode.NONE, BodyMode.STREAMED)
_ECHOED = (_FULL_DUPLEX, _GRPC)
_SMALL_HEADERS = 8 * 2**10
"""Bytes of memory of headers that count in no budget: nearly all requests have less."""
_PER_HEADER = 128
"""Bytes of memory that a header takes beside its own."""
_WIDEST = 4
"""Bytes of memory that a byte of a header takes at most."""
_LONG = 64 * 2**10
"""Bytes of a message that may be anything: even so many headers are read within a few milliseconds."""
_SMALL_SUBSET = 8 * 2**10
"""Bytes of memory of a subset hint that counts in no budget: one of a hundred endpoints."""


class State(Enum):
    """Where the request half of a conversation stands."""

    IDLE = auto()
    COLLECTING = auto()
    DECIDING = auto()
    ROUTED = auto()
    REFUSED = auto()
    OVERTAKEN = auto()
    """The proxy answered by itself before the decision."""
    ENDED = auto()


_IDLE, _COLLECTING, _DECIDING, _ROUTED, _REFUSED, _OVERTAKEN, _ENDED = State


class Conversation:
    """The conversation of a proxy and the picker about one HTTP request.

    `make_id` makes a request id for a request that has none. `budget` counts the bytes of bodies that are kept from one
    message to the next.
    """

    def __init__(
        self,
        limits: Limits,
        make_id: Callable[[], str],
        budget: MemoryBudget | None = None,
    ) -> None:
        self._limits = limits
        self._make_id = make_id
        self._modes = GATEWAY_MODES
        """Those that the proxy announces; some announce none."""
        self._state = _IDLE
        self._headers = NO_HEADERS
        self._error_format: ErrorFormat | None = None
        """Set when the headers may be gone before a refusal."""
        self._head: RequestHead | None = None
        self._subset: tuple[str, ...] | None = None
        self._received_at = 0.0
        self._budget = MemoryBudget(limits.held_bodies) if budget is None else budget
        self._body = BodyBuffer(self._budget, droppable=True)
        """The request's body, until its answers have been sent."""
        self._headers_owed = False
        self._patient = False
        """Whether the proxy was asked to wait."""
        self._unanswered_chunks = 0
        self._trailers_owed = False
        self.response = Response(self._modes.response, limits.header_count)
        self._completed = False
        self._answers: list[bytes] = []
        self._echo: Iterator[bytes] | None = None
        """What follows the answers: a long body on its way back."""

    @property
    def closed(self) -> bool:
        """Whether the conversation is over: the request was refused, or the stream has ended."""
        return self._state is _REFUSED or self._state is _ENDED

    def receive(self, data: bytes, now: float) -> list[Event]:
        """Take a message in: a serialized `ProcessingRequest`. `now` is monotonic seconds.

        Raises DecodeError for bytes that are none, and for one whose size without a body is beyond the limit when it is
        too late to refuse the request.
        """
        if len(data) > _LONG and (beside := incoming.beside_body(data)) > self._limits.beside_body:
            if self._state is _IDLE or self._state is _COLLECTING:
                return self._refuse(refusals.large_message(beside, self._limits))
            raise DecodeError(f"{beside} bytes besides a body; the limit is {self._limits.beside_body}")
        message = incoming.read(data, self._limits.subset_entries)
        state = self._state
        if state is _REFUSED or state is _ENDED:
            return []
        handle = _HANDLERS.get(message.phase)
        if handle is None:
            return []  # a phase of a later version of the protocol, which has no answer
        if state is _IDLE:
            if message.context.modes is not None:
                self._modes = message.context.modes
                self.response.mode = self._modes.response
            self._received_at = now
        return handle(self, message)

    def route(
        self,
        route: Route,
        reader: ResponseReader | None = None,
        observe: Callable[[], bool] = lambda: False,
        *,
        report_headers: bool = False,
    ) -> None:
        """Answer the request of `RequestReady`; `reader` reads the response. If the proxy shows no bodies, `observe`
        says whether to request this one. `report_headers` says whether `ResponseStarted` has the response's headers.
        Does nothing when the request is already over.

        Raises ValueError for a route without a destination, or with a model for a body that has none to replace,
        and RuntimeError when there is no request to answer.
        """
        if not self._awaits_decision():
            return
        if not route.destinations:
            raise ValueError("a route needs a destination")
        assert self._head is not None
        set_headers = dict(route.set_headers)
        if self._headers.get(metadata.REQUEST_ID) != self._head.request_id:
            set_headers[metadata.REQUEST_ID] = self._head.request_id
        shown = self._body.whole()
        body: Sequence[bytes | memoryview] = (shown,)
        if route.target_model is not None:
            body = replace_model(shown, route.target_model)
        if len(body) > 1:
            set_headers["content-length"] = str(sum(map(len, body)))
        names = self._headers.names()
        remove_headers: Sequence[str] = ()
        if not metadata.CONTROL_HEADERS.isdisjoint(names):
            remove_headers = sorted(metadata.CONTROL_HEADERS.intersection(names) - set_headers.keys())
        destination = ",".join(route.destinations)
        mutation = Mutation(
            destination=destination, set_headers=set_headers, remove_headers=remove_headers, scores=route.scores
        )
        self._state = _ROUTED
        self.response.expect(reader, observe, report_headers=report_headers)
        answers, self._echo = request_answers(
            mutation,
            body,
            self._body.size,
            headers=self._headers_owed,
            chunks=self._unanswered_chunks,
            trailers=self._trailers_owed,
            streamed=self._modes.request is _FULL_DUPLEX,
        )
        self._answers += answers

    def set_response_headers(self, headers: Mapping[str, str]) -> None:
        """Set headers for the client, in the answer to the response headers of the last `ResponseStarted`. Does nothing
        when the request is already over.

        Raises RuntimeError when that answer has been handed out.
        """
        if self._state is not _ROUTED:
            return
        if not self._answers:
            raise RuntimeError(f"the response headers have been answered: {self!r}")
        self._answers[-1] += outgoing.set_response_headers(headers)

    def set_response_metadata(self, numbers: Mapping[tuple[str, str], float]) -> None:
        """Send the proxy these numbers, by namespace and name, with the answer to the end of the response that
        `Completed` has just reported. Does nothing when that has no answer."""
        if self._state is _ROUTED and self._answers:
            self._answers[-1] += outgoing.response_metadata(numbers)

    def refuse(self, refusal: Refusal) -> None:
        """Answer the request of `RequestReady` with an error. Does nothing when it is already over.

        Raises RuntimeError when there is no request to answer.
        """
        if self._awaits_decision():
            self._refuse(refusal)

    def may_be_evicted(self) -> None:
        """Allow `evict` to end the request that has just been routed."""
        self._error_format = refusals.error_format_of(self._headers)

    def evict(self, refusal: Refusal) -> list[Event]:
        """End a request that was routed, whatever the proxy has sent on of its response. Does nothing when the response
        is complete."""
        if self._state is not _ROUTED or self._completed:
            return []
        self._answers = [refusals.answer(refusal, self._error_format or refusals.error_format_of(self._headers))]
        self._echo = None
        self._state = _REFUSED
        return self._complete(aborted=True)

    def wait(self, seconds: float) -> None:
        """Extend the proxy's timeout for the request of `RequestReady`, which may wait so long. The proxy has to be
        `timed`."""
        if self._state is _DECIDING:
            self._patient = True
            self._answers.append(outgoing.longer(seconds))

    @property
    def timed(self) -> bool:
        """Whether the proxy waits only for a limited time for an answer."""
        return self._modes.request is not _FULL_DUPLEX

    @property
    def has_answers(self) -> bool:
        """Whether there are answers to be handed out."""
        return bool(self._answers)

    @property
    def unanswered(self) -> bool:
        """Whether the request waits for its decision, and the proxy has no answer at all."""
        return self._state is _DECIDING and self._headers_owed and not self._patient

    def no_room(self) -> list[Event]:
        """Refuse the request because there is no room for one of its messages. Does nothing after the decision:
        messages are still received then."""
        if self._state is _IDLE or self._state is _COLLECTING:
            return self._refuse(refusals.no_room(self._budget.limit))
        return []

    @property
    def headers(self) -> Headers:
        """The request's headers until its answer has been sent. Of a request with too many, a few."""
        return self._headers

    @property
    def body_size(self) -> int:
        """Bytes of the request's body that are kept."""
        return self._body.size

    @property
    def held(self) -> int:
        """Bytes of the request's body that are kept, and of long headers."""
        return self._body.held

    @property
    def incomplete(self) -> bool:
        """Whether the request hasn't come as a whole: it is still to be decided, or never will be."""
        return self._state is _IDLE or self._state is _COLLECTING or self._state is _OVERTAKEN

    @property
    def overtaken(self) -> bool:
        """Whether the proxy has answered by itself before the decision."""
        return self._state is _OVERTAKEN

    def responses(self) -> Iterable[bytes]:
        """What to send now, in order: serialized `ProcessingResponse`s. Each is handed out once. Those with a long body
        are made while they are asked for."""
        answers, self._answers = self._answers, []
        if self._echo is None:
            return answers
        echo, self._echo = self._echo, None
        return chain(answers, echo)

    def sent(self) -> None:
        """The answers have been sent: nothing of the request that they answer is needed any more."""
        if self._state is _ROUTED and self._head is not None:
            self._body.clear()
            self._headers, self._head, self._subset = NO_HEADERS, None, None

    def end(self, now: float) -> list[Event]:
        """The stream has ended: half-closed, cancelled, or lost."""
        if self._state is _ENDED:
            return []
        aborted = not (self._state is _REFUSED or self.response.seen)
        self._body.clear()
        self._state = _ENDED
        return self._complete(aborted=aborted)

    # -- the request

    def _on_request_headers(self, message: Message) -> list[Event]:
        if self._state is not _IDLE:
            return []
        shown = message.shown
        count, size = len(shown.entries), message.size
        limits = self._limits
        if count > limits.header_count or size > limits.header_bytes:
            self._headers = read_few(shown, refusals.FORMAT_HEADERS)
            return self._refuse(refusals.large_headers(count, size, limits))
        self._headers = read_headers(shown)
        most = _WIDEST * size + _PER_HEADER * count
        if most > _SMALL_HEADERS and (held := self._headers.held()) > _SMALL_HEADERS:
            if not self._body.has_room(held):
                self._headers = read_few(shown, refusals.FORMAT_HEADERS)
                return self.no_room()
            self._body.account(held, self._drop_headers)
        if not self._take_subset(message.context):
            return self.no_room()
        mode = self._modes.request
        if shown.end_of_stream or mode in _HEADERS_DECIDE:
            self._headers_owed = True
            return self._ready(has_body=False, withheld=not shown.end_of_stream)
        if mode is _GRPC:
            return self._refuse(refusals.GRPC_BODIES)
        declared = self._headers.get("content-length")
        if (content_length(declared) or 0) > limits.request_body:
            return self._refuse(refusals.large_body(limits, declared))
        self._state = _COLLECTING
        if mode in _BUFFERED:
            self._answers.append(outgoing.REQUEST_HEADERS_UNCHANGED)
        else:
            self._headers_owed = True
        return []

    def _on_request_body(self, message: Message) -> list[Event]:
        mode = self._modes.request
        state = self._state
        if state is _IDLE:  # the proxy doesn't show request headers
            state = self._state = _COLLECTING
        if state is not _COLLECTING:
            if state is _DECIDING:
                self._unanswered_chunks += mode not in _ECHOED
            elif state is _ROUTED and mode not in _ECHOED:
                self._answers.append(outgoing.REQUEST_BODY_UNCHANGED)
            return []
        if not self._take_subset(message.context):
            return self.no_room()
        shown = message.shown
        if mode in _HEADERS_DECIDE:
            self._unanswered_chunks = 1
            return self._ready(has_body=False, withheld=True)
        chunk = shown.body
        if self._body.size + len(chunk) > self._limits.request_body:
            return self._refuse(refusals.large_body(self._limits))
        if not self._body.has_room(len(chunk)):
            return self.no_room()
        # a BUFFERED body is one message, also when trailers follow and it isn't the end of the stream
        if mode in _BUFFERED or shown.end_of_stream:
            self._unanswered_chunks = 1
            self._body.add(chunk, last=True)
            return self._ready(truncated=mode is _BUFFERED_PARTIAL and not shown.end_of_stream)
        if chunk:
            self._body.add(chunk)
        return []

    def _on_request_trailers(self, message: Message) -> list[Event]:
        if self._state is _ROUTED:
            self._answers.append(outgoing.REQUEST_TRAILERS_UNCHANGED)
        elif self._body.dropped:
            return self.no_room()
        elif self._state is not _OVERTAKEN:
            self._trailers_owed = True
            if self._state is not _DECIDING:
                if not (self._headers_owed or self._body.size):
                    return self._refuse(refusals.TRAILERS_ALONE)
                if not self._take_subset(message.context):
                    return self.no_room()
                return self._ready(has_body=self._body.size > 0)
        return []

    def _drop_headers(self) -> None:
        """The request had to make room for others."""
        self._error_format = refusals.error_format_of(self._headers)
        self._headers, self._subset = NO_HEADERS, None

    def _take_subset(self, context: Context) -> bool:
        """Whether there is room for the hint. Proxies attach it to some phases only; a phase without it doesn't revoke
        it."""
        subset = context.subset
        if subset is None or subset == self._subset:
            return True
        more = _held_by(subset) - _held_by(self._subset or ())
        if more > 0 and not self._body.has_room(more):
            return False
        if more:
            self._body.account(more, self._drop_headers)
        self._subset = subset
        return True

    def _ready(self, *, has_body: bool = True, withheld: bool = False, truncated: bool = False) -> list[Event]:
        if self._subset is not None and len(self._subset) > self._limits.subset_entries:
            return self._refuse(refusals.large_subset(self._limits))
        headers = self._headers
        self._head = RequestHead(
            headers=headers,
            path=headers.first_of(metadata.PATHS),
            method=headers.get(":method"),
            request_id=headers.get(metadata.REQUEST_ID) or self._make_id(),
            subset=self._subset,
            received_at=self._received_at,
            has_body=has_body,
            withheld=withheld,
            truncated=truncated,
        )
        self._state = _DECIDING
        return [RequestReady(self._head, self._body.whole())]

    def _awaits_decision(self) -> bool:
        if self._state is _DECIDING:
            return True
        if self.closed or self._state is _OVERTAKEN:
            return False
        raise RuntimeError(f"no request waits for an answer: {self!r}")

    # -- refusals

    def _refuse(self, refusal: Refusal) -> list[Event]:
        form = self._error_format or refusals.error_format_of(self._headers)
        self._answers.append(refusals.answer(refusal, form))
        self._body.clear()
        self._state = _REFUSED
        return [Refused(refusal)]

    # -- the response

    def _on_response_headers(self, message: Message) -> list[Event]:
        events = self._responding().headers(message, self._answers)
        if self._completed:
            return []
        return events + self._complete(aborted=False) if message.shown.end_of_stream else events

    def _on_response_body(self, message: Message) -> list[Event]:
        events = self._responding().body(message, self._answers)
        if self._completed:
            return []
        if message.shown.end_of_stream or message.shown.end_of_stream_without_message:
            return events + self._complete(aborted=False)
        return events

    def _on_response_trailers(self, message: Message) -> list[Event]:
        self._responding().trailers(self._answers)
        return self._complete(aborted=False)

    def _responding(self) -> Response:
        """The response; one that comes before the decision is the proxy's own."""
        if self._state is not _ROUTED:
            self._body.clear()
            self._headers, self._head, self._subset = NO_HEADERS, None, None
            self._state = _OVERTAKEN
        return self.response

    def _complete(self, *, aborted: bool) -> list[Event]:
        if self._completed:
            return []
        self._completed = True
        self.response.complete()
        return [Completed(aborted)]

    def __repr__(self) -> str:
        response = "complete" if self._completed else "started" if self.response.started else "awaited"
        modes = f"{self._modes.request.name}/{self._modes.response.name}"
        return f"<Conversation {self._state.name.lower()}, response {response}, bodies {modes}, {self._body!r}>"


def _held_by(subset: Sequence[str]) -> int:
    """Bytes of memory of a hint, as far as they count in the budget."""
    held = sum(map(getsizeof, subset))
    return held if held > _SMALL_SUBSET else 0


_HANDLERS: dict[str | None, Callable[[Conversation, Message], list[Event]]] = {
    "request_headers": Conversation._on_request_headers,
    "request_body": Conversation._on_request_body,
    "request_trailers": Conversation._on_request_trailers,
    "response_headers": Conversation._on_response_headers,
    "response_body": Conversation._on_response_body,
    "response_trailers": Conversation._on_response_trailers,
}
