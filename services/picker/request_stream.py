"""One ext_proc stream, which is one HTTP request, from its first message to its end.

However a stream ends, its charge is released exactly once.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from services.picker.admin.request_metrics import OpenRequest
from services.picker.body_buffer import BodyBuffer, MemoryBudget
from services.picker.decision import Decision, Progress, RoutedRequest
from services.picker.director import Prepared
from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import (
    Completed,
    Event,
    Refused,
    RequestReady,
    ResponseBodyStarted,
    ResponseStarted,
)
from services.picker.flow_control.ticket import EVICTION
from services.picker.request import Route
from services.picker.request_handler import RequestHandler
from services.picker.request_wait import RequestWait
from services.picker.responses.reader import ResponseReader
from services.picker.responses.usage import NOTHING, Usage
from services.picker.scheduling.response_plugins import ResponseHooks
from services.picker.state.health import UNAVAILABLE, is_failure
from services.picker.state.inflight import Charge
from shared.model import Endpoint

HEAVY = 2**20
"""Bytes of a request's body from which on the decision is made in steps, so that other streams get turns in between."""


def _reader(route: Route, api: str, limit: int, budget: MemoryBudget) -> ResponseReader | None:
    """The reader of the response. It counts tokens, and puts the client's model name back if it was rewritten. None for
    an unknown API without a rewrite."""
    renames = route.target_model is not None and route.client_model != ""
    if not renames and not api:
        return None
    return ResponseReader(route.target_model or "", route.client_model, limit, api=api, budget=budget)


def _withdraw(progress: Progress) -> None:
    """No endpoint served the request: producers forget where they placed it."""
    placements, progress.placements = progress.placements, ()
    for placement in placements:
        placement(None)


def _always() -> bool:
    """A plugin reads the body of every response."""
    return True


def _no_wake() -> None:
    """Nobody waits for the answers yet."""


