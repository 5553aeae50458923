"""The last decisions, kept so that each can be explained: a bounded ring, and its admin routes."""

from collections import deque
from itertools import islice
from typing import Annotated, Any

from fastapi import FastAPI, Query
from fastapi.responses import JSONResponse

from services.picker.decision import SHOWN, Decision


class DecisionRing:
    """The newest decisions. Request ids come from clients: several decisions can have the same."""

    def __init__(self, size: int) -> None:
        self._ring: deque[Decision] = deque(maxlen=size)
        self.total = 0

    def add(self, decision: Decision) -> None:
        self._ring.append(decision)
        self.total += 1

    def newest(self, limit: int) -> list[Decision]:
        """Up to `limit` decisions, the newest first."""
        return list(islice(reversed(self._ring), limit))

    def of_request(self, request_id: str, limit: int) -> list[Decision]:
        """Up to `limit` decisions on a request id, the newest first."""
        kept = request_id[:SHOWN]
        return list(islice((one for one in reversed(self._ring) if one.asked.id == kept), limit))

    def __len__(self) -> int:
        return len(self._ring)

    def __repr__(self) -> str:
        return f"<DecisionRing {len(self._ring)} of {self.total}>"


def add_routes(app: FastAPI, ring: DecisionRing) -> None:
    """`/debug/decisions`: the newest, a summary each; `/debug/decisions/{request id}`: in full, with every score."""

    @app.get("/debug/decisions")
    async def decisions(limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JSONResponse:
        return JSONResponse({"total": ring.total, "decisions": [one.summary() for one in ring.newest(limit)]})

    @app.get("/debug/decisions/{request_id:path}")
    async def decision(request_id: str, limit: Annotated[int, Query(ge=1, le=100)] = 10) -> JSONResponse:
        found: list[dict[str, Any]] = [one.explain() for one in ring.of_request(request_id, limit)]
        if not found:
            message = f"no decision on a request {request_id!r} among the last {len(ring)}"
            return JSONResponse({"error": message}, status_code=404)
        return JSONResponse({"decisions": found})
