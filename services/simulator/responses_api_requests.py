"""Bodies of OpenAI's Responses API as work for the engine.

A body is read as the chat that vLLM makes of it: the same conversation has the same tokens in both APIs, and the KV
blocks of the one are found by the other.
"""

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from services.simulator.api_error import ApiError, bad_request
from services.simulator.requests import Call, GenerationBody, decode, generation
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import Message, Prompt, from_messages

_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
"""Types of parts that are text."""


class Item(Struct, frozen=True):
    """A piece of the input. Which fields it has goes by its type; a message needs none."""

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


def responses(body: bytes, id: str, settings: SimulatorSettings) -> tuple[Call, ResponsesBody]:
    """The call of a body, and the body, of which the answer repeats some. Raises `ApiError` for what vLLM would refuse
    too: it keeps no responses unless it is told to, so there is none to go on from."""
    parsed = decode(body, ResponsesBody)
    if parsed.previous_response_id is not None:
        message = f"Response with id '{parsed.previous_response_id}' not found."
        raise ApiError(404, "invalid_request_error", message, param="response_id")
    asked = GenerationBody(model=parsed.model, stream=parsed.stream, ignore_eos=parsed.ignore_eos)
    limit = parsed.max_output_tokens
    return generation("response", f"resp_{id}", asked, [_prompt(parsed)], limit, "max_output_tokens", settings), parsed


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
                said = chat.pop()
                chat.append(Message("assistant", said.content, [*(said.tool_calls or ()), call]))
            else:
                chat.append(Message("assistant", None, [call]))
        case "function_call_output":
            chat.append(Message("tool", _content(item.output)))


def _content(content: str | list[dict[str, Any]] | None) -> str | list[str | dict[str, Any]] | None:
    if not isinstance(content, list):
        return content
    return [str(part.get("text", "")) if part.get("type") in _TEXTS else part for part in content]
