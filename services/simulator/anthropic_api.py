"""Anthropic's Messages API over HTTP, as inference servers have it beside OpenAI's."""

import msgspec
from aiohttp import web

from services.simulator.anthropic_requests import counted, messages
from services.simulator.anthropic_responses import MessageEvents, whole
from services.simulator.api_error import ApiError
from services.simulator.delivery import Reply
from services.simulator.inference import JSON, Inference
from services.simulator.server import ModelServer

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""`error.type` by status, as Anthropic documents them; 503 as SGLang has it. (vLLM leaves OpenAI's words there.)"""


class AnthropicApi:
    """The handlers of one server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._inference = Inference(server, error_body)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/messages", self._inference.handler(self._messages)),
            web.post("/v1/messages/count_tokens", self._inference.handler(self._count_tokens)),
        ]

    async def _messages(self, body: bytes, id: str, reply: Reply) -> web.StreamResponse:
        call = messages(body, id, self._server.settings)
        return await self._inference.generate(call, reply, whole, MessageEvents)

    async def _count_tokens(self, body: bytes, id: str, reply: Reply) -> web.StreamResponse:
        """The engine has no part in it: nothing waits, and no cache is read."""
        model, tokens = counted(body, self._server.settings)
        self._server.tally.asked_for(model)
        return await reply.whole(msgspec.json.encode({"input_tokens": tokens}), JSON)


def error_body(error: ApiError) -> bytes:
    """The JSON that the client gets for an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})
