"""Makes engine requests from bodies of the OpenAI API, including the answer that the model will give.

Fields without a meaning here (temperature, logprobs, …) are accepted and ignored, as are unknown ones.
"""

from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from services.simulator.api_error import bad_request, unknown_model
from services.simulator.counters import FinishReason
from services.simulator.kv_transfer import KvTransferParams, transferred
from services.simulator.sequence import EngineRequest
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import (
    BYTES_PER_TOKEN,
    Message,
    Prompt,
    answer_bytes,
    answer_length,
    fingerprint,
    from_ids,
    from_messages,
    from_text,
)

MAX_CHOICES = 128
"""Choices of a call at most, as in OpenAI's limit of `n`."""
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default `max_tokens` of a completion."""

PromptInput: TypeAlias = str | list[str | int | list[int]]
"""A text, texts, token ids, or lists of token ids."""


class StreamOptions(Struct, frozen=True):
    """OpenAI `stream_options`."""

    include_usage: bool | None = None


class GenerationBody(Struct, frozen=True, kw_only=True):
    """The common fields of chats and completions."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    """vLLM's extension: the answer has exactly `max_tokens` tokens."""
    kv_transfer_params: KvTransferParams | None = None
    """vLLM's extension: which server computes the prompt, and which decodes."""


class ChatBody(GenerationBody, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: Any = None


class CompletionBody(GenerationBody, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: PromptInput


class EmbeddingBody(Struct, frozen=True, kw_only=True):
    """`POST /v1/embeddings`."""

    model: str
    input: PromptInput
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None


class Choice(Struct, frozen=True, kw_only=True):
    """One answer: its engine request, and the text that the client gets."""

    index: int
    request: EngineRequest
    text: str
    """The answer up to the stop string."""
    stop: str = ""
    """The stop string that ends it; empty if none does."""


class Call(Struct, frozen=True, kw_only=True):
    """A valid API call, ready for the engine."""

    kind: Literal["chat", "completion", "embedding", "message", "response"]
    id: str
    model: str
    choices: tuple[Choice, ...]
    stream: bool = False
    include_usage: bool = False
    base64: bool = False
    dimensions: int = 0
    transfer: KvTransferParams | None = None

    @property
    def engine_requests(self) -> list[EngineRequest]:
        return [choice.request for choice in self.choices]


B = TypeVar("B", bound=Struct)


def chat(body: bytes, id: str, settings: SimulatorSettings) -> Call:
    """The call of a chat. Raises `ApiError` for bodies that vLLM rejects, too."""
    parsed = decode(body, ChatBody)
    if not parsed.messages:
        raise bad_request("messages: [] has no message; at least one is expected", "messages")
    prompt = from_messages(parsed.messages, parsed.tools)
    limit = parsed.max_tokens if parsed.max_completion_tokens is None else parsed.max_completion_tokens
    name = "max_tokens" if parsed.max_completion_tokens is None else "max_completion_tokens"
    return generation("chat", f"chatcmpl-{id}", parsed, [prompt], limit, name, settings)


def completion(body: bytes, id: str, settings: SimulatorSettings) -> Call:
    """The call of a completion. Raises `ApiError`."""
    parsed = decode(body, CompletionBody)
    limit = DEFAULT_COMPLETION_TOKENS if parsed.max_tokens is None else parsed.max_tokens
    prompts = _prompts(parsed.prompt, "prompt")
    return generation("completion", f"cmpl-{id}", parsed, prompts, limit, "max_tokens", settings)


def embedding(body: bytes, id: str, settings: SimulatorSettings) -> Call:
    """The call of an embedding. Raises `ApiError`."""
    parsed = decode(body, EmbeddingBody)
    adapter = adapter_of(parsed.model, settings)
    dimensions = settings.embedding_dimensions if parsed.dimensions is None else parsed.dimensions
    if not 1 <= dimensions <= settings.embedding_dimensions:
        raise bad_request(
            f"dimensions: {dimensions} is out of range; 1 to {settings.embedding_dimensions} is expected", "dimensions"
        )
    id = f"embd-{id}"
    choices = tuple(
        Choice(
            index=index,
            request=EngineRequest(
                id=f"{id}-{index}", prompt=prompt, adapter=adapter, finish=FinishReason.STOP, choices=not index
            ),
            text="",
        )
        for index, prompt in enumerate(_prompts(parsed.input, "input"))
    )
    for choice in choices:
        _check_length(choice.request.prompt, 0, settings)
    return Call(
        kind="embedding",
        id=id,
        model=parsed.model,
        choices=choices,
        base64=parsed.encoding_format == "base64",
        dimensions=dimensions,
    )


def generation(
    kind: Literal["chat", "completion", "message", "response"],
    id: str,
    body: GenerationBody,
    prompts: list[Prompt],
    limit: int | None,
    limit_name: str,
    settings: SimulatorSettings,
) -> Call:
    """The call of a body with these prompts, each limited to `limit` output tokens. Raises `ApiError`."""
    adapter = adapter_of(body.model, settings)
    n = 1 if body.n is None else body.n
    if not 1 <= n * len(prompts) <= MAX_CHOICES:
        raise bad_request(f"n: {n} for {len(prompts)} prompt(s); 1 to {MAX_CHOICES} choices are expected", "n")
    if limit is not None and limit < 1:
        raise bad_request(f"{limit_name}: {limit} is too small; at least 1 is expected", limit_name)
    stops = [stop for stop in ([body.stop] if isinstance(body.stop, str) else body.stop or []) if stop]
    choices: list[Choice] = []
    for prompt in prompts:
        _check_length(prompt, limit or 1, settings)
        room = settings.context_length - prompt.tokens
        for _ in range(n):
            index = len(choices)
            allowed = room if limit is None else limit
            text, tokens, finish, stop = _answer(prompt, index % n, allowed, stops, bool(body.ignore_eos), settings)
            request = EngineRequest(
                id=f"{id}-{index}",
                prompt=prompt,
                output=tokens,
                finish=finish,
                adapter=adapter,
                stream=bool(body.stream),
                max_tokens=allowed,
                choices=0 if index else n,
                transferred=transferred(body.kv_transfer_params, prompt.tokens),
                remote_cached=body.kv_transfer_params.remote_cached_tokens if body.kv_transfer_params else None,
            )
            choices.append(Choice(index=index, request=request, text=text, stop=stop))
    options = body.stream_options
    return Call(
        kind=kind,
        id=id,
        model=body.model,
        choices=tuple(choices),
        stream=bool(body.stream),
        include_usage=bool(options and options.include_usage),
        transfer=body.kv_transfer_params,
    )


def _answer(
    prompt: Prompt, choice: int, allowed: int, stops: list[str], ignore_eos: bool, settings: SimulatorSettings
) -> tuple[str, bytes, FinishReason, str]:
    """The visible text, the tokens of the whole answer, the finish reason, and the stop string if one ends it."""
    mark = fingerprint(prompt, settings.seed, choice)
    natural = allowed if ignore_eos else min(allowed, answer_length(mark, settings.output_tokens))
    tokens = answer_bytes(mark, natural)
    text = tokens.decode()
    finish = FinishReason.STOP if natural < allowed else FinishReason.LENGTH
    found = [(position, len(stop), stop) for stop in stops if (position := text.find(stop)) >= 0]
    if found:
        cut, length, stop = min(found)
        tokens = tokens[: -(-(cut + length) // BYTES_PER_TOKEN) * BYTES_PER_TOKEN]
        return text[:cut], tokens, FinishReason.STOP, stop
    return text, tokens, finish, ""


def adapter_of(model: str, settings: SimulatorSettings) -> str:
    """The adapter of that name; empty for a base model. Raises `ApiError` for an unknown model."""
    if model in settings.adapters:
        return model
    if model not in settings.models:
        raise unknown_model(model)
    return ""


def _check_length(prompt: Prompt, output: int, settings: SimulatorSettings) -> None:
    if prompt.tokens + output > settings.context_length:
        raise bad_request(
            f"This model's maximum context length is {settings.context_length} tokens. However, {output} output tokens "
            f"were requested and the prompt has {prompt.tokens} tokens."
        )


def _prompts(given: PromptInput, name: str) -> list[Prompt]:
    if isinstance(given, str):
        return [from_text(given)]
    ids = [id for id in given if isinstance(id, int)]
    if not given or [] in given:
        raise bad_request(f"{name}: an empty list has no prompt; text or token ids are expected", name)
    if ids and len(ids) < len(given):
        raise bad_request(f"{name}: token ids and prompts are mixed; one kind is expected", name)
    try:
        if ids:
            return [from_ids(ids)]
        return [
            from_text(prompt) if isinstance(prompt, str) else from_ids(prompt)
            for prompt in given
            if not isinstance(prompt, int)
        ]
    except ValueError as error:
        raise bad_request(f"{name}: {error}", name) from error


def decode(body: bytes, kind: type[B]) -> B:
    """Decode a body. Raises `ApiError` that names the field."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = str(error)
        _, at, path = text.removesuffix("`").rpartition(" - at `$")
        raise bad_request(text, path.removeprefix(".") if at else None) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not JSON: {error}") from error
