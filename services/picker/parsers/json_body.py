"""Reads the bodies of JSON APIs: what they have in common, and how a body becomes the request's content.

Each API's struct has a coarse twin, for bodies that take long to decode: it keeps the fields of the prompt as JSON text
and decodes none of them.

A missing model isn't an error here, because a rewrite may supply it.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import xxhash
from msgspec import Raw, Struct, defstruct, json

from services.picker.parsers.json_values import NOTHING, JsonParameters, as_count, as_text, given, read, shown
from services.picker.parsers.prompts import Prompt, undecoded
from services.picker.request import Content, Media, Unparsable

UNREAD = Prompt(tokens=0)
"""The prompt of a request that no model reads."""
MAX_NAME = 64 * 2**10
"""Bytes of a model's name that are ever decoded: what limits names limits them to less."""
_MAX_SALT = 1024
"""Bytes of a cache salt; the digest of a longer one stands for it."""
MAX_ADAPTERS = 4 * MAX_NAME
"""Bytes of a list of adapters that is decoded."""
_MAX_DIFFERENT = 256
"""Adapters of a request that are told apart."""
_ESCAPED = 6
"""Bytes that one of a text takes at most in JSON, escaped."""
_MEDIA_SEEN = 2**20
"""Bytes of a field of the coarse twin that tell whether there are pictures."""
TRANSFERS = (
    *("kv_transfer_params", "ec_transfer_params"),  # vLLM
    *("bootstrap_host", "bootstrap_port", "bootstrap_room"),  # SGLang
    "disaggregated_params",  # TensorRT-LLM
)
"""Fields by which a model server learns from which others it takes KV blocks or embeddings: set by a sidecar or an
orchestrator behind the picker."""
TAKES_DATA = "it says from which servers a model server takes data"
_OPTIONS = "lmcache."
"""How those of them begin that are a client's own: LMCache's in `kv_transfer_params`."""
_MAX_OPTIONS = 64 * 2**10
_TRUE = Raw(b"true")
_decode_adapters = json.Decoder(str | list[str | None]).decode
_decode_object = json.Decoder(dict[str, Raw]).decode


class EngineArguments(Struct):
    """Those of vLLM's engine that no client sets."""

    kv_transfer_params: Raw = NOTHING
    ec_transfer_params: Raw = NOTHING

    def refuse_transfers(self) -> None:
        """Raises `Unparsable` for one that is given."""
        refuse_transfer("kv_transfer_params", self.kv_transfer_params)
        refuse_transfer("ec_transfer_params", self.ec_transfer_params)


class JsonBody(Struct):
    """Fields of every API, kept as they were sent. Each API adds its own."""

    API: ClassVar[str]
    """Its name in `Content`."""
    NEEDS_MODEL: ClassVar[bool] = True
    PROMPT: ClassVar[tuple[str, ...]] = ()
    """The fields that hold what the model will read, in that order."""
    PLAIN: ClassVar[str] = ""
    """The one of them that may be token ids, or several prompts."""
    OUTPUT_LIMITS: ClassVar[tuple[str, ...]] = ()
    """The fields that say how many tokens the client takes; the first one that is there counts."""
    MEDIA: ClassVar[tuple[bytes, ...]] = ()
    """Keys of pictures, sounds and videos, as JSON has them."""
    RENDERED: ClassVar[bool] = False
    """Whether the server only turns the prompt into token ids."""

    model: Raw = NOTHING
    stream: Raw = NOTHING
    cache_salt: Raw = NOTHING
    lora_path: Raw = NOTHING
    """SGLang's: an adapter, or one for each prompt. vLLM skips it."""
    kv_transfer_params: Raw = NOTHING
    ec_transfer_params: Raw = NOTHING
    bootstrap_host: Raw = NOTHING
    bootstrap_port: Raw = NOTHING
    bootstrap_room: Raw = NOTHING
    disaggregated_params: Raw = NOTHING
    vllm_xargs: EngineArguments | None = None
    """vLLM passes them on to its engine as they are."""

    def refuse_transfers(self) -> None:
        """Raises `Unparsable` for what names servers from which the model server would take data."""
        for name in TRANSFERS:
            value = getattr(self, name)
            if value is not NOTHING:
                refuse_transfer(name, value)
        if self.vllm_xargs is not None:
            self.vllm_xargs.refuse_transfers()

    def prompt_of(self) -> Prompt:
        """What the model will read. Raises `Unparsable` when there is nothing to read."""
        raise NotImplementedError

    def undecoded_prompt(self, body: bytes) -> Prompt:
        """The same of the coarse twin, which was decoded from this body. What is missing is for the server to say."""
        return undecoded(body, [(getattr(self, name), name == self.PLAIN) for name in self.PROMPT])

    def multimodal(self) -> bool:
        """Whether the prompt has pictures, sounds or videos."""
        return False

    def media(self) -> tuple[Media, ...]:
        """The pictures and videos, in their order; only asked for if the prompt is multimodal."""
        return ()

    def undecoded_multimodal(self) -> bool:
        """The same of the coarse twin, by the keys in the beginning of each field."""
        beginnings = [bytes(memoryview(getattr(self, name))[:_MEDIA_SEEN]) for name in self.PROMPT if self.MEDIA]
        return any(key in text for text in beginnings for key in self.MEDIA)

    def output_limit(self) -> int | None:
        """The most tokens that the client takes; None when it doesn't say."""
        for name in self.OUTPUT_LIMITS:
            if (limit := as_count(getattr(self, name))) is not None:
                return limit
        return None

    def sequences(self) -> int | None:
        """How many answers the client asks for: `n`, in the APIs that have it. None when it doesn't say."""
        return as_count(getattr(self, "n", NOTHING))

    def content(self, prompt: Prompt | None = None) -> Content:
        """What the body says; `prompt` where it is known already. Raises `Unparsable` with the field that is wrong."""
        model = name_of("model", self.model)
        media: tuple[Media, ...] = ()
        if prompt is None:
            prompt, multimodal = self.prompt_of(), self.multimodal()
            media = self.media() if multimodal else ()
        else:
            multimodal = self.undecoded_multimodal()
            media = (Media(),) if multimodal else ()  # one at least
        takes_model = self.NEEDS_MODEL or bool(model)
        if self.RENDERED:
            return Content(api=self.API, model=model, takes_model=takes_model, unread=True, prompt_tokens=UNREAD.tokens)
        return Content(
            api=self.API,
            model=model,
            takes_model=takes_model,
            unread=prompt is UNREAD,
            adapters=adapter_names(self.lora_path),
            stream=self.stream == _TRUE,
            prompt=prompt.text,
            prompt_tokens=prompt.tokens,
            parallel=(self.sequences() or 1) * prompt.count,
            cache_salt=self.salt(),
            multimodal=multimodal,
            media=media,
            output_limit=self.output_limit(),
        )

    def salt(self) -> str:
        """What keeps equal prompts apart in the server's cache; empty when nothing does."""
        return salt_of(self.cache_salt)


