"""OpenAI's Responses API.

A body is read as the chat that vLLM makes of it: the same conversation has the same tokens in both APIs, so each finds
the other's KV blocks. As in vLLM, a stream ends with `response.completed` even if the token limit ended the answer,
which its `status` then says, and no `[DONE]` follows.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from services.simulator.api_error import ApiError, bad_request
from services.simulator.counters import FinishReason
from services.simulator.delivery import ResponseWriter
from services.simulator.inference import EventStream, Inference
from services.simulator.kv_transfer import KvTransferParams
from services.simulator.requests import Call, Choice, GenerationBody, decode, generation
from services.simulator.sequence import RequestOutput
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import Message, Prompt, from_messages

_encode = msgspec.json.Encoder().encode
_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
"""Types of parts that are text."""


class Item(Struct, frozen=True):
    """An item of the input; its type, by default a message, determines the fields."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[dict[str, Any]] | None = None
    summary: list[dict[str, Any]] = []
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[dict[str, Any]] = ""


class ResponsesBody(Struct, frozen=True, kw_only=True):
    """`POST /v1/responses`."""

    model: str
    input: str | list[Item]
    instructions: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: Any = "auto"
    max_output_tokens: int | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    """As in the other APIs: the answer has `max_output_tokens` tokens."""
    kv_transfer_params: KvTransferParams | None = None


def responses(body: bytes, id: str, settings: SimulatorSettings) -> tuple[Call, ResponsesBody]:
    """The call of a body, and the body, because the response repeats some fields. Raises `ApiError` for bodies that
    vLLM rejects, too. By default vLLM stores no responses, so that no call can continue one."""
    parsed = decode(body, ResponsesBody)
    if parsed.previous_response_id is not None:
        message = f"Response with id '{parsed.previous_response_id}' not found."
        raise ApiError(404, "invalid_request_error", message, param="response_id")
    common = GenerationBody(
        model=parsed.model,
        stream=parsed.stream,
        ignore_eos=parsed.ignore_eos,
        kv_transfer_params=parsed.kv_transfer_params,
    )
    limit = parsed.max_output_tokens
    return generation("response", f"resp_{id}", common, [_prompt(parsed)], limit, "max_output_tokens", settings), parsed


def _prompt(body: ResponsesBody) -> Prompt:
    chat = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        chat.append(Message("user", body.input))
    else:
        for item in body.input:
            _add(item, chat)
    return from_messages(chat, list(_functions(body.tools)))


def _functions(tools: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tools that a chat has too, as a chat has them."""
    for tool in tools:
        if tool.get("type") == "function":
            yield {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


def _add(item: Item, chat: list[Message]) -> None:
    """Put an item into the chat. What the model calls belongs to what it has said just before."""
    match item.type:
        case "message":
            if item.role is None:
                raise bad_request("input: a message without a role; user, assistant or system is expected", "input")
            chat.append(Message(item.role, _content(item.content)))
        case "reasoning":
            chat.append(Message("assistant", _content(item.content or item.summary)))
        case "function_call":
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            if chat and chat[-1].role == "assistant":
                previous = chat.pop()
                chat.append(Message("assistant", previous.content, [*(previous.tool_calls or ()), call]))
            else:
                chat.append(Message("assistant", None, [call]))
        case "function_call_output":
            chat.append(Message("tool", _content(item.output)))


def _content(content: str | list[dict[str, Any]] | None) -> str | list[str | dict[str, Any]] | None:
    if not isinstance(content, list):
        return content
    return [str(part.get("text", "")) if part.get("type") in _TEXTS else part for part in content]


def whole(call: Call, created: int, ends: dict[str, RequestOutput], asked: ResponsesBody) -> bytes:
    """The body of an answer that isn't streamed."""
    [choice] = call.choices
    return _encode(_Answer(call, created, asked).ended(ends[choice.request.id]))


class ResponseEvents(EventStream):
    """The events of a streamed response."""

    _events_sent = 0
    """Each event carries its number."""

    def __init__(self, call: Call, created: int, asked: ResponsesBody) -> None:
        super().__init__(call)
        self._answer = _Answer(call, created, asked)

    def _events(self, choice: Choice, text: str, progress: RequestOutput, first: bool) -> Iterator[bytes]:
        if first:
            begun, item = self._answer.begun(), self._answer.message([], "in_progress")
            yield self._event("response.created", response=begun)
            yield self._event("response.in_progress", response=begun)
            yield self._event("response.output_item.added", output_index=0, item=item)
            yield self._text_event("response.content_part.added", part=_text(""))
        if text:
            yield self._text_event("response.output_text.delta", delta=text, logprobs=[])

    def end(self) -> bytes:
        """The end of the message, and the whole response with its usage."""
        [choice] = self._call.choices
        item = self._answer.message([_text(choice.text)], "completed")
        pieces = [
            self._text_event("response.output_text.done", text=choice.text, logprobs=[]),
            self._text_event("response.content_part.done", part=_text(choice.text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event("response.completed", response=self._answer.ended(self.ends[choice.request.id])),
        ]
        return b"".join(pieces)

    def _text_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._answer.message_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._events_sent, **fields}
        self._events_sent += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode(event))


class _Answer:
    """The response object, which events carry as well."""

    def __init__(self, call: Call, created: int, asked: ResponsesBody) -> None:
        self.id = call.id
        self.message_id = f"msg_{call.id.removeprefix('resp_')}"
        [self._choice] = call.choices
        self._common = {
            "id": call.id,
            "object": "response",
            "created_at": created,
            "model": call.model,
            "error": None,
            "instructions": asked.instructions,
            "max_output_tokens": self._choice.request.max_tokens,
            "metadata": asked.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "tool_choice": asked.tool_choice,
            "tools": asked.tools,
        }

    def begun(self) -> dict[str, Any]:
        """At the start of a stream."""
        return {**self._common, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def ended(self, progress: RequestOutput) -> dict[str, Any]:
        """Of a complete answer."""
        choice = self._choice
        cut = choice.request.finish is not FinishReason.STOP
        return {
            **self._common,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self.message([_text(choice.text)], "completed")],
            "usage": usage(choice.request.prompt.tokens, progress),
        }

    def message(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        """The one item of the output."""
        return {"id": self.message_id, "type": "message", "role": "assistant", "status": status, "content": content}


def usage(prompt: int, progress: RequestOutput) -> dict[str, Any]:
    """Tokens of prompt and answer, as this API counts them."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": progress.cached_tokens},
        "output_tokens": progress.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + progress.tokens,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


async def serve_responses(
    inference: Inference, settings: SimulatorSettings, body: bytes, id: str, reply: ResponseWriter
) -> web.StreamResponse:
    """Serve `POST /v1/responses`. Raises `ApiError`."""
    call, asked = responses(body, id, settings)
    return await inference.generate(call, reply, partial(whole, asked=asked), partial(ResponseEvents, asked=asked))
