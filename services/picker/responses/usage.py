"""The token usage of a response, in the spellings of the OpenAI and Anthropic APIs, and of SGLang's own."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_PROMPT = ("prompt_tokens", "input_tokens")
_COMPLETION = ("completion_tokens", "output_tokens")
_DETAILS = ("prompt_tokens_details", "input_tokens_details", "prompt_token_details")
"""Where the OpenAI APIs tell cached tokens: chat and completions, responses, and a spelling of the Go original."""
_ANTHROPIC_CACHED = "cache_read_input_tokens"
_ANTHROPIC_WRITTEN = "cache_creation_input_tokens"
_MOST = 2**53


class Usage(Struct, frozen=True):
    """Token counts of one response; None for what it didn't say."""

    prompt: int | None = None
    """All tokens of the prompt, cached ones included."""
    completion: int | None = None
    cached: int | None = None
    """Tokens of the prompt that were in the KV cache."""

    def merged(self, newer: "Usage") -> "Usage":
        """What is known after a later report, which may say only a part."""
        return Usage(
            self.prompt if newer.prompt is None else newer.prompt,
            self.completion if newer.completion is None else newer.completion,
            self.cached if newer.cached is None else newer.cached,
        )


NOTHING = Usage()


def read_usage(raw: Any) -> Usage:
    """The counts in a decoded `usage` object. What isn't a count, or isn't an object at all, says nothing."""
    if not isinstance(raw, Mapping):
        return NOTHING
    prompt = _first(raw, _PROMPT)
    cached = None
    for name in _DETAILS:
        details = raw.get(name)
        if cached is None and isinstance(details, Mapping):
            cached = _count(details.get("cached_tokens"))
    if _ANTHROPIC_CACHED in raw or _ANTHROPIC_WRITTEN in raw:
        # This API's input_tokens are those that weren't read from the cache, nor written to it.
        cached = _count(raw.get(_ANTHROPIC_CACHED)) or 0
        if prompt is not None:
            prompt += cached + (_count(raw.get(_ANTHROPIC_WRITTEN)) or 0)
    return Usage(prompt, _first(raw, _COMPLETION), cached)


def read_meta_info(raw: Any) -> Usage:
    """The counts in a decoded `meta_info` of SGLang's own API."""
    if not isinstance(raw, Mapping):
        return NOTHING
    return Usage(*(_count(raw.get(name)) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")))


def _first(raw: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((count for name in names if (count := _count(raw.get(name))) is not None), None)


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _MOST:
        return None
    return int(value) if value == int(value) else None
