"""Checks responses: the requested model, the requested number of tokens, and complete to the last event."""

from typing import Any

import msgspec
from msgspec import Struct

from pointsman.demo.workload import Request

_DATA = b"data: "
_DONE = b"[DONE]"


class PromptDetails(Struct, frozen=True):
    """OpenAI's `usage.prompt_tokens_details`."""

    cached_tokens: int = 0


class Usage(Struct, frozen=True):
    """OpenAI's `usage`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


class Choice(Struct, frozen=True):
    """A choice of a chat (`message`, `delta`) or of a completion (`text`)."""

    message: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def content(self) -> str:
        part = self.message if self.message is not None else self.delta
        return str((part.get("content") if part is not None else self.text) or "")


class Chunk(Struct, frozen=True):
    """A whole response, or one event of a streamed one."""

    model: str
    choices: list[Choice]
    usage: Usage | None = None


_decoder = msgspec.json.Decoder(Chunk)


class ResponseCheck:
    """A response as it arrives; `begun` is set with the first text that a user can see."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._rest = b""
        self._finish: str | None = None
        self._done = False
        self._problem = ""
        self.usage = Usage()
        self.begun = False

    def feed(self, data: bytes) -> None:
        """Add the next bytes of the body."""
        self._rest += data
        if not self._request.stream:
            return
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            self._event(event)

    def verdict(self) -> str:
        """What is wrong with the complete response; empty if it is right."""
        if not self._request.stream:
            self._chunk(self._rest)
        elif not self._problem and not self._done:
            self._problem = "the stream ended without [DONE]"
        return self._problem or self._check()

    def _event(self, event: bytes) -> None:
        if not event.startswith(_DATA):
            self._problem = self._problem or f"not an event: {event[:80]!r}"
        elif event[len(_DATA) :] == _DONE:
            self._done = True
        else:
            self._chunk(event[len(_DATA) :])

    def _chunk(self, data: bytes) -> None:
        try:
            chunk = _decoder.decode(data)
        except msgspec.MsgspecError as error:
            self._problem = self._problem or f"{error}: {data[:80]!r}"
            return
        if chunk.model != self._request.model:
            self._problem = self._problem or f"model {chunk.model!r} instead of {self._request.model!r}"
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            self._finish = choice.finish_reason or self._finish
            self.begun = self.begun or bool(choice.content)

    def _check(self) -> str:
        if self.usage.completion_tokens != self._request.tokens:
            return f"{self.usage.completion_tokens} tokens instead of {self._request.tokens}"
        if self._finish != "length":
            return f"finish_reason {self._finish!r} instead of 'length'"
        return "" if self.begun else "the response has no text"

    def __repr__(self) -> str:
        return f"<ResponseCheck of request {self._request.number}, begun={self.begun}, {self._problem or 'no problem'}>"
