"""The OpenAI API over HTTP (chat, completions, embeddings, models), `/echo`, and the metrics page.

Every response has `x-simulator-endpoint`, the name of the server. A request with `x-simulator-echo: true` gets response
headers that say what arrived: `x-simulator-body-sha256`, `x-simulator-body-bytes`, and `x-simulator-headers`, a JSON
list of the received headers.
"""

import base64
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import msgspec
from aiohttp import web

from services.simulator.api_error import ApiError
from services.simulator.delivery import Closed, ResponseWriter
from services.simulator.faults import Fail, Replace
from services.simulator.inference import JSON, EventStream, Handler, Inference, Whole, echo_headers, read_body
from services.simulator.metrics import CONTENT_TYPE
from services.simulator.requests import Call, Choice, chat, completion, embedding
from services.simulator.responses_api import serve_responses
from services.simulator.sequence import RequestOutput
from services.simulator.server import ModelServer
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import embedding as embedding_vector
from shared.version import VERSION

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode

Parse: TypeAlias = Callable[[bytes, str, SimulatorSettings], Call]


def usage(call: Call, ends: Iterable[RequestOutput]) -> dict[str, Any]:
    """Tokens of all choices. A prompt counts once, however many choices it has."""
    by_id = {progress.id: progress for progress in ends}
    prompts: dict[int, tuple[int, int]] = {}
    for choice in call.choices:
        # Choices of one prompt share the object; the later ones find the first one's blocks, which isn't a hit of the
        # client's.
        cached = by_id[choice.request.id].cached_tokens
        prompts.setdefault(id(choice.request.prompt), (choice.request.prompt.tokens, cached))
    prompt = sum(tokens for tokens, _ in prompts.values())
    output = sum(progress.tokens for progress in by_id.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in prompts.values())},
    }


def whole(call: Call, created: int, ends: dict[str, RequestOutput]) -> bytes:
    """The body of an answer that isn't streamed."""
    return _encode(
        {
            "id": call.id,
            "object": "chat.completion" if call.kind == "chat" else "text_completion",
            "created": created,
            "model": call.model,
            "choices": [_choice(call, choice) for choice in call.choices],
            "usage": usage(call, ends.values()),
        }
    )


def embeddings(call: Call, created: int, ends: dict[str, RequestOutput], seed: int) -> bytes:
    """The body of an embeddings answer."""
    data = []
    for choice in call.choices:
        vector = embedding_vector(choice.request.prompt, seed, call.dimensions)
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if call.base64 else vector
        data.append({"object": "embedding", "index": choice.index, "embedding": packed})
    return _encode(
        {
            "id": call.id,
            "object": "list",
            "created": created,
            "model": call.model,
            "data": data,
            "usage": usage(call, ends.values()),
        }
    )


def _choice(call: Call, choice: Choice) -> dict[str, Any]:
    base = {"index": choice.index, "logprobs": None, "finish_reason": str(choice.request.finish)}
    if call.kind == "chat":
        return {**base, "message": {"role": "assistant", "content": choice.text}}
    return {**base, "text": choice.text}


class CompletionEvents(EventStream):
    """The events of a streamed chat or completion."""

    def __init__(self, call: Call, created: int) -> None:
        super().__init__(call)
        self._base = {
            "id": call.id,
            "object": "chat.completion.chunk" if call.kind == "chat" else "text_completion",
            "created": created,
            "model": call.model,
        }

    def _events(self, choice: Choice, text: str, progress: RequestOutput, first: bool) -> Iterator[bytes]:
        if first and self._call.kind == "chat":
            yield self._event(choice, {"role": "assistant", "content": ""}, None)
        finish = str(choice.request.finish) if progress.finished else None
        if text or finish:
            yield self._event(choice, {"content": text} if text else {}, finish)

    def end(self) -> bytes:
        """The usage, if the client asked for it, and `[DONE]`."""
        if not self._call.include_usage:
            return DONE
        return _sse({**self._base, "choices": [], "usage": usage(self._call, self.ends.values())}) + DONE

    def _event(self, choice: Choice, delta: dict[str, str], finish: str | None) -> bytes:
        own: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": finish}
        if self._call.kind == "chat":
            own["delta"] = delta
        else:
            own["text"] = delta.get("content", "")
        return _sse({**self._base, "choices": [own]})


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"


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
            web.post("/v1/responses", self._inference.handler(partial(serve_responses, self._inference, settings))),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
            web.get("/version", self._version),
            web.post("/echo", self._echo),
            web.get(settings.engine.metrics_path, self._metrics),
        ]

    def _handler(self, parse: Parse, whole: Whole) -> Handler:
        async def serve(body: bytes, id: str, reply: ResponseWriter) -> web.StreamResponse:
            return await self._inference.generate(
                parse(body, id, self._server.settings), reply, whole, CompletionEvents
            )

        return self._inference.handler(serve)

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
        reply = ResponseWriter(request)
        echo_headers(reply, request, body)
        return await reply.whole(body, request.headers.get("content-type", "application/octet-stream"))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        self._server.counts.scrapes += 1
        try:
            reply = ResponseWriter(request)
            fault = await self._server.apply_fault("metrics", reply)
            if isinstance(fault, Fail):
                if fault.retry_after is not None:
                    reply.header("retry-after", str(fault.retry_after))
                return await reply.whole(b"A test has set this fault.\n", "text/plain", fault.status)
            page = fault.body.encode() if isinstance(fault, Replace) else self._server.metrics()
            return await reply.whole(page, CONTENT_TYPE)
        except Closed:
            return web.Response()


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type=JSON)
