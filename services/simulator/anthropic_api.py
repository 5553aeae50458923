"""Anthropic's Messages API, as inference servers offer it next to OpenAI's.

A body is read as the chat that vLLM makes of it: the same conversation has the same tokens in both APIs, so each finds
the other's KV blocks. As in vLLM, `[DONE]` follows the last event of a stream; clients of this API skip it. Anthropic's
`ping` comes once, after the text has begun.
"""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from services.simulator.api_error import ApiError, bad_request
from services.simulator.counters import FinishReason
from services.simulator.delivery import ResponseWriter
from services.simulator.inference import JSON, EventStream, Inference
from services.simulator.kv_transfer import KvTransferParams
from services.simulator.requests import Call, Choice, GenerationBody, adapter_of, decode, generation
from services.simulator.sequence import RequestOutput
from services.simulator.server import ModelServer
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import Message, Prompt, from_messages

DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode
_ATTRIBUTION = "x-anthropic-billing-header"
"""Beginning of a system text that is no part of the prompt: Claude Code puts a hash of the request there."""

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


class Block(Struct, frozen=True):
    """A content block of a message; its type determines the fields."""

    type: str
    text: str | None = None
    thinking: str | None = None
    source: Any = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[str | dict[str, Any]] | None = None


class Turn(Struct, frozen=True):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(Struct, frozen=True):
    """What the model may call."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = {}


class CountBody(Struct, frozen=True, kw_only=True):
    """`POST /v1/messages/count_tokens`."""

    model: str
    messages: list[Turn]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None


class MessagesBody(CountBody, frozen=True, kw_only=True):
    """`POST /v1/messages`."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    """As in the OpenAI API: the answer has `max_tokens` tokens."""
    kv_transfer_params: KvTransferParams | None = None


def messages(body: bytes, id: str, settings: SimulatorSettings) -> Call:
    """The call of a conversation. Raises `ApiError` for what vLLM would refuse too."""
    parsed = decode(body, MessagesBody)
    common = GenerationBody(
        model=parsed.model,
        stream=parsed.stream,
        stop=parsed.stop_sequences,
        ignore_eos=parsed.ignore_eos,
        kv_transfer_params=parsed.kv_transfer_params,
    )
    return generation("message", f"msg_{id}", common, [_prompt(parsed)], parsed.max_tokens, "max_tokens", settings)


def counted(body: bytes, settings: SimulatorSettings) -> tuple[str, int]:
    """The model that a conversation is for, and the tokens of its prompt. Raises `ApiError`."""
    parsed = decode(body, CountBody)
    adapter_of(parsed.model, settings)
    return parsed.model, _prompt(parsed).tokens


def _prompt(body: CountBody) -> Prompt:
    if not body.messages:
        raise bad_request("messages: [] has no message; at least one is expected", "messages")
    chat = [Message("system", system)] if (system := _system(body.system)) else []
    for turn in body.messages:
        chat += _chat(turn)
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in body.tools or ()
    ]
    return from_messages(chat, tools)


def _system(system: str | list[Block] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return "".join([block.text for block in system if block.text and not block.text.startswith(_ATTRIBUTION)])


def _chat(turn: Turn) -> Iterator[Message]:
    """A turn as messages of a chat: what tools gave are messages of their own, before what the user says to it."""
    if isinstance(turn.content, str):
        yield Message(turn.role, turn.content)
        return
    parts: list[str | dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in turn.content:
        if block.type == "tool_result":
            yield Message("tool", block.content)
        elif block.type == "tool_use":
            calls.append({"type": "function", "function": {"name": block.name, "arguments": block.input}})
        elif block.source is not None:
            parts.append({"type": block.type, "source": block.source})
        elif text := block.text or block.thinking:
            parts.append(text)
    if parts or calls:
        yield Message(turn.role, parts, calls or None)


def usage(choice: Choice, progress: RequestOutput) -> dict[str, int]:
    """Tokens so far. `input_tokens` are those that weren't cached: the API's three kinds of input add up to all."""
    return {
        "input_tokens": choice.request.prompt.tokens - progress.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": progress.cached_tokens,
        "output_tokens": progress.tokens,
    }


def whole(call: Call, created: int, ends: dict[str, RequestOutput]) -> bytes:
    """The body of an answer that isn't streamed."""
    [choice] = call.choices
    text = [{"type": "text", "text": choice.text}] if choice.text else []
    return _encode(
        {**_message(call), "content": text, **_stop(choice), "usage": usage(choice, ends[choice.request.id])},
    )


class MessageEvents(EventStream):
    """The events of a streamed message."""

    _text_begun = False

    def __init__(self, call: Call, created: int) -> None:
        super().__init__(call)

    def _events(self, choice: Choice, text: str, progress: RequestOutput, first: bool) -> Iterator[bytes]:
        if first:
            tokens = usage(choice, progress) | {"output_tokens": 0}
            message = {**_message(self._call), "content": [], "stop_reason": None, "stop_sequence": None}
            yield _sse({"type": "message_start", "message": {**message, "usage": tokens}})
        if not text:
            return
        if not self._text_begun:
            self._text_begun = True
            block = {"type": "text", "text": ""}
            yield _sse({"type": "content_block_start", "index": 0, "content_block": block})
            yield _sse({"type": "ping"})
        yield _sse({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def end(self) -> bytes:
        """The end of the text, the stop reason, the usage, and `[DONE]`."""
        [choice] = self._call.choices
        pieces = [_sse({"type": "content_block_stop", "index": 0})] if self._text_begun else []
        tokens = usage(choice, self.ends[choice.request.id])
        pieces.append(_sse({"type": "message_delta", "delta": _stop(choice), "usage": tokens}))
        pieces.append(_sse({"type": "message_stop"}))
        return b"".join(pieces) + DONE


def _message(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "message", "role": "assistant", "model": call.model}


def _stop(choice: Choice) -> dict[str, str | None]:
    if choice.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    reason = "end_turn" if choice.request.finish is FinishReason.STOP else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": None}


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _encode(event))


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

    async def _messages(self, body: bytes, id: str, reply: ResponseWriter) -> web.StreamResponse:
        call = messages(body, id, self._server.settings)
        return await self._inference.generate(call, reply, whole, MessageEvents)

    async def _count_tokens(self, body: bytes, id: str, reply: ResponseWriter) -> web.StreamResponse:
        """The engine has no part in it: nothing waits, and no cache is read."""
        model, tokens = counted(body, self._server.settings)
        self._server.counts.asked_for(model)
        return await reply.whole(msgspec.json.encode({"input_tokens": tokens}), JSON)


def error_body(error: ApiError) -> bytes:
    """The JSON that the client gets for an error."""
    kind = _TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": error.message}})
