"""The token usage of a response, in the spellings of the OpenAI and Anthropic APIs, and of SGLang's own."""

import msgspec
from msgspec import Raw, Struct

from services.picker.parsers.json_values import NOTHING as ABSENT
from services.picker.parsers.json_values import as_count


class _Details(Struct):
    cached_tokens: Raw = ABSENT


class _Reported(Struct):
    """Members are kept as they were sent, and others are skipped: a number such as 1e308 takes 10 µs to decode."""

    prompt_tokens: Raw = ABSENT
    input_tokens: Raw = ABSENT
    completion_tokens: Raw = ABSENT
    output_tokens: Raw = ABSENT
    prompt_tokens_details: Raw = ABSENT
    """Cached tokens in the OpenAI APIs: of chat and completions here, of responses and in a spelling of the Go original
    in the next two."""
    input_tokens_details: Raw = ABSENT
    prompt_token_details: Raw = ABSENT
    cache_read_input_tokens: Raw = ABSENT
    """Anthropic's, as the next one."""
    cache_creation_input_tokens: Raw = ABSENT
    cached_tokens: Raw = ABSENT
    """SGLang's, in `meta_info`."""


_decode = msgspec.json.Decoder(_Reported).decode
_decode_details = msgspec.json.Decoder(_Details).decode


class Usage(Struct, frozen=True):
    """Token counts of one response; None for counts that it didn't report."""

    prompt: int | None = None
    """All tokens of the prompt, cached ones included."""
    completion: int | None = None
    cached: int | None = None
    """Tokens of the prompt that were in the KV cache."""

    def merged(self, newer: "Usage") -> "Usage":
        """The counts after a later report, which may be partial."""
        return Usage(
            self.prompt if newer.prompt is None else newer.prompt,
            self.completion if newer.completion is None else newer.completion,
            self.cached if newer.cached is None else newer.cached,
        )


NOTHING = Usage()


def read_usage(report: Raw) -> Usage:
    """The counts in a `usage` object, or whatever it is. Anything but a count is ignored. Raises msgspec.DecodeError,
    UnicodeDecodeError and RecursionError."""
    if not is_object(report):
        return NOTHING
    found = _decode(report)
    prompt = _first(found.prompt_tokens, found.input_tokens)
    details = (found.prompt_tokens_details, found.input_tokens_details, found.prompt_token_details)
    cached = _first(*(_decode_details(member).cached_tokens for member in details if is_object(member)))
    read, written = found.cache_read_input_tokens, found.cache_creation_input_tokens
    if read is not ABSENT or written is not ABSENT:
        # This API's input_tokens are those that weren't read from the cache, nor written to it.
        cached = as_count(read) or 0
        if prompt is not None:
            prompt += cached + (as_count(written) or 0)
    return Usage(prompt, _first(found.completion_tokens, found.output_tokens), cached)


def read_meta_info(report: Raw) -> Usage:
    """The counts in a `meta_info` of SGLang's own API. Raises as `read_usage`."""
    if not is_object(report):
        return NOTHING
    found = _decode(report)
    return Usage(as_count(found.prompt_tokens), as_count(found.completion_tokens), as_count(found.cached_tokens))


def is_object(value: Raw) -> bool:
    """Whether a JSON value is an object."""
    return bytes(memoryview(value)[:1]) == b"{"


def _first(*values: Raw) -> int | None:
    return next((count for value in values if (count := as_count(value)) is not None), None)
