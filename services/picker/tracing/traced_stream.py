"""A request's stream that also keeps its span. Without `--tracing` this class isn't used, so traces cost nothing."""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from services.picker.decision import Decision
from services.picker.extproc.events import Completed, Event, Refused, RequestReady, ResponseStarted
from services.picker.flow_control.ticket import EVICTION
from services.picker.request import Route
from services.picker.request_handler import RequestHandler
from services.picker.request_stream import RequestStream
from services.picker.scheduling.response_plugins import ResponseHooks
from services.picker.tracing.provider import Tracing
from services.picker.tracing.request_span import RequestSpan


class TracedRequestStream(RequestStream):
    """A request's stream with a span. A stream that ends before its request is complete has none."""

    def __init__(self, handler: RequestHandler, tracing: Tracing) -> None:
        super().__init__(handler)
        self._tracing = tracing
        self._span: RequestSpan | None = None

    def evict(self) -> None:
        if self._span is not None:
            self._span.refused(EVICTION, self._handler.clock())
        super().evict()

    def _handle(self, events: Sequence[Event], now: float) -> None:
        self._begin(events, now)
        super()._handle(events, now)

    def _in_steps(self, events: Sequence[Event], now: float) -> Iterator[bytes]:
        self._begin(events, now)
        return super()._in_steps(events, now)

    def _begin(self, events: Sequence[Event], now: float) -> None:
        """Begin the span with the request, which is complete or refused."""
        for event in events:
            if self._span is not None:
                return
            if isinstance(event, RequestReady):
                self._span = self._tracing.start_span(event.head.headers, event.head.received_at)
            elif isinstance(event, Refused):
                self._span = self._tracing.start_span(self._conversation.headers, self._started)
                self._span.refused(event.refusal, now)

    def _decided(self, decision: Decision, now: float) -> None:
        if self._span is not None:
            self._span.decided(decision, self._handler.clock())
        super()._decided(decision, now)

    def _route(self, route: Route, hooks: ResponseHooks | None) -> None:
        if self._span is not None and (headers := self._span.headers):
            route = replace(route, set_headers={**route.set_headers, **headers})
        super()._route(route, hooks)

    def _on_response(self, event: ResponseStarted) -> None:
        super()._on_response(event)
        if self._span is not None and self._routed is not None:
            self._span.responded(self._routed.progress, event.served, self._handler.clock())

    def _on_response_body(self, now: float) -> None:
        super()._on_response_body(now)
        if self._span is not None:
            self._span.body_began(now)

    def _complete(self, event: Completed, now: float) -> None:
        super()._complete(event, now)
        span, self._span = self._span, None
        if span is not None:
            span.end(now, self._usage, aborted=event.aborted)
