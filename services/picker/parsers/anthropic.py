"""`anthropic-parser`: the Messages API of Anthropic, as vLLM and SGLang serve it beside OpenAI's.

The same conversation has the same prompt here and under `/chat/completions`, as long as it has neither tools nor
thoughts: it is the same to a server's cache.
"""

from collections.abc import Iterable, Iterator
from typing import ClassVar

from msgspec import Raw, Struct, json

from services.picker.parsers import prompts
from services.picker.parsers.json_body import UNREAD, BodyReader, JsonBody
from services.picker.parsers.json_values import NOTHING, JsonParameters, as_text, given, lacking, read
from services.picker.parsers.media import media_of
from services.picker.parsers.parser import Parser
from services.picker.parsers.prompts import Prompt
from services.picker.request import Content, Headers, Media, Unparsable

_MESSAGES = "/messages"
_COUNT_TOKENS = "/messages/count_tokens"
_ATTRIBUTION = "x-anthropic-billing-header"
"""Beginning of a system text in which Claude Code names itself and a hash of the request. Servers drop it: it would
make every prompt a new one."""


class _Piece(Struct):
    """A block of content, or of a tool's result."""

    text: str | None = None
    thinking: str | None = None
    source: Raw = NOTHING
    """Of a picture or document."""
    name: Raw = NOTHING
    """Of a tool that is called, with its input."""
    input: Raw = NOTHING
    tool_name: Raw = NOTHING


class _Block(_Piece):
    content: str | list[_Piece] | None = None
    """Of a tool's result."""


class _Message(Struct):
    role: str | None = None
    content: str | list[_Block] | None = None


class _Messages(JsonBody):
    API = "messages"
    PROMPT = ("tools", "chat_template_kwargs", "system", "messages")
    OUTPUT_LIMITS = ("max_tokens",)
    MEDIA = (b'"source"',)

    messages: list[_Message] | None = None
    system: str | list[_Block] | None = None
    tools: Raw = NOTHING
    chat_template_kwargs: Raw = NOTHING
    max_tokens: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        if not self.messages:
            missing = lacking(self.messages)
            raise Unparsable(f"messages: {missing}; invalid messages request: must have at least one message")
        pieces = [prompts.front(self.tools, self.chat_template_kwargs)]
        if (system := self.system) is not None:
            if not isinstance(system, str):
                system = [block for block in system if not (block.text or "").startswith(_ATTRIBUTION)]
            pieces += (b"system\n", _laid_out(system), b"\n")
        for message in self.messages:
            pieces += ((message.role or "").encode(), b"\n", _laid_out(message.content), b"\n")
        return Prompt(b"".join(pieces))

    def multimodal(self) -> bool:
        return any(
            type(message.content) is list and any(map(_has_source, message.content)) for message in self.messages or ()
        )

    def media(self) -> tuple[Media, ...]:
        blocks = [message.content for message in self.messages or () if type(message.content) is list]
        return media_of(("source", source) for content in blocks for source in _sources(content))


def _sources(blocks: Iterable[_Piece]) -> Iterator[Raw]:
    for block in blocks:
        if isinstance(block, _Block) and type(block.content) is list:
            yield from _sources(block.content)
        elif given(block.source):
            yield block.source


def _has_source(block: _Piece) -> bool:
    """Whether it is a picture or a document, or a tool's result with one."""
    if isinstance(block, _Block) and type(block.content) is list and any(map(_has_source, block.content)):
        return True
    return given(block.source)


class _Counted(Struct):
    """A body whose tokens are to be counted: only its model matters, which has to be the one of the messages."""

    model: Raw = NOTHING


class AnthropicParser(Parser):
    """Reads the bodies of Anthropic's Messages API, and passes requests to count tokens."""

    TYPE = "anthropic-parser"
    Parameters = JsonParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = (_MESSAGES, _COUNT_TOKENS)
    parameters: JsonParameters

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        if path.endswith(_COUNT_TOKENS):
            return self._count_content(body)
        return _READER.content(body, self.parameters)

    def _count_content(self, body: bytes) -> Content:
        """Nothing of it is generated and nothing can be wrong with it here: whatever it is, the server answers it."""
        try:
            model = as_text(read(_decode_counted, body, self.parameters).model) or ""
        except Unparsable:  # a server may be less strict, and find a model there
            return Content(api="count_tokens", prompt_tokens=UNREAD.tokens)
        return Content(
            api="count_tokens", model=model, takes_model=bool(model), unread=True, prompt_tokens=UNREAD.tokens
        )


_READER = BodyReader(_Messages)
_decode_counted = json.Decoder(_Counted).decode


def _laid_out(content: str | Iterable[_Piece] | None) -> bytes:
    if content is None:
        return b""
    if isinstance(content, str):
        return content.encode()
    return b"\n".join([_block(block) for block in content])


def _block(block: _Piece) -> bytes:
    for text in (block.text, block.thinking):
        if text is not None:
            return text.encode()
    if isinstance(block, _Block) and block.content is not None:
        return _laid_out(block.content)
    if given(block.source):
        return prompts.digest_of("source", block.source)
    return b"".join([bytes(field) for field in (block.name, block.input, block.tool_name) if given(field)])
