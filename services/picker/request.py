"""The types of a request: headers, parsed content, and its outcome, a route or a refusal."""

from collections.abc import Iterable, Mapping
from itertools import chain
from sys import getsizeof

from msgspec import Struct

_new = object.__new__
_PER_NAME = 150
"""Bytes of memory for a header's name among others, and for the values' tuple."""
_PER_MEDIA = 150


class Headers:
    """Request headers: names in lower case, every value kept in order.

    >>> Headers([("X-Tag", "a"), ("x-tag", "b")]).all("x-tag")
    ('a', 'b')
    """

    __slots__ = ("_values",)

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self._values: dict[str, tuple[str, ...]] = {}
        for name, value in pairs:
            key = name.lower()
            self._values[key] = (*self._values.get(key, ()), value)

    @classmethod
    def of(cls, values: dict[str, tuple[str, ...]]) -> "Headers":
        """Headers that are already gathered: lower-case names, each with its values. Takes the dict over."""
        headers: Headers = _new(cls)
        headers._values = values
        return headers

    def get(self, name: str, default: str = "") -> str:
        """The last value of a header, as proxies and the Go original read it."""
        values = self._values.get(name)
        return values[-1] if values else default

    def first_of(self, names: Iterable[str]) -> str:
        """The value of the first of these headers that is there and not empty."""
        values = self._values
        for name in names:
            if (found := values.get(name)) and found[-1]:
                return found[-1]
        return ""

    def all(self, name: str) -> tuple[str, ...]:
        return self._values.get(name, ())

    def names(self) -> Iterable[str]:
        return self._values.keys()

    def held(self) -> int:
        """Bytes of memory, about: one character beyond U+FFFF makes all of a text take four bytes each."""
        texts = sum(map(getsizeof, self._values)) + sum(map(getsizeof, chain.from_iterable(self._values.values())))
        return texts + _PER_NAME * len(self._values)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __repr__(self) -> str:
        return f"<Headers {len(self._values)} names>"


class Media(Struct, frozen=True):
    """A picture or video of a prompt."""

    marker: bytes = b""
    """What stands for it in the prompt's bytes."""
    width: int = 0
    """Pixels; 0 if that isn't known, as the height."""
    height: int = 0
    video: bool = False


class Content(Struct, frozen=True):
    """What a parser read from a body; every field has a value that means "not known"."""

    api: str = ""
    """What is asked for: `chat`, `completions`, `embeddings`, `responses`, `conversations`, `images`, `messages`,
    `generate`, `render`, `count_tokens`, as the parsers' pages say; empty for a body that isn't interpreted."""
    model: str = ""
    takes_model: bool = False
    """Whether the body has a place for the model's name: it can be put there, and a request without any is wrong."""
    model_fixed: bool = False
    """Whether no other name can be put there: the model isn't rewritten."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that it names beside the model: some servers use them in its place."""
    stream: bool = False
    prompt: bytes = b""
    """What the model will read, in a form that is equal for equal prefixes: text, or 4 bytes a token id; empty when
    there is nothing."""
    prompt_tokens: int | None = None
    """The prompt's tokens where they can be counted: those of token ids. None: not known."""
    parallel: int = 1
    """Sequences that the server generates at once: `n` for each prompt of the request."""
    cache_salt: str = ""
    multimodal: bool = False
    """Whether the prompt has pictures, sounds or videos."""
    media: tuple[Media, ...] = ()
    """These, in their order, where the parser knows them."""
    output_limit: int | None = None
    """The most tokens that the client will take, or None."""
    unread: bool = False
    """Whether no model reads any of it: such a body needs no model."""

    def held(self) -> int:
        """Bytes of memory, about."""
        return len(self.prompt) + sum(map(getsizeof, self.adapters)) + _PER_MEDIA * len(set(map(id, self.media)))


class Request(Struct, frozen=True, kw_only=True):
    """Everything that a decision reads of one request."""

    id: str
    """`x-request-id`, or one that we made. Clients choose it: never a key that two requests could share."""
    headers: Headers
    path: str = ""
    content: Content = Content()
    body_size: int = 0
    """Bytes."""
    body_withheld: bool = False
    """Whether there is, or may be, a body that the proxy keeps to itself."""
    subset: tuple[str, ...] | None = None
    """The gateway's subset hint: `address` or `address:port` entries; None means every endpoint, empty means none."""
    received_at: float = 0.0
    """Monotonic seconds."""


BYTES_PER_TOKEN = 4
"""The reference's estimate where nobody tokenizes: four bytes of text are a token."""


def prompt_tokens(request: Request) -> int:
    """The request's prompt in tokens: those that its parser counted, else the reference's estimate; at least 1."""
    content = request.content
    counted = content.prompt_tokens
    if counted is None:
        counted = (len(content.prompt) or request.body_size) // BYTES_PER_TOKEN
    return counted if counted > 1 else 1


class Route(Struct, frozen=True, kw_only=True):
    """Where a request goes, and what changes on the way."""

    destinations: tuple[str, ...]
    """`address:port`, the first choice first, then the fallbacks."""
    set_headers: Mapping[str, str] = {}
    scores: Mapping[str, float] = {}
    """Total scores by `address:port`, for the proxy."""
    target_model: str | None = None
    """The model name to put into the body, when it isn't the client's."""
    client_model: str = ""
    """The client's model name, which the response is to have again; empty where the request named none."""


RETRY_AFTER = 1
"""Seconds. Scrapes and scaling soon change an empty or full pool, and what made a plugin fail may pass."""


class Refusal(Struct, frozen=True, kw_only=True):
    """A request that is answered instead of routed."""

    status: int
    """HTTP status: 4xx, 429 or 503."""
    message: str
    kept: str = ""
    """The message as it is kept and logged, where it quotes the request's body; empty: as it is."""
    kind: str = "invalid_request_error"
    """`error.type` of a body in OpenAI's form; Anthropic's goes by the status."""
    reason: str = ""
    """Value of the dropped-reason header, e.g. `rejected-saturated`."""
    retry_after: int | None = None
    """Seconds."""


MODEL_SHOWN = 256
"""Characters of a model's name that an error repeats."""


def unknown_model(model: str, why: str) -> Refusal:
    """The refusal of a request for a model that isn't available here; `why` continues the sentence after its name."""
    return Refusal(status=404, message=f"model: {model[:MODEL_SHOWN]!r} is {why}", kind="model_not_found")


class Unparsable(Exception):
    """A body that the model server would refuse; its text is what the client reads."""

    def __init__(self, message: str, kept: str = "") -> None:
        """`kept` is what may be kept of a message that quotes the body; empty: all of it."""
        super().__init__(message)
        self.kept = kept
