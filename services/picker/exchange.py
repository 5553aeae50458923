"""One request through the picker: the conversation with the proxy, the decision, the charge.

The only place where the conversation, the pipeline and the load in flight meet. Whatever way a stream ends, its charge
is released exactly once.
"""

from collections.abc import Callable, Sequence

import structlog

from services.picker.admin.decisions import DecisionRing
from services.picker.admin.metrics import PickerMetrics
from services.picker.decision import Decision
from services.picker.extproc.conversation import Conversation
from services.picker.extproc.events import Completed, Event, Limits, Refused, RequestReady, ResponseStarted
from services.picker.extproc.messages import ProcessingRequest, ProcessingResponse
from services.picker.pipeline import Pipeline
from services.picker.requests.request import Content, Refusal, Request, Route, Unparsable
from services.picker.state.inflight import Charge
from services.picker.state.view import View

log = structlog.get_logger(__name__)


class Desk:
    """What all exchanges of a picker share. `pipeline` is swapped when the configuration changes."""

    def __init__(
        self,
        view: View,
        pipeline: Pipeline,
        ring: DecisionRing,
        metrics: PickerMetrics,
        *,
        limits: Limits,
        make_id: Callable[[], str],
        clock: Callable[[], float],
        log_decisions: bool = False,
    ) -> None:
        self.view = view
        self.pipeline = pipeline
        self.ring = ring
        self.metrics = metrics
        self.limits = limits
        self.make_id = make_id
        self.clock = clock
        self.log_decisions = log_decisions
        self.open = 0
        """Exchanges under way."""

    def exchange(self) -> "Exchange":
        return Exchange(self)

    def decide(self, ready: RequestReady, now: float) -> Decision | Refusal:
        """The decision on a request; a refusal when its body can't be read."""
        head = ready.head
        content = Content()
        if head.has_body and not head.truncated:
            try:
                content = self.pipeline.parsers.parse(head.path, head.headers, ready.body)
            except Unparsable as error:
                return Refusal(status=400, message=str(error))
        request = Request(
            id=head.request_id,
            headers=head.headers,
            path=head.path,
            content=content,
            body_size=len(ready.body),
            subset=head.subset,
            received_at=head.received_at,
        )
        decision = self.pipeline.director.decide(request, self.view, now)
        self.ring.add(decision)
        if self.log_decisions:
            log.info("request.decided", **decision.summary())
        return decision

    def __repr__(self) -> str:
        return f"<Desk {self.open} open, {self.pipeline!r}>"


class Exchange:
    """One ext_proc stream, which is one HTTP request. `receive` and `end` never raise on what a proxy can send."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._conversation = Conversation(desk.limits, desk.make_id)
        self._charge: Charge | None = None
        self._decision: Decision | None = None
        self._served = False
        self._started = desk.clock()
        desk.open += 1

    @property
    def closed(self) -> bool:
        """Whether the stream has been answered for good and is to be ended."""
        return self._conversation.closed

    def receive(self, message: ProcessingRequest) -> Sequence[ProcessingResponse]:
        """A message of the proxy; what to answer now, in order."""
        now = self._desk.clock()
        self._handle(self._conversation.receive(message, now), now)
        return self._conversation.responses()

    def end(self) -> None:
        """The stream is over, for whatever reason."""
        now = self._desk.clock()
        self._handle(self._conversation.end(now), now)

    def _handle(self, events: Sequence[Event], now: float) -> None:
        for event in events:
            match event:
                case RequestReady():
                    self._decide(event, now)
                case Refused(refusal=refusal):
                    self._desk.metrics.answered(refusal.status, self._desk.clock() - now)
                case ResponseStarted():
                    self._on_response(event)
                case Completed():
                    self._complete(now)

    def _decide(self, ready: RequestReady, now: float) -> None:
        desk = self._desk
        outcome = desk.decide(ready, now)
        if isinstance(outcome, Refusal):
            desk.metrics.answered(outcome.status, desk.clock() - now)
            self._conversation.refuse(outcome)
            return
        self._decision = outcome
        desk.metrics.decided(outcome, desk.clock() - now)
        if isinstance(outcome.outcome, Route):
            endpoint = outcome.layout.endpoints[outcome.picked[0]]
            self._charge = desk.view.in_flight.charge(endpoint.id, outcome.tokens)
            self._conversation.route(outcome.outcome)
        else:
            self._conversation.refuse(outcome.outcome)

    def _on_response(self, event: ResponseStarted) -> None:
        """The charge moves to the endpoint that really serves."""
        if self._charge is None or self._decision is None:
            return
        self._served = True
        if event.served is None:
            self._desk.metrics.served("unknown")
            return
        layout = self._desk.view.layout
        row = layout.row_of_authority(event.served)
        assert isinstance(self._decision.outcome, Route)
        destinations = self._decision.outcome.destinations
        if event.served == destinations[0]:
            self._desk.metrics.served("first choice")
        else:
            self._desk.metrics.served("fallback" if event.served in destinations else "other")
        if row is not None:
            self._charge.move(layout.endpoints[row].id)

    def _complete(self, now: float) -> None:
        desk = self._desk
        desk.open -= 1
        if self._charge is not None:
            self._charge.release()
            desk.metrics.completed(now - self._started)

    def __repr__(self) -> str:
        return f"<Exchange {self._conversation!r}, {self._charge!r}>"
