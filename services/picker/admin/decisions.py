"""A ring of the last decisions, which admin pages explain."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from services.picker.admin.schemas import Decisions, DecisionsOnRequest
from services.picker.decision import SHOWN, Decision
from services.picker.state.layout import Layout
from shared.service.admin import REFUSED, InTurn, as_json_pieces, encoded
from shared.service.pages import json_sections, json_tree

IN_FULL = 4
"""Requests whose decisions are told in full at once: until a client has read them, they stay, with all their arrays."""


class DecisionRing:
    """The newest decisions. Request ids come from clients: several decisions can have the same.

    A decision keeps its layout, which has every endpoint. The ring keeps at most `layouts` of them: with the oldest
    layout its decisions go.
    """

    def __init__(self, size: int, layouts: int = 16) -> None:
        self._ring: deque[Decision] = deque()
        self._size = size
        self._max_layouts = layouts
        self._layouts: deque[Layout] = deque()
        """Those of the decisions, in their order."""
        self.total = 0

    def add(self, decision: Decision) -> None:
        self.total += 1
        if not self._size:
            return
        ring, layouts = self._ring, self._layouts
        ring.append(decision)
        if not layouts or layouts[-1] is not decision.layout:
            layouts.append(decision.layout)
        while len(ring) > self._size or len(layouts) > self._max_layouts:
            ring.popleft()
            while layouts[0] is not ring[0].layout:
                layouts.popleft()

    def newest(self, limit: int) -> list[Decision]:
        """Up to `limit` decisions, the newest first."""
        return list(islice(reversed(self._ring), limit))

    def of_request(self, request_id: str, limit: int) -> list[Decision]:
        """Up to `limit` decisions on a request id, the newest first."""
        kept = request_id[:SHOWN]
        return list(islice((decision for decision in reversed(self._ring) if decision.request.id == kept), limit))

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"<DecisionRing {len(self._ring)} of {self.total}>"


def ring_routes(ring: DecisionRing) -> APIRouter:
    """The routes of one picker."""
    in_full = asyncio.Semaphore(IN_FULL)

    async def newest(limit: int) -> Response:
        decisions = (decision.summary() for decision in ring.newest(limit))
        return as_json_pieces(json_sections({"total": ring.total}, {"decisions": decisions}, encoded))

    async def of_request(request_id: str, limit: int) -> Response:
        return InTurn(in_full, partial(explained, request_id, limit))

    async def explained(request_id: str, limit: int) -> Response:
        found = ring.of_request(request_id, limit)
        if not found:
            raise HTTPException(404, f"no decision on a request {request_id!r} among the last {len(ring)}")
        decisions = (json_tree(decision.explanation(), encoded) for decision in found)
        return as_json_pieces(json_sections({}, {"decisions": decisions}, encoded))

    return decision_routes(newest, of_request)


def decision_routes(
    newest: Callable[[int], Awaitable[Response]], of_request: Callable[[str, int], Awaitable[Response]]
) -> APIRouter:
    """The last decisions, at most so many, and those on a request id, which raise HTTPException if there is none."""
    router = APIRouter(responses=REFUSED)

    @router.get(
        "/debug/decisions",
        summary="The last decisions, the newest first, with a summary of each.",
        response_model=Decisions,
    )
    async def decisions(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
        return await newest(limit)

    @router.get(
        "/debug/decisions/{request_id:path}",
        summary="Decisions on a request id in full: what each filter removed, and every score with its weight.",
        response_model=DecisionsOnRequest,
    )
    async def decision(request_id: str, limit: Annotated[int, Query(ge=1, le=100)] = 10) -> Response:
        return await of_request(request_id, limit)

    return router
