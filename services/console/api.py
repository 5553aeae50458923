"""The console's API: what its page uses, and scripts can."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from itertools import chain
from typing import Annotated, Any, Protocol

from fastapi import APIRouter, Depends, HTTPException, Query, Response
from fastapi.responses import StreamingResponse
from msgspec import to_builtins
from msgspec.structs import replace
from pydantic import BaseModel
from starlette.types import Send

from services.console.bodies import described, json_body
from services.console.configuration import Documents, TooManyChecks
from services.console.decisions import Decisions
from services.console.feed import Feed
from services.console.flow import flow_page
from services.console.history import INTERVAL, History
from services.console.members import Members
from services.console.pool_topic import facts_of, numbers_of
from services.console.schemas import (
    CheckPage,
    ConfigurationPage,
    Document,
    EndpointPage,
    ExplainRequest,
    FlowPage,
    HistoryPage,
    PoolPage,
    ReplayPage,
    SentExplainRequest,
)
from shared.bus.errors import BusError, Malformed, NoResponders
from shared.bus.query_messages import ExplainQuery
from shared.pool_view.reader import PoolReader
from shared.service.admin import REFUSED, InTurn, as_json, as_json_pieces, encoded
from shared.service.pages import json_sections, slices

MAX_ENDPOINTS = 100
"""Whose histories one request gets."""
IN_FULL = 4
"""Requests whose decisions are looked for and sent at once: the answers of all pickers can be large."""
MAX_MOVES = 100
"""Pairs of endpoints that the answer of a replay lists."""
EVENT_STREAM = "text/event-stream"


class Console(Protocol):
    """What the routes need."""

    reader: PoolReader
    members: Members
    decisions: Decisions
    documents: Documents
    history: History
    flow_names: Mapping[str, str]
    feeds: Mapping[str, Feed]

    def about(self) -> dict[str, Any]:
        """As `services.console.schemas.About`."""
        ...


class DecisionsOnRequest(BaseModel):
    """As `/debug/decisions/{request_id}` of a picker has them, each with its picker's id."""

    decisions: list[dict[str, Any]]
    missing: list[str]
    """Pickers that gave no answer, with the reason."""


class Explained(BaseModel):
    decision: dict[str, Any]


def api_routes(console: Console) -> APIRouter:
    """Everything below `/api`."""
    router = APIRouter(prefix="/api", responses=REFUSED)
    reader, in_full = console.reader, asyncio.Semaphore(IN_FULL)

    @router.get("/pool", summary="Endpoints and members.", response_model=PoolPage)
    async def pool() -> Response:
        endpoints = (facts_of(row) | numbers_of(row) for row in reader.rows())
        members, problems = console.members.described(), console.members.problems()
        head = {"about": console.about(), "members": members, "problems": problems}
        return as_json_pieces(json_sections(head, {"endpoints": endpoints}, encoded))

    @router.get("/pool/endpoint", summary="All attributes of one endpoint.", response_model=EndpointPage)
    async def endpoint(id: str) -> Response:
        return as_json({"id": id, "attributes": reader.attributes(id)})

    @router.get("/pool/history", summary="The last ten minutes of some endpoints.", response_model=HistoryPage)
    async def history(endpoint: Annotated[list[str], Query(max_length=MAX_ENDPOINTS)]) -> Response:
        return as_json({"interval": INTERVAL, "endpoints": console.history.of(endpoint)})

    @router.get("/flow", summary="What waits and runs under flow control.", response_model=FlowPage)
    async def flow() -> Response:
        await console.feeds["decisions"].refresh()
        return as_json(flow_page(reader, console.flow_names))

    @router.get(
        "/decisions/{request_id:path}",
        summary="The decisions on a request id in full, whichever picker made them.",
        response_model=DecisionsOnRequest,
    )
    async def decision(request_id: str) -> Response:
        return InTurn(in_full, partial(found, request_id))

    async def found(request_id: str) -> Response:
        try:
            decisions, missing = await console.decisions.of_request(request_id)
        except BusError as error:
            raise HTTPException(503, str(error)) from error
        return as_json_pieces(json_sections({"missing": missing}, {"decisions": map(slices, decisions)}, encoded))

    @router.post(
        "/explain",
        summary="The decision that a picker would make now. Nothing is sent to a model server, charged or kept.",
        response_model=Explained,
        openapi_extra=described(ExplainRequest),
    )
    async def explain(
        request: Annotated[ExplainRequest, Depends(json_body(ExplainRequest, SentExplainRequest))],
    ) -> Response:
        return InTurn(in_full, partial(explained, request))

    async def explained(request: ExplainRequest) -> Response:
        picker = request.picker or next(iter(console.decisions.pickers()), "")
        query = ExplainQuery(path=request.path, headers=request.headers, body=request.body.encode())
        try:
            decision = await console.decisions.explain(picker, query)
        except NoResponders as error:
            raise HTTPException(404, f"no picker {picker!r} answers") from error
        except (BusError, Malformed) as error:
            raise HTTPException(503, str(error)) from error
        return as_json_pieces(chain((b'{"decision":',), slices(decision), (b"}",)))

    @router.get("/configuration", summary="The running document, and who runs it.", response_model=ConfigurationPage)
    async def configuration() -> Response:
        page = await console.documents.page(reader.configuration, console.members)
        return as_json({"about": console.about(), **page})

    @router.post(
        "/configuration/check",
        summary="What the tiers would make of a document. Nothing is published.",
        response_model=CheckPage,
        openapi_extra=described(Document),
    )
    async def check(document: Annotated[Document, Depends(json_body(Document))]) -> Response:
        try:
            return as_json(await console.documents.check(document.text))
        except TooManyChecks as error:
            raise HTTPException(503, str(error)) from error

    @router.post(
        "/configuration/replay",
        summary="Where the pickers' last decisions would have gone with a document. Nothing is published.",
        response_model=ReplayPage,
        openapi_extra=described(Document),
    )
    async def replay(document: Annotated[Document, Depends(json_body(Document))]) -> Response:
        try:
            found = await console.decisions.replay(document.text)
        except BusError as error:
            raise HTTPException(503, str(error)) from error
        moves = found.total.moves
        page = to_builtins(replace(found.total, moves=moves[:MAX_MOVES]))
        more = len(moves[MAX_MOVES:])
        return as_json({**page, "more_moves": more, "pickers": found.pickers, "missing": found.missing})

    return router


class FeedResponse(StreamingResponse):
    """A feed's stream as a response. Starlette alone doesn't close it when a client goes in the middle of an event."""

    def __init__(self, feed: Feed) -> None:
        self._events = feed.listen()
        super().__init__(self._events, media_type=EVENT_STREAM)

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self._events):
            await super().stream_response(send)


def stream_routes(feeds: Mapping[str, Feed]) -> APIRouter:
    """The streams of events. Each begins with `whole`, and `changes` follow."""
    router = APIRouter(prefix="/api", responses=REFUSED)

    def add(name: str, feed: Feed) -> None:
        @router.get(
            f"/{name}/stream",
            summary=f"Server-sent events about {name}: `whole`, then `changes`.",
            response_class=StreamingResponse,
            responses={200: {"content": {EVENT_STREAM: {}}}},
        )
        async def stream() -> FeedResponse:
            return FeedResponse(feed)

    for name, feed in feeds.items():
        add(name, feed)
    return router
