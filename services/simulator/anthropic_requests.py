"""Bodies of Anthropic's Messages API as work for the engine.

A body is read as the chat that vLLM makes of it: the same conversation has the same tokens in both APIs, and the KV
blocks of the one are found by the other.
"""

from collections.abc import Iterator
from typing import Any, Literal

from msgspec import Struct

from services.simulator.api_error import bad_request
from services.simulator.requests import Call, GenerationBody, adapter_of, decode, generation
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import Message, Prompt, from_messages

_ATTRIBUTION = "x-anthropic-billing-header"
"""Beginning of a system text that is no part of the prompt: Claude Code puts a hash of the request there."""


class Block(Struct, frozen=True):
    """A piece of a message. Which fields it has goes by its type."""

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


def messages(body: bytes, id: str, settings: SimulatorSettings) -> Call:
    """The call of a conversation. Raises `ApiError` for what vLLM would refuse too."""
    parsed = decode(body, MessagesBody)
    asked = GenerationBody(
        model=parsed.model, stream=parsed.stream, stop=parsed.stop_sequences, ignore_eos=parsed.ignore_eos
    )
    return generation("message", f"msg_{id}", asked, [_prompt(parsed)], parsed.max_tokens, "max_tokens", settings)


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
