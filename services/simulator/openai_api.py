"""The OpenAI API over HTTP, `/echo`, and the metrics page.

Every answer says in `x-simulator-endpoint` which server gave it. A request with `x-simulator-echo: true` is told in the
answer's headers what arrived: `x-simulator-body-sha256`, `x-simulator-body-bytes`, and `x-simulator-headers`, a JSON
list of the received headers.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import msgspec
from aiohttp import web

from services.simulator.api_error import ApiError
from services.simulator.delivery import Closed, Reply
from services.simulator.faults import Fail, Replace
from services.simulator.inference import JSON, Handler, Inference, Whole, echo_headers, read_body
from services.simulator.metrics import CONTENT_TYPE
from services.simulator.requests import Call, chat, completion, embedding
from services.simulator.responses import Events, embeddings, whole
from services.simulator.responses_api_answers import ResponseEvents
from services.simulator.responses_api_answers import whole as whole_response
from services.simulator.responses_api_requests import responses
from services.simulator.server import ModelServer
from services.simulator.settings import SimulatorSettings
from shared.version import VERSION

Parse: TypeAlias = Callable[[bytes, str, SimulatorSettings], Call]


class OpenAiApi:
    """The handlers of one server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._inference = Inference(server, lambda error: msgspec.json.encode(error.body()))

    def routes(self) -> list[web.RouteDef]:
        settings = self._server.settings
        vectors = partial(embeddings, seed=settings.seed)
        return [
            web.post("/v1/chat/completions", self._handler(chat, whole)),
            web.post("/v1/completions", self._handler(completion, whole)),
            web.post("/v1/embeddings", self._handler(embedding, vectors)),
            web.post("/v1/responses", self._inference.handler(self._responses)),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
            web.get("/version", self._version),
            web.post("/echo", self._echo),
            web.get(settings.engine.metrics_path, self._metrics),
        ]

    def _handler(self, parse: Parse, whole: Whole) -> Handler:
        async def serve(body: bytes, id: str, reply: Reply) -> web.StreamResponse:
            return await self._inference.generate(parse(body, id, self._server.settings), reply, whole, Events)

        return self._inference.handler(serve)

    async def _responses(self, body: bytes, id: str, reply: Reply) -> web.StreamResponse:
        call, asked = responses(body, id, self._server.settings)
        return await self._inference.generate(
            call, reply, partial(whole_response, asked=asked), partial(ResponseEvents, asked=asked)
        )

    async def _models(self, request: web.Request) -> web.Response:
        settings, created = self._server.settings, int(self._server.started)
        base = settings.models[0]
        common = {"object": "model", "created": created, "owned_by": "pointsman", "root": base}
        data = [
            *({**common, "id": id, "parent": None, "max_model_len": settings.context_length} for id in settings.models),
            *({**common, "id": id, "parent": base, "max_model_len": None} for id in settings.adapters),
        ]
        return _json({"object": "list", "data": data})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, request: web.Request) -> web.Response:
        return _json({"version": VERSION})

    async def _echo(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await read_body(request)
        except ApiError as error:
            return web.Response(body=msgspec.json.encode(error.body()), content_type=JSON, status=error.status)
        reply = Reply(request)
        echo_headers(reply, request, body)
        return await reply.whole(body, request.headers.get("content-type", "application/octet-stream"))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._server.tally.scrapes += 1
        try:
            reply = Reply(request)
            fault = await self._server.suffer("metrics", reply)
            if isinstance(fault, Fail):
                if fault.retry_after is not None:
                    reply.header("retry-after", str(fault.retry_after))
                return await reply.whole(b"A fault was asked for.\n", "text/plain", fault.status)
            page = fault.body.encode() if isinstance(fault, Replace) else self._server.metrics()
            return await reply.whole(page, CONTENT_TYPE)
        except Closed:
            return web.Response()


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type=JSON)