def name_of(field: str, value: Raw) -> str:
    """The model's name in a field; empty where there is none. Raises `Unparsable` for anything else."""
    if value is not NOTHING and (size := len(memoryview(value))) > MAX_NAME * _ESCAPED:
        raise Unparsable(f"{field}: the name has {size} bytes; the limit is {MAX_NAME}")
    name = as_text(value)
    if name is None and given(value):
        wrong, needed = f"{field}: not a string", "a model name is needed"
        raise Unparsable(f"{wrong}: {shown(value)}; {needed}", kept=f"{wrong}; {needed}")
    return name or ""


def refuse_transfer(name: str, value: Raw) -> None:
    """Raises `Unparsable` for one of the `TRANSFERS` that is given, unless it has only options of LMCache."""
    if given(value) and not (name == "kv_transfer_params" and _is_options(value)):
        raise Unparsable(f"{name}: not taken from clients: {TAKES_DATA}")


def _is_options(value: Raw) -> bool:
    if len(memoryview(value)) > _MAX_OPTIONS:
        return False
    try:
        return all(name.startswith(_OPTIONS) for name in _decode_object(value))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def adapter_names(lora_path: Raw) -> tuple[str, ...]:
    """The adapters that `lora_path` names; what can't be read, or names too many, is one, as it was sent."""
    if not given(lora_path):
        return ()
    if len(memoryview(lora_path)) > MAX_ADAPTERS:
        return (shown(lora_path),)
    try:
        found = _decode_adapters(lora_path)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return (shown(lora_path),)
    names = dict.fromkeys(name for name in ([found] if isinstance(found, str) else found) if name)
    return tuple(names) if len(names) <= _MAX_DIFFERENT else (shown(lora_path),)


def salt_of(salt: Raw) -> str:
    """A cache salt; the digest of a long one."""
    if salt is not NOTHING and len(memoryview(salt)) > _MAX_SALT:
        return xxhash.xxh3_128_hexdigest(salt)
    return as_text(salt) or ""


class BodyReader:
    """Reads the bodies of one API."""

    def __init__(self, kind: type[JsonBody]) -> None:
        self._kind = kind
        self._coarse = defstruct(
            f"Coarse{kind.__name__}", [(name, Raw, NOTHING) for name in kind.PROMPT], bases=(kind,)
        )
        self._decode: Callable[[bytes], JsonBody] = json.Decoder(kind).decode
        self._decode_coarsely: Callable[[bytes], Any] = json.Decoder(self._coarse).decode

    def content(self, body: bytes, most: JsonParameters) -> Content:
        """What a body says. Raises `Unparsable`."""
        found: JsonBody = read(self._decode, body, most, self._decode_coarsely)
        if not most.transfer_parameters:
            found.refuse_transfers()
        return found.content(found.undecoded_prompt(body) if isinstance(found, self._coarse) else None)
