"""`openai-parser`: the OpenAI API as vLLM, SGLang and others serve it.

One msgspec pass decodes only what routing reads; every other field is skipped unread, so what a newer server
understands goes through. Each API has its struct, which lays out the prompt.
"""

from collections.abc import Iterable
from typing import ClassVar

from msgspec import Raw

from services.picker.parsers import prompts
from services.picker.parsers.json_body import UNREAD, BodyReader, JsonBody
from services.picker.parsers.json_values import NOTHING, JsonParameters, as_text, given, lacking
from services.picker.parsers.media import media_of
from services.picker.parsers.parser import Parser, longest_first
from services.picker.parsers.prompts import Embeddable, Message, Prompt, TextOrIds
from services.picker.request import Content, Headers, Media, Unparsable


class _Chat(JsonBody):
    API = "chat"
    PROMPT = ("tools", "documents", "chat_template", "chat_template_kwargs", "messages")
    OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")
    MEDIA = prompts.MEDIA_KEYS

    messages: list[Message] | None = None
    tools: Raw = NOTHING
    documents: Raw = NOTHING
    chat_template: Raw = NOTHING
    chat_template_kwargs: Raw = NOTHING
    max_completion_tokens: Raw = NOTHING
    max_tokens: Raw = NOTHING
    n: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        if not self.messages:
            raise Unparsable(f"messages: {lacking(self.messages)}; a non-empty list of messages is needed")
        start = prompts.front(self.tools, self.documents, self.chat_template, self.chat_template_kwargs)
        return Prompt(start + prompts.dialogue(self.messages))

    def multimodal(self) -> bool:
        return prompts.has_media(self.messages)

    def media(self) -> tuple[Media, ...]:
        return _media(self.messages)


class _Completions(JsonBody):
    API = "completions"
    PROMPT = ("prompt",)
    PLAIN = "prompt"
    OUTPUT_LIMITS = ("max_tokens",)

    prompt: TextOrIds | None = None
    prompt_embeds: Raw = NOTHING
    max_tokens: Raw = NOTHING
    n: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        if not self.prompt and given(self.prompt_embeds):
            return Prompt()
        return _plain("prompt", self.prompt)


class _Embeddings(JsonBody):
    API = "embeddings"
    PROMPT = ("input", "messages")
    PLAIN = "input"

    input: Embeddable | None = None
    messages: list[Message] | None = None

    def prompt_of(self) -> Prompt:
        if self.messages and self.input is None:
            return Prompt(prompts.dialogue(self.messages))
        return _plain("input", self.input)


class _Responses(JsonBody):
    API = "responses"
    PROMPT = ("tools", "instructions", "input")
    OUTPUT_LIMITS = ("max_output_tokens",)
    MEDIA = prompts.MEDIA_KEYS

    input: str | list[str | Message] | None = None
    instructions: Raw = NOTHING
    tools: Raw = NOTHING
    max_output_tokens: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        if self.input is None:
            raise Unparsable("input: missing; a text or a list of items is needed")
        start = prompts.front(self.tools)
        if (instructions := as_text(self.instructions)) is not None:
            start += prompts.dialogue([Message(role="system", content=instructions)])
        return Prompt(start + prompts.dialogue([self.input] if isinstance(self.input, str) else self.input))

    def multimodal(self) -> bool:
        return prompts.has_media(self.input)

    def media(self) -> tuple[Media, ...]:
        return _media(self.input)


class _Conversations(JsonBody):
    """Items that are kept for later: the API has no model, and none reads them now."""

    API = "conversations"
    NEEDS_MODEL = False
    PROMPT = ("items",)

    items: list[Raw] | None = None

    def prompt_of(self) -> Prompt:
        if not self.items:
            raise Unparsable(f"items: {lacking(self.items)}; a non-empty list of items is needed")
        return UNREAD

    def undecoded_prompt(self, body: bytes) -> Prompt:
        return UNREAD


class _Images(JsonBody):
    API = "images"
    PROMPT = ("prompt",)

    prompt: str | None = None
    n: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        if not self.prompt:
            missing = lacking(self.prompt)
            raise Unparsable(f"prompt: {missing}; invalid images generations request: must have prompt field")
        return Prompt(self.prompt.encode())


class _RenderedChat(_Chat):
    """A chat that the server is only to turn into token ids."""

    API = "render"
    RENDERED = True


class _RenderedCompletions(_Completions):
    """A completion that the server is only to turn into token ids."""

    API = "render"
    RENDERED = True


def _media(messages: str | Iterable[Message | str] | None) -> tuple[Media, ...]:
    return media_of((name, value) for name, value in prompts.media_in(messages) if "audio" not in name)


def _plain(field: str, value: TextOrIds | Embeddable | None) -> Prompt:
    if not value:
        raise Unparsable(f"{field}: {lacking(value)}; a text, a list of texts, or token ids are needed")
    try:
        return prompts.plain(value)
    except ValueError as error:
        raise Unparsable(f"{field}: {error}") from error


_APIS: dict[str, type[JsonBody]] = {
    "/chat/completions": _Chat,
    "/completions": _Completions,
    "/embeddings": _Embeddings,
    "/responses": _Responses,
    "/conversations": _Conversations,
    "/images/generations": _Images,
    "/chat/completions/render": _RenderedChat,
    "/completions/render": _RenderedCompletions,
}
_READERS = longest_first({suffix: BodyReader(kind) for suffix, kind in _APIS.items()})


class OpenAIParser(Parser):
    """Reads the JSON bodies of the OpenAI API, with any prefix before the API's path."""

    TYPE = "openai-parser"
    Parameters = JsonParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = tuple(_APIS)
    parameters: JsonParameters

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        for suffix, reader in _READERS:
            if path.endswith(suffix):
                return reader.content(body, self.parameters)
        raise Unparsable(f"{self.TYPE} doesn't read {path}")
