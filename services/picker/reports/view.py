"""What a picker knows: facts, attributes, load in flight and prefix placements; and all about one endpoint."""

from collections import Counter
from collections.abc import Iterator
from math import inf
from statistics import median
from typing import Any

import numpy as np

from services.picker.decision import Decision
from services.picker.reports.reasons import decisive
from services.picker.reports.reports import Parts, stale_after
from services.picker.request import Refusal, Route
from shared.bus.columns import server_hash
from shared.bus.query_messages import ViewQuery
from shared.bus.responder import Document
from shared.model import Endpoint
from shared.service.admin import encoded
from shared.service.pages import json_object
from shared.service.status import hexadecimal
from shared.service.view import one_endpoint, view_document

LAST = 200
"""The latest decisions that say how often an endpoint is picked, and how long requests take."""


def view(parts: Parts, pool: str, id: str, query: ViewQuery) -> Document:
    """The document; `id` is the picker's."""
    if query.endpoint:
        return one_endpoint(parts.replica, query.endpoint, lambda endpoint: _about(parts, endpoint))
    lists = {"attributes": _attributes(parts), "load": _load(parts, id), "prefixes": _prefixes(parts)}
    return view_document("picker", pool, parts.replica, lists)


def _attributes(parts: Parts) -> Iterator[dict[str, Any]]:
    view = parts.view
    for id in sorted(view.layout.index):
        row = view.layout.index.get(id)
        if row is not None:
            known = view.columns.of(row, 0.0)
            yield {"endpoint": id, "values": {name: known[name]["value"] for name in sorted(known)}}


def _load(parts: Parts, id: str) -> Iterator[Document]:
    """Each picker's table, this one's too."""
    in_flight = parts.view.in_flight
    for picker in sorted({*in_flight.peers(), id}):
        yield _table(picker, in_flight.table(None if picker == id else picker))


def _table(picker: str, rows: Iterator[tuple[str, tuple[int, int]]]) -> Document:
    yield b'{"picker":' + encoded(picker) + b',"endpoints":'
    yield from json_object(rows, encoded)
    yield b"}"


def _prefixes(parts: Parts) -> Iterator[dict[str, Any]]:
    """Each endpoint's blocks, as their number and the sum of their hashes."""
    view = parts.view
    for id in sorted(view.layout.index):
        row = view.layout.index.get(id)
        if row is None:
            continue
        blocks, _ = view.prefixes.states(server_hash(view.layout.endpoints[row]))
        if blocks:
            digest = int(np.array(blocks, np.uint64).sum(dtype=np.uint64))
            yield {"endpoint": id, "blocks": len(blocks), "digest": hexadecimal(digest)}


def _about(parts: Parts, endpoint: Endpoint) -> dict[str, Any]:
    """All about one endpoint."""
    view, now = parts.view, parts.handler.clock()
    row = view.layout.index.get(endpoint.id)
    if row is None:
        return {"id": endpoint.id}
    after, policy = stale_after(parts), parts.handler.pipeline.config.stale_metrics.policy
    attributes = view.columns.of(row, now)
    read = {key.wire: list(readers) for key, readers in parts.handler.pipeline.reads.items()}
    own, decisions = view.in_flight.own().get(endpoint.id, (0, 0)), parts.ring.newest(LAST)
    return {
        "id": endpoint.id,
        "unhealthy": view.health.unhealthy.get(row),
        "draining": endpoint.draining,
        "attributes": {
            name: {**value, "fresh": value["age"] <= after, "read_by": read.get(name, [])}
            for name, value in sorted(attributes.items())
        },
        "missing": sorted(read.keys() - attributes.keys()),
        "stale_after": after,
        "stale_policy": policy,
        "requests": int(view.in_flight.requests[row]),
        "own_requests": own[0],
        "tokens": int(view.in_flight.tokens[row]),
        "prefix_blocks": view.prefixes.blocks_of(endpoint.id),
        "endpoints": len(view.layout),
        "recently": _endpoint_counts(decisions, endpoint.id),
        "durations": durations(decisions, endpoint.id, now),
    }


def _endpoint_counts(decisions: list[Decision], id: str) -> dict[str, Any]:
    """How an endpoint fared in these decisions: how often it was a candidate, first choice, or removed, by filter; and
    the scorers by which it fell behind the first choice."""
    candidate = chosen = refused = 0
    filtered: Counter[str] = Counter()
    behind: Counter[str] = Counter()
    for decision in decisions:
        refused += isinstance(decision.outcome, Refusal)
        row = decision.layout.index.get(id)
        run = decision.runs.get(decision.primary)
        if row is None or run is None or not run.picked or not np.any(run.candidates == row):
            continue
        candidate += 1
        if run.picked[0] == row:
            chosen += 1
            continue
        if not np.any(run.rows == row):
            filtered[next(step.plugin for step in run.filters if not np.any(step.kept == row))] += 1
            continue
        behind[decisive(run, run.picked[0], row) or "chance"] += 1
    return {
        "decisions": len(decisions),
        "refused": refused,
        "candidate": candidate,
        "chosen": chosen,
        "filtered": dict(filtered),
        "behind": dict(behind.most_common()),
    }


def durations(decisions: list[Decision], id: str, now: float) -> dict[str, Any]:
    """How many requests an endpoint and the others served, and the median of their seconds, None without any. A request
    that is under way counts as soon as it takes longer than those of the others."""
    here: list[float] = []
    elsewhere: list[float] = []
    under_way: list[float] = []
    for decision in decisions:
        progress = decision.progress
        if progress.aborted or not isinstance(decision.outcome, Route):
            continue
        is_here = (progress.endpoint or decision.layout.endpoints[decision.picked[0]].id) == id
        if progress.seconds is not None:
            (here if is_here else elsewhere).append(progress.seconds)
        elif is_here:
            under_way.append(now - decision.monotonic)
    usual = median(elsewhere) if elsewhere else inf
    here += [seconds for seconds in under_way if seconds > usual]
    return {
        "requests": len(here),
        "seconds": median(here) if here else None,
        "requests_elsewhere": len(elsewhere),
        "seconds_elsewhere": median(elsewhere) if elsewhere else None,
    }
