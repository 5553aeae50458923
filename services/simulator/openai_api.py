"""The OpenAI API over HTTP, `/echo`, and the metrics page.

Every answer says in `x-simulator-endpoint` which server gave it. A request with `x-simulator-echo: true` is told in the
answer's headers what arrived: `x-simulator-body-sha256`, `x-simulator-body-bytes`, and `x-simulator-headers`, a JSON
list of the received headers.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec
import structlog
from aiohttp import ClientConnectionError, web

from services.simulator.api_error import ApiError, bad_request, overloaded
from services.simulator.delivery import Closed, Reply, received_headers
from services.simulator.engine import ContextTooLong, Overloaded
from services.simulator.faults import Fail, Replace
from services.simulator.metrics import CONTENT_TYPE
from services.simulator.requests import Call, chat, completion, embedding
from services.simulator.responses import Events, embeddings, whole
from services.simulator.server import ModelServer
from services.simulator.settings import SimulatorSettings
from shared.version import VERSION

log = structlog.get_logger(__name__)

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

Parse = Callable[[bytes, str, SimulatorSettings], Call]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class OpenAiApi:
    """The handlers of one server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._numbers = count(1)

    def routes(self) -> list[web.RouteDef]:
        settings = self._server.settings
        return [
            web.post("/v1/chat/completions", self._inference(chat)),
            web.post("/v1/completions", self._inference(completion)),
            web.post("/v1/embeddings", self._inference(embedding)),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
            web.get("/version", self._version),
            web.post("/echo", self._echo),
            web.get(settings.engine.metrics_path, self._metrics),
        ]

    def _inference(self, parse: Parse) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            server, tally = self._server, self._server.tally
            tally.requests += 1
            began = time.monotonic()
            status, body, reply = 499, b"", Reply(request)
            try:
                body = await _body(request)
                fault = await server.suffer("inference", reply)
                if request.headers.get("x-simulator-echo", "").lower() in ("1", "true"):
                    _echo_headers(reply, request, body)
                if isinstance(fault, Fail):
                    raise ApiError(
                        fault.status, "InternalServerError", "A fault was asked for.", retry_after=fault.retry_after
                    )
                if isinstance(fault, Replace):
                    response = await reply.whole(fault.body.encode(), JSON)
                else:
                    call = parse(body, f"{server.name}-{next(self._numbers)}", server.settings)
                    tally.models[call.model] = tally.models.get(call.model, 0) + 1
                    response = await self._serve(call, reply)
                status = response.status
                tally.answered += not reply.spoiled
            except ApiError as error:
                status = error.status
                tally.answered += 1
                tally.refused += 1
                if error.retry_after is not None:
                    reply.header("retry-after", str(error.retry_after))
                response = await reply.whole(msgspec.json.encode(error.body()), JSON, status)
            except Closed:
                response = web.Response()
            except (asyncio.CancelledError, ClientConnectionError):
                tally.aborted += 1
                raise
            finally:
                tally.spoiled += reply.spoiled
                seconds = time.monotonic() - began
                server.page.http.observe(request.path, request.method, status, len(body), reply.sent, seconds)
            return response

        return handle

    async def _serve(self, call: Call, reply: Reply) -> web.StreamResponse:
        server = self._server
        created = int(time.time())
        try:
            inbox = server.driver.submit(call.works)
        except ContextTooLong as error:
            raise bad_request(str(error)) from error
        except Overloaded as error:
            raise overloaded(str(error)) from error
        try:
            if not call.stream:
                ends = await inbox.ends()
                if call.kind == "embedding":
                    return await reply.whole(embeddings(call, created, ends, server.settings.seed), JSON)
                return await reply.whole(whole(call, created, ends), JSON)
            events = Events(call, created)
            await reply.begin(EVENT_STREAM)
            while True:
                data = b"".join([events.of(progress) for progress in await inbox.next()])
                if complete := events.complete:
                    data += events.end()
                await reply.write(data)
                if complete or reply.spoiled:
                    return await reply.end()
        finally:
            server.driver.withdraw(inbox)

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
            body = await _body(request)
        except ApiError as error:
            return web.Response(body=msgspec.json.encode(error.body()), content_type=JSON, status=error.status)
        reply = Reply(request)
        _echo_headers(reply, request, body)
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


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(413, "BadRequestError", f"The body has more than {request.client_max_size} bytes.") from error


def _echo_headers(reply: Reply, request: web.Request, body: bytes) -> None:
    reply.header("x-simulator-body-sha256", hashlib.sha256(body).hexdigest())
    reply.header("x-simulator-body-bytes", str(len(body)))
    reply.header("x-simulator-headers", received_headers(request))


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type=JSON)
