"""`sglanghttp-parser`: SGLang's own `/generate`, which takes token ids or texts.

Ids are the prompt itself, so its blocks are the very blocks of the server's cache. `extra_key` keeps prompts of
different tenants apart there, as a cache salt does.
"""

from typing import ClassVar, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from services.picker.parsers import prompts
from services.picker.parsers.json_body import MAX_ADAPTERS, BodyReader, JsonBody, name_of, salt_of
from services.picker.parsers.json_values import NOTHING, JsonParameters, as_count, given, lacking
from services.picker.parsers.parser import Parser
from services.picker.parsers.prompts import Prompt, TextOrIds
from services.picker.request import Content, Headers, Unparsable

_decode_adapters = msgspec.json.Decoder(list[str | None]).decode


class _Sampling(Struct):
    max_new_tokens: Raw = NOTHING
    n: Raw = NOTHING


class _Generate(JsonBody):
    API = "generate"
    NEEDS_MODEL = False
    PROMPT = ("text", "input_ids")
    PLAIN = "input_ids"

    input_ids: list[int | list[int]] | None = None
    text: str | list[str] | None = None
    input_embeds: Raw = NOTHING
    image_data: Raw = NOTHING
    extra_key: Raw = NOTHING
    sampling_params: _Sampling | list[Raw] | None = None
    """A list has one for each prompt of the request."""

    def prompt_of(self) -> Prompt:
        read = cast(TextOrIds | None, self.input_ids or self.text)
        if not read and given(self.input_embeds):
            return Prompt()
        if not read:
            raise Unparsable(f"input_ids: {lacking(self.input_ids)}; token ids, or a text, are needed")
        try:
            return prompts.plain(read)
        except ValueError as error:
            raise Unparsable(f"input_ids: {error}") from error

    def content(self, prompt: Prompt | None = None) -> Content:
        """Where an adapter is named, it is the model: the server reads it there and nowhere else."""
        found, adapter = super().content(prompt), self._adapter_as_model()
        return replace(found, model=adapter, takes_model=False, model_fixed=True) if adapter else found

    def _adapter_as_model(self) -> str:
        if not given(self.lora_path) or bytes(memoryview(self.lora_path)[:1]) != b"[":
            return name_of("lora_path", self.lora_path)
        if (size := len(memoryview(self.lora_path))) > MAX_ADAPTERS:
            raise Unparsable(f"lora_path: the list has {size} bytes; the limit is {MAX_ADAPTERS}")
        try:
            adapters = {name or "" for name in _decode_adapters(self.lora_path)}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unparsable("lora_path: not a list of names; an adapter for each prompt is needed") from error
        if len(adapters) > 1:
            raise Unparsable("lora_path: a list of several adapters; the same one for each prompt is needed")
        return "".join(adapters)

    def multimodal(self) -> bool:
        return given(self.image_data)

    def undecoded_multimodal(self) -> bool:
        return given(self.image_data)

    def output_limit(self) -> int | None:
        return as_count(self.sampling_params.max_new_tokens) if isinstance(self.sampling_params, _Sampling) else None

    def sequences(self) -> int | None:
        return as_count(self.sampling_params.n) if isinstance(self.sampling_params, _Sampling) else None

    def salt(self) -> str:
        """Pictures stand beside the prompt: those with others share no blocks."""
        pictures = prompts.digest_of("image", self.image_data).decode() if self.multimodal() else ""
        salt = salt_of(self.extra_key)
        if not salt and given(self.extra_key):  # a list has one for each prompt of the request
            salt = prompts.digest_of("keys", self.extra_key).decode()
        return salt + pictures


_READER = BodyReader(_Generate)


class SglangHttpParser(Parser):
    """Reads the bodies of SGLang's own API."""

    TYPE = "sglanghttp-parser"
    Parameters = JsonParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = ("/generate",)
    parameters: JsonParameters

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return _READER.content(body, self.parameters)
