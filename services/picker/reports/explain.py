"""Answers about decisions: those that were made, and the one that would be made now."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from services.picker import metadata
from services.picker.decision import Decision
from services.picker.extproc.events import RequestHead, RequestReady
from services.picker.reports.reasons import changes, reasons
from services.picker.reports.reports import Parts
from services.picker.request import Headers, Route
from services.picker.scheduling.interfaces import Producer
from shared.bus.query_messages import DecisionQuery, DecisionsQuery, ExplainQuery
from shared.bus.responder import Document, QueryRefused
from shared.service.admin import encoded
from shared.service.pages import json_sections, json_tree


def in_full(decision: Decision) -> Document:
    """The decision with its reasons."""
    explanation = decision.explanation()
    yield b""
    why = reasons(decision)
    yield b""
    yield from json_tree({**explanation, "why": why, "changes": changes(decision)}, encoded)


def decisions(parts: Parts, query: DecisionsQuery) -> Document:
    """The last decisions, or those that are new."""
    total = parts.ring.total
    newest = parts.ring.newest(max(0, min(query.limit, total - query.after)))
    items = (in_full(decision) if query.full else decision.summary() for decision in newest)
    return json_sections({"total": total}, {"decisions": items}, encoded)


def decision(parts: Parts, query: DecisionQuery) -> Document:
    """Those on a request."""
    found = parts.ring.of_request(query.request_id, query.limit)
    return json_sections({}, {"decisions": map(in_full, found)}, encoded)


def explain(parts: Parts, query: ExplainQuery) -> Document:
    """The decision on a request that isn't sent. Raises QueryRefused if the request is too large."""
    handler, now = parts.handler, parts.handler.clock()
    limits = handler.limits
    if len(query.body) > limits.request_body:
        raise QueryRefused(f"the body has {len(query.body)} bytes; the limit is {limits.request_body}")
    return _explained(parts, query, now)


def _explained(parts: Parts, query: ExplainQuery, now: float) -> Iterator[bytes]:
    handler = parts.handler
    headers = Headers([(":method", query.method), (":path", query.path), *query.headers])
    head = RequestHead(
        headers=headers,
        path=query.path,
        method=query.method,
        request_id=headers.get(metadata.REQUEST_ID) or handler.make_id(),
        subset=None if query.subset is None else tuple(query.subset),
        received_at=now,
        has_body=bool(query.body),
    )
    prepared = handler.prepare(RequestReady(head, query.body), now)
    yield b""
    queues = parts.flow.controller is not None
    found, trials = handler.pipeline.director.rehearse(prepared, parts.view, now, queues=queues)
    yield b""
    possible: Sequence[int] = ()
    for known in trials:
        possible = known
        yield b""
    why = reasons(found, possible)
    yield b""
    changed = changes(found)
    yield b""
    document = {
        **found.to_keep().explanation(),
        "state": "rehearsed" if isinstance(found.outcome, Route) else "refused",
        "why": why,
        "changes": changed,
        "possible": [found.layout.endpoints[row].id for row in possible],
        "flow_control": _flow(parts, prepared.priority) if queues and prepared.refusal is None else None,
        "left_out": _left_out(prepared.producers),
    }
    yield from json_tree(document, encoded)


def _flow(parts: Parts, priority: int) -> dict[str, Any] | None:
    """What the request would find before it."""
    state = parts.flow.state()
    if state is None:
        return None
    bands = [band for band in state["bands"] if band["priority"] >= priority]
    return {
        "saturation": state["saturation"],
        "band": priority,
        "ahead": sum(band["requests"] for band in bands),
        "ahead_at_peers": sum(band["requests_at_peers"] for band in bands),
    }


def _left_out(producers: tuple[Producer, ...]) -> list[str]:
    """What a rehearsal doesn't do and a request does, where it matters for its outcome."""
    return [f"{producer.name} prepares something for each request, and didn't" for producer in islice(producers, 20)]
