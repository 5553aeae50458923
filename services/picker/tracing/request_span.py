"""One request as a span: its attributes, and its phases and plugins as events.

Nearly everything is read from the decision once that is made, so the request's own path does next to nothing for it.
Texts are those that decisions keep, which are short and hold no prompt.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, format_span_id, format_trace_id
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.picker.decision import SHOWN, Decision, Progress
from services.picker.request import Headers, Refusal, Route
from services.picker.responses.usage import Usage
from services.picker.scheduling.record import ProfileRun
from shared.model import split_host_port

NAME = "gateway.request"
"""The Go original's name for it."""
TRACEPARENT = "traceparent"
MAX_CONTEXT = 512
"""Characters of a client's `tracestate`, and of its `traceparent`, beyond which it counts as none: those that W3C asks
everyone to hand on (https://www.w3.org/TR/trace-context/#tracestate-limits)."""
METHODS = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"})
OTHER_METHOD = "_OTHER"
"""OpenTelemetry's name of a method that isn't one of these."""
OPERATIONS = {"messages": "chat", "responses": "chat", "completions": "text_completion", "generate": "text_completion"}
"""OpenTelemetry's names of what an API does, where they differ from the API's."""
_SERVER_ERROR = 500
_PROPAGATOR = TraceContextTextMapPropagator()

Values = Mapping[str, Any]


class _HeadersGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        values = carrier.all(key)
        if key == TRACEPARENT and len(values) > 1:
            return None  # W3C: several are none
        if sum(map(len, values)) > MAX_CONTEXT:
            return None
        return [*values] or None

    def keys(self, carrier: Headers) -> list[str]:
        return [*carrier.names()]


_GETTER = _HeadersGetter()


