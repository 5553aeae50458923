"""The last decisions, kept so that each can be explained: a bounded ring, and its admin routes."""

from collections import deque
from itertools import islice

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.picker.decision import SHOWN, Decision
from services.picker.state.layout import Layout
from shared.service.admin import as_json_list

LAYOUTS = 16


class DecisionRing:
    """The newest decisions. Request ids come from clients: several decisions can have the same.

    A decision keeps its layout, which has every endpoint: of more than `layouts` different ones, those go that have the
    oldest, whatever room there is.
    """

    def __init__(self, size: int, layouts: int = LAYOUTS) -> None:
        self._ring: deque[Decision] = deque()
        self._size = size
        self._most_layouts = layouts
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
        while len(ring) > self._size or len(layouts) > self._most_layouts:
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


def decision_routes(ring: DecisionRing) -> list[Route]:
    """The last decisions, and those on one request."""

    async def decisions(request: Request) -> Response:
        """The last decisions, the newest first, a summary each; `?limit=` says how many."""
        newest = ring.newest(_limit(request, default=100, most=1000))
        return as_json_list("decisions", (decision.summary() for decision in newest), total=ring.total)

    async def decision(request: Request) -> Response:
        """Decisions on a request id in full: what each filter removed, and every score with its weight."""
        request_id = request.path_params["request_id"]
        found = ring.of_request(request_id, _limit(request, default=10, most=100))
        if not found:
            raise HTTPException(404, f"no decision on a request {request_id!r} among the last {len(ring)}")
        return as_json_list("decisions", (decision.explain() for decision in found))

    return [Route("/debug/decisions", decisions), Route("/debug/decisions/{request_id:path}", decision)]


def _limit(request: Request, *, default: int, most: int) -> int:
    text = request.query_params.get("limit", str(default))
    if text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= most:
        return int(text)
    raise HTTPException(400, f"limit: a whole number from 1 to {most} is needed, not {text[:80]!r}")
