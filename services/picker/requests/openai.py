"""`openai-parser`: chat, completions, embeddings and responses of the OpenAI API, as vLLM and SGLang serve them.

One msgspec pass decodes only what routing reads; every other field is skipped unread, so what a newer server
understands goes through. Each API has its struct and its function that lays out the prompt.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import UNSET, Raw, Struct

from services.picker.requests import prompts
from services.picker.requests.parsers import Parser
from services.picker.requests.prompts import Message, Prompt
from services.picker.requests.request import Content, Headers, Unparsable

_LARGEST_LIMIT = 2**31 - 1
"""A larger output limit, in tokens, says nothing: no model goes that far."""
_SHOWN = 80
"""Characters of a wrong value that an error shows."""
_AT = re.compile(r"(?P<what>.*) - at `\$\.(?P<path>.*)`")
_STEP = re.compile(r"\[(?P<index>\d+)\]|\.?(?P<field>[^.\[]+)")


class _Common(Struct):
    """Fields of every API. What may be anything is checked by hand, so that an error can show the value."""

    model: Any = UNSET
    stream: Any = False
    cache_salt: Any = None


class _Chat(_Common):
    messages: list[Message] | None = None
    tools: Raw = Raw()
    documents: Raw = Raw()
    chat_template: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    max_completion_tokens: Any = None
    max_tokens: Any = None


class _Completions(_Common):
    prompt: Prompt | None = None
    prompt_embeds: Raw = Raw()
    max_tokens: Any = None


class _Embeddings(_Common):
    input: Prompt | None = None
    messages: list[Message] | None = None


class _Responses(_Common):
    input: str | list[str | Message] | None = None
    instructions: Any = None
    tools: Raw = Raw()
    max_output_tokens: Any = None


def _chat(body: _Chat) -> bytes:
    if not body.messages:
        raise Unparsable(f"messages: {_empty(body.messages)}; a non-empty list of messages is needed")
    return prompts.front(body.tools, body.documents, body.chat_template, body.chat_template_kwargs) + prompts.dialogue(
        body.messages
    )


def _completions(body: _Completions) -> bytes:
    if not body.prompt and memoryview(body.prompt_embeds):
        return b""
    return _text("prompt", body.prompt)


def _embeddings(body: _Embeddings) -> bytes:
    if body.messages and body.input is None:
        return prompts.dialogue(body.messages)
    return _text("input", body.input)


def _responses(body: _Responses) -> bytes:
    if not body.input:
        raise Unparsable(f"input: {_empty(body.input)}; a text or a non-empty list of items is needed")
    start = prompts.front(body.tools)
    if isinstance(body.instructions, str):
        start += prompts.dialogue([Message(role="system", content=body.instructions)])
    items = [body.input] if isinstance(body.input, str) else body.input
    return start + prompts.dialogue(
        Message(role="user", content=item) if isinstance(item, str) else item for item in items
    )


def _text(field: str, value: Prompt | None) -> bytes:
    if not value:
        raise Unparsable(f"{field}: {_empty(value)}; a text, a list of texts, or token ids are needed")
    try:
        return prompts.plain(value)
    except ValueError as error:
        raise Unparsable(f"{field}: {error}") from error


class _Api(Struct, frozen=True):
    name: str
    decode: Callable[[bytes], Any]
    prompt: Callable[[Any], bytes]
    limits: tuple[str, ...] = ()
    """Fields with the most tokens that the client takes; the first one that is there counts."""


_Suffixes: TypeAlias = dict[str, _Api]

_APIS: _Suffixes = {
    "/chat/completions": _Api(
        "chat", msgspec.json.Decoder(_Chat).decode, _chat, ("max_completion_tokens", "max_tokens")
    ),
    "/completions": _Api("completions", msgspec.json.Decoder(_Completions).decode, _completions, ("max_tokens",)),
    "/embeddings": _Api("embeddings", msgspec.json.Decoder(_Embeddings).decode, _embeddings),
    "/responses": _Api("responses", msgspec.json.Decoder(_Responses).decode, _responses, ("max_output_tokens",)),
}


class OpenAIParser(Parser):
    """Reads the JSON bodies of the OpenAI API, with any prefix before the API's path."""

    TYPE = "openai-parser"
    SUFFIXES: ClassVar[tuple[str, ...]] = tuple(_APIS)

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        api = next(api for suffix, api in _APIS.items() if path.endswith(suffix))
        if not body:
            raise Unparsable("the body is empty; a JSON object is needed")
        try:
            read = api.decode(body)
        except msgspec.ValidationError as error:
            raise Unparsable(_mismatch(body, str(error))) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unparsable(f"the body isn't JSON that can be read: {error}") from error
        except RecursionError as error:
            raise Unparsable("the body is nested too deeply") from error
        model = read.model
        if not isinstance(model, str) or not model:
            found = "missing" if model is UNSET else f"no name of a model{_value_at(body, 'model')}"
            raise Unparsable(f"model: {found}; the name of the model is needed")
        return Content(
            api=api.name,
            model=model,
            stream=read.stream is True,
            prompt=api.prompt(read),
            cache_salt=read.cache_salt if isinstance(read.cache_salt, str) else "",
            output_limit=_limit(getattr(read, name) for name in api.limits),
        )


def _limit(values: Iterable[Any]) -> int | None:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            whole = 0 <= value <= _LARGEST_LIMIT and int(value) == value
            return int(value) if whole else None
    return None


def _empty(value: Any) -> str:
    return "missing" if value is None else "empty"


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _mismatch(body: bytes, text: str) -> str:
    """msgspec's complaint, with the field first and the value that was found there last."""
    found = _AT.fullmatch(text)
    if found is None:
        return f"the body: {_lowered(text)}"
    return f"{found['path']}: {_lowered(found['what'])}{_value_at(body, found['path'])}"


def _value_at(body: bytes, path: str) -> str:
    value = Raw(body)
    try:
        for step in _STEP.finditer(path):
            if step["index"]:
                value = msgspec.json.decode(value, type=list[Raw])[int(step["index"])]
            else:
                value = msgspec.json.decode(value, type=dict[str, Raw])[step["field"]]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, LookupError):
        return ""  # the body has more wrong with it than this value, and can't be read up to here
    text = bytes(memoryview(value)[: 4 * _SHOWN]).decode("utf-8", "replace")
    return f": {_shorten(text)}"


def _lowered(text: str) -> str:
    return (text[:1].lower() + text[1:]).replace("`", "")