class RequestSpan:
    """The span of one request, from its first message to its end. `recording` says whether it is sampled; if it isn't,
    it only has a context to hand on."""

    def __init__(self, tracer: Tracer, headers: Headers, received_at: float, offset: float) -> None:
        """`offset` is what makes unix seconds of the clock's."""
        self._offset = offset
        context = _PROPAGATOR.extract(headers, getter=_GETTER)
        self._span = tracer.start_span(NAME, context, SpanKind.SERVER, start_time=self._time(received_at))
        self.recording = self._span.is_recording()
        self._received_at = received_at
        self._ends_at: float | None = None
        if self.recording:
            method = headers.get(":method")
            known = method in METHODS
            self._set(
                {
                    "http.request.method": method if known else OTHER_METHOD,
                    "http.request.method_original": None if known else method[:SHOWN],
                    "url.path": headers.get(":path").partition("?")[0][:SHOWN],
                    "gen_ai.request.id": headers.get("x-request-id")[:SHOWN],
                }
            )

    @property
    def headers(self) -> Mapping[str, str]:
        """What the model server gets, so that its spans are children of this one."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return {}
        ids = f"{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}"
        return {TRACEPARENT: f"00-{ids}-{context.trace_flags:02x}"}

    def refused(self, refusal: Refusal, now: float) -> None:
        """The request is answered by the picker."""
        if not self.recording:
            return
        self._ends_at = now
        self._answered(refusal.status)
        self._set({"pointsman.refusal.reason": refusal.reason, "pointsman.refusal.kind": refusal.kind})

    def decided(self, decision: Decision, now: float) -> None:
        """Where the request goes, or why it is refused."""
        if not self.recording:
            return
        request = decision.request
        self._set(
            {
                "gen_ai.operation.name": OPERATIONS.get(request.api, request.api),
                "gen_ai.request.model": request.model,
                "gen_ai.request.id": request.id,
                "gen_ai.request.stream": request.stream or None,
                "http.request.body.size": request.body_bytes,
                "pointsman.configuration": decision.configuration,
                "pointsman.target_model": decision.target_model,
                "pointsman.rewrite": decision.rewrite,
                "pointsman.objective": decision.objective,
                "pointsman.priority": decision.priority,
                "pointsman.stages": decision.stages,
            }
        )
        scheduled, complete = decision.monotonic, decision.monotonic - decision.waited
        self._event("prepare", complete, {"prompt.bytes": request.prompt_bytes})
        queued = decision.queued
        if queued is not None:
            values = {
                "flow": queued.flow,
                "band": queued.band,
                "ahead": queued.ahead,
                "seconds": queued.seconds,
                "released_by": queued.released_by,
            }
            self._event("admit", scheduled, values)
        ended = scheduled + decision.seconds
        candidates = None if decision.candidates is None else len(decision.candidates)
        self._event("schedule", scheduled, {"candidates": candidates, "seconds": decision.seconds})
        for run in decision.runs.values():
            self._ran(run, decision, ended)
        for failure in decision.failures:
            self._event("plugin_failure", ended, {"plugin": failure.plugin, "role": failure.role})
        outcome = decision.outcome
        if isinstance(outcome, Route):
            self._serves(outcome.destinations[0])
        else:
            self.refused(outcome, now)

    def responded(self, progress: Progress, served: str | None, now: float) -> None:
        """The response's headers have come, from the endpoint `served` if the proxy reports it."""
        if not self.recording:
            return
        if served is not None:
            self._serves(served)
        if progress.status is not None:
            self._answered(progress.status)
        self._set({"pointsman.served_by": progress.served_by, "pointsman.endpoint": progress.endpoint})
        self._event("respond", now, {"served_by": progress.served_by})

    def body_began(self, now: float) -> None:
        """The first piece of the response's body has come."""
        if self.recording:
            self._set({"gen_ai.response.time_to_first_chunk": now - self._received_at})
            self._event("first_chunk", now, {})

    def end(self, now: float, usage: Usage | None, *, aborted: bool) -> None:
        """The request is over. Called once."""
        if self.recording:
            tokens = usage or Usage()
            self._set(
                {
                    "gen_ai.usage.input_tokens": tokens.prompt,
                    "gen_ai.usage.output_tokens": tokens.completion,
                    "gen_ai.usage.cache_read.input_tokens": tokens.cached,
                    "pointsman.aborted": aborted or None,
                }
            )
        self._span.end(self._time(now if self._ends_at is None else self._ends_at))

    def _ran(self, run: ProfileRun, decision: Decision, at: float) -> None:
        """The plugins of one profile: what each filter kept, what each scorer gave the first choice, who was picked."""
        profile = run.profile
        for step in run.filters:
            self._event("filter", at, {"profile": profile, "plugin": step.plugin, "kept": len(step.kept)})
        first = np.flatnonzero(run.rows == (run.picked[0] if run.picked else -1))
        for scorer in run.scores:
            score = float(scorer.scores[first[0]]) if len(first) else None
            values = {"profile": profile, "plugin": scorer.plugin, "weight": scorer.weight, "score": score}
            self._event("scorer", at, values)
        picked = [decision.layout.endpoints[row].id for row in run.picked]
        self._event("picker", at, {"profile": profile, "plugin": run.picker, "picked": picked})

    def _answered(self, status: int) -> None:
        self._set({"http.response.status_code": status})
        if status >= _SERVER_ERROR:
            self._set({"error.type": str(status)})
            self._span.set_status(Status(StatusCode.ERROR))

    def _serves(self, authority: str) -> None:
        try:
            address, port = split_host_port(authority)
        except ValueError:
            return  # a proxy may say anything
        self._set({"server.address": address, "server.port": port})

    def _set(self, values: Values) -> None:
        self._span.set_attributes({key: value for key, value in values.items() if value not in (None, "")})

    def _event(self, name: str, at: float, values: Values) -> None:
        found = {f"pointsman.{key}": value for key, value in values.items() if value not in (None, "")}
        self._span.add_event(f"pointsman.{name}", found, self._time(at))

    def _time(self, at: float) -> int:
        """Unix nanoseconds of a time of the clock."""
        return int((at + self._offset) * 1e9)

    def __repr__(self) -> str:
        return f"<RequestSpan {self.headers.get(TRACEPARENT)}, {'recording' if self.recording else 'not sampled'}>"