class RequestStream:
    """One ext_proc stream, which is one HTTP request: received, prepared, scheduled, routed or refused, completed.

    `end`, and `receive` of a message, never raise.
    """

    def __init__(self, handler: RequestHandler) -> None:
        self._handler = handler
        self._conversation = Conversation(handler.limits, handler.make_id, budget=handler.budget)
        self._waiting: BodyBuffer | None = None
        """A large message that waits for its turn."""
        self._wait = RequestWait(handler, self._conversation)
        self._evictable = self._evicted = False
        self.wake: Callable[[], None] = _no_wake
        """Called when the request has waited enough, and `outbox` schedules it; and when it is evicted."""
        self._charge: Charge | None = None
        self._routed: RoutedRequest | None = None
        self._reader: ResponseReader | None = None
        self._counted: OpenRequest | None = None
        self._hooks: ResponseHooks | None = None
        """Set where a plugin wants to know of every chunk of the response."""
        self._started = handler.clock()
        handler.open += 1

    @property
    def closed(self) -> bool:
        """Whether the stream has its last answer and has to be ended."""
        return self._conversation.closed

    @property
    def waiting(self) -> bool:
        """Whether there may be answers without a further message: see `wake`."""
        return self._wait.prepared is not None or self._evictable

    @property
    def ready(self) -> bool:
        """Whether `outbox` has answers."""
        wait = self._wait
        return self._evicted or wait.over or (wait.prepared is not None and self._conversation.has_answers)

    @property
    def idle(self) -> bool:
        """Whether the stream only waits for the next message: it is in none of the other states."""
        wait = self._wait
        if self._evictable or self._evicted or wait.prepared is not None or wait.handed_back:
            return False
        return not self._conversation.closed

    @property
    def held(self) -> int:
        """Bytes of the request that are kept."""
        return self._conversation.held + (0 if self._waiting is None else self._waiting.held)

    @property
    def incomplete(self) -> bool:
        """Whether the request has not come as a whole."""
        return self._conversation.incomplete

    @property
    def handed_back(self) -> str:
        """Why the proxy has to ask another picker; empty if it hasn't. Set only before any answer."""
        return self._wait.handed_back

    def outbox(self) -> Iterable[bytes]:
        """The answers without a further message. A request that has waited enough is scheduled, a large one in steps,
        as `receive` does."""
        self._evicted = False
        prepared = self._wait.take() if self._wait.over else None
        if prepared is None:
            return self._conversation.responses()
        now = self._handler.clock()
        if self._conversation.body_size > HEAVY:
            return chain(self._schedule_in_steps(prepared, now), self._responses())
        self._decided(self._handler.schedule(prepared, now), now)
        self._conversation.sent()
        return self._conversation.responses()

    def receive(self, data: bytes) -> Iterable[bytes]:
        """Takes a message of the proxy and returns the answers, in order. Raises DecodeError for invalid bytes.

        An empty answer isn't sent. It lets other streams have a turn before the next answer is made.
        """
        if len(data) <= HEAVY:
            return self._take(data)
        if self._waiting is None:
            self._waiting = BodyBuffer(self._handler.budget)
        if not self._waiting.has_room(len(data)) and (events := self._conversation.no_room()):
            self._handle(events, self._handler.clock())
            return self._conversation.responses()
        self._waiting.add(data)
        return self._in_turn(self._waiting)

    def _in_turn(self, waiting: BodyBuffer) -> Iterator[bytes]:
        """The answers to a large message: even reading it takes a turn."""
        yield b""
        yield from self._take(waiting.take())

    def _take(self, data: bytes) -> Iterable[bytes]:
        conversation = self._conversation
        relayed = conversation.response.relay(data)
        if relayed is not None:
            if self._hooks is not None:
                self._on_chunk(self._hooks)
            return relayed
        now = self._handler.clock()
        received = conversation.response.received
        events = conversation.receive(data, now)
        if self._wait.prepared is not None and conversation.overtaken:
            self._wait.stop(now)
        if events:
            if conversation.body_size > HEAVY:
                return self._in_steps(events, now)
            self._handle(events, now)
            conversation.sent()
        elif self._hooks is not None and conversation.response.received > received:
            self._on_chunk(self._hooks)
        return conversation.responses()

    def _in_steps(self, events: Sequence[Event], now: float) -> Iterator[bytes]:
        for event in events:
            yield b""
            if isinstance(event, RequestReady):
                yield from self._decide_in_steps(event, now)
            else:
                self._handle((event,), now)
                yield b""
        yield from self._responses()

    def _decide_in_steps(self, event: RequestReady, now: float) -> Iterator[bytes]:
        """Ends, and so lets go of the prompt, before the answers, which may be read slowly."""
        prepared = self._handler.prepare(event, now)
        yield b""
        if not self._wait.begin(prepared, now, self):
            self._wait.reserve()
            yield from self._schedule_in_steps(prepared, now)

    def _responses(self) -> Iterator[bytes]:
        yield from self._conversation.responses()
        self._conversation.sent()

    def _schedule_in_steps(self, prepared: Prepared, now: float) -> Iterator[bytes]:
        decision = self._handler.schedule(prepared, now)
        if isinstance(decision.outcome, Route):
            # plugins know of it, so they are called even if the stream ends here
            self._routed = self._routed_by(decision)
            yield b""
        self._decided(decision, now)
        yield b""

    def end(self) -> None:
        """The stream has ended, for whatever reason."""
        if self._waiting is not None:
            self._waiting.clear()
        now = self._handler.clock()
        self._handle(self._conversation.end(now), now)

    def _handle(self, events: Sequence[Event], now: float) -> None:
        for event in events:
            if isinstance(event, RequestReady):
                prepared = self._handler.prepare(event, now)
                if not self._wait.begin(prepared, now, self):
                    self._decided(self._handler.schedule(prepared, now), now)
            elif isinstance(event, ResponseStarted):
                self._handler.observing += self._conversation.response.requested_to_observe
                self._on_response(event)
            elif isinstance(event, Completed):
                self._complete(event, now)
            elif isinstance(event, ResponseBodyStarted):
                self._on_response_body(now)
            elif isinstance(event, Refused):
                self._handler.metrics.refused(event.refusal.status, self._handler.clock() - now)

    def evict(self) -> None:
        """The running request ends for one of a higher priority."""
        self._evicted = True
        self._handle(self._conversation.evict(EVICTION), self._handler.clock())
        self.wake()

    def _decided(self, decision: Decision, now: float) -> None:
        handler, outcome, routed = self._handler, decision.outcome, None
        if isinstance(outcome, Route):
            routed = self._routed = self._routed or self._routed_by(decision)
            self._charge = self._charged(routed.picked[0].id, decision)
            self._reader = _reader(
                outcome, decision.request.api, handler.limits.response_object, handler.response_budget
            )
            self._route(outcome, decision.progress.hooks)
        else:
            self._conversation.refuse(outcome)
            summary = decision.summary() if handler.log_decisions else None
            handler.ended(decision.progress, summary, handler.clock() - self._started)
        ticket = self._wait.ticket
        if ticket is not None:
            if ticket.pending:
                ticket.charged()
            evictor = ticket.gate.evictor
            if evictor is not None and self._charge is not None:
                self._evictable = ticket.runs(evictor, self._charge, now)
                if self._evictable:
                    self._conversation.may_be_evicted()
        self._counted = handler.metrics.decided(decision, routed, handler.clock() - now)

    def _routed_by(self, decision: Decision) -> RoutedRequest:
        return decision.routed(with_summary=self._handler.log_decisions)

    def _route(self, route: Route, hooks: ResponseHooks | None) -> None:
        if hooks is None:
            self._conversation.route(route, self._reader, self._handler.observes)
            return
        observes = _always if hooks.reads_body else self._handler.observes
        self._conversation.route(route, self._reader, observes, report_headers=hooks.reads_headers)
        if hooks.reads_chunks:
            self._hooks = hooks

    def _charged(self, endpoint_id: str, decision: Decision) -> Charge:
        in_flight, endpoints = self._handler.view.in_flight, decision.layout.endpoints
        if not decision.roles:
            return in_flight.charge(endpoint_id, decision.tokens)
        others = [(endpoints[role.row].id, role.tokens, role.until_response) for role in decision.roles.values()]
        return in_flight.charge_all(endpoint_id, decision.tokens, others)

    def _on_response(self, event: ResponseStarted) -> None:
        """Moves the charge and the prompt's prefix to the endpoint that serves. After an error, also a client's, no
        endpoint has computed the prompt, so its prefix is withdrawn."""
        routed, view = self._routed, self._handler.view
        if self._charge is None or routed is None:
            return
        if self._counted is not None:
            self._counted.answered(event.status)
        self._charge.response_began()
        destinations, progress, served = routed.destinations, routed.progress, event.served
        status = progress.status = event.status
        endpoint: Endpoint | None = None
        skipped: int | None = None
        if (status or 0) >= 400:
            _withdraw(progress)
        placements, progress.placements = progress.placements, ()
        if served is None:
            progress.served_by = "unknown"
        elif served == destinations[0]:
            endpoint = routed.picked[0]
            progress.served_by, progress.endpoint = "first choice", endpoint.id
        else:
            skipped = destinations.index(served) if served in destinations else 0
            progress.served_by = "fallback" if skipped else "other"
            row = view.layout.row_of_authority(served)
            if row is not None:
                endpoint = view.layout.endpoints[row]
            elif skipped:  # it has left since the pick; another address belongs to another proxy
                endpoint = routed.picked[skipped]
            progress.endpoint = served if endpoint is None else endpoint.id
            if endpoint is not None:
                self._charge.move(endpoint.id)
                self._wait.moved()
                for placement in placements:
                    placement(endpoint.id)
        if status is not None and (is_failure(status) or view.health.listens):
            view.health.answered(endpoint, status, self._handler.clock(), routed.helpers)
        if skipped is not None and endpoint is not None:
            self._replaced(routed, skipped, status or 0)
        self._handler.metrics.served(progress.served_by)
        if progress.hooks is not None:
            seconds = self._handler.clock() - self._started
            wanted = progress.hooks.headers(seconds, progress.status, progress.endpoint, served, event.headers)
            if wanted:
                self._conversation.set_response_headers(wanted)

    def _replaced(self, routed: RoutedRequest, skipped: int, status: int) -> None:
        """Another endpoint answered in place of so many destinations, or of all, if it is none of them (0). If it
        failed too, that may be due to the request, or to the helpers, which all of them were told to use."""
        health, now = self._handler.view.health, self._handler.clock()
        if not is_failure(status):
            for tried in routed.picked[:skipped]:
                health.suspect(tried, now)
            return
        for tried in routed.picked[: skipped or None] if routed.helpers else routed.picked[:skipped]:
            health.answered(tried, UNAVAILABLE, now, routed.helpers)

    def _on_response_body(self, now: float) -> None:
        """The prompt has been computed: its tokens stop to count as load. If the picker requested the body, they count
        until the end: observing a response mustn't change where requests go."""
        routed, counted = self._routed, self._counted
        if routed is None:
            return
        if counted is not None and routed.request.stream and (counted.status or 0) < 400:  # an error has no tokens
            counted.first_token(now - self._started)
        if self._charge is not None and not (routed.tokens_until_end or self._conversation.response.requested):
            self._charge.release_tokens()
        if routed.progress.hooks is not None:
            routed.progress.hooks.body_began(now - self._started, self._usage or NOTHING)

    def _on_chunk(self, hooks: ResponseHooks) -> None:
        hooks.chunk(self._handler.clock() - self._started, self._usage or NOTHING)

    @property
    def _usage(self) -> Usage | None:
        """What the response has reported; None if nobody reads it."""
        return None if self._reader is None else self._reader.usage

    def _complete(self, event: Completed, now: float) -> None:
        handler, response, routed = self._handler, self._conversation.response, self._routed
        self._hooks = None
        handler.open -= 1
        handler.observing -= response.requested_to_observe
        seconds, usage = now - self._started, self._usage
        if self._charge is not None:
            self._charge.release()
            if not event.aborted:
                handler.metrics.completed(seconds)
        self._evictable = False
        self._wait.stop(now, None if routed is None else usage, response.received)
        if routed is not None:
            progress = routed.progress
            if event.aborted and not response.received:  # no response came; its headers empty the placements
                _withdraw(progress)
            metadata = handler.ended(progress, routed.summary, seconds, usage or NOTHING, aborted=event.aborted)
            if metadata:
                self._conversation.set_response_metadata(metadata)
        if self._counted is not None:
            if self._counted.status is not None:
                handler.metrics.response(readable=response.readable, observed=response.observed)
            self._counted.completed(seconds, usage, response.received, aborted=event.aborted)

    def __repr__(self) -> str:
        return f"<RequestStream {self._conversation!r}, {self._charge!r}>"
