"""`vllmhttp-parser`: vLLM's `/inference/v1/generate`, which takes token ids and gives token ids.

The prompt is the ids themselves, so its blocks are the very blocks of the server's cache. Pictures in it all look alike
to the ids; the hashes that come with them tell them apart.
"""

from collections.abc import Iterator
from typing import ClassVar

from msgspec import Raw, Struct

from services.picker.parsers.json_body import BodyReader, EngineArguments, JsonBody
from services.picker.parsers.json_values import NOTHING, JsonParameters, as_count, lacking
from services.picker.parsers.parser import Parser
from services.picker.parsers.prompts import Placeholder, Prompt, pack, packed_ids
from services.picker.request import Content, Headers, Unparsable


class _Range(Struct):
    offset: int
    length: int


class _Features(Struct):
    """What isn't text, by modality: each item's hash, and where it stands among the ids."""

    mm_hashes: dict[str, list[str | None]] | None = None
    mm_placeholders: dict[str, list[_Range]] | None = None

    def placeholders(self) -> Iterator[Placeholder]:
        hashes = self.mm_hashes or {}
        for modality, ranges in (self.mm_placeholders or {}).items():
            for place, name in zip(ranges, hashes.get(modality, ()), strict=False):
                yield Placeholder(place.offset, place.length, (name or "").encode())


class _Sampling(Struct):
    max_tokens: Raw = NOTHING
    n: Raw = NOTHING
    extra_args: EngineArguments | None = None
    """From where the engine takes them, whatever API has set them."""


class _Generate(JsonBody):
    API = "generate"
    PROMPT = ("features", "token_ids")
    PLAIN = "token_ids"
    MEDIA = (b'"mm_placeholders"',)

    token_ids: list[int] | None = None
    features: _Features | str | None = None
    """Older servers take a text here, and make nothing of it."""
    sampling_params: _Sampling | None = None

    def prompt_of(self) -> Prompt:
        if not self.token_ids:
            raise Unparsable(f"token_ids: {lacking(self.token_ids)}; a non-empty list of token ids is needed")
        features = self.features.placeholders() if isinstance(self.features, _Features) else ()
        try:
            return packed_ids(pack(self.token_ids), features)
        except ValueError as error:
            raise Unparsable(f"token_ids: {error}") from error

    def refuse_transfers(self) -> None:
        super().refuse_transfers()
        if self.sampling_params and (arguments := self.sampling_params.extra_args):
            arguments.refuse_transfers()

    def multimodal(self) -> bool:
        return isinstance(self.features, _Features) and bool(self.features.mm_placeholders)

    def output_limit(self) -> int | None:
        return as_count(self.sampling_params.max_tokens) if self.sampling_params else None

    def sequences(self) -> int | None:
        return as_count(self.sampling_params.n) if self.sampling_params else None


_READER = BodyReader(_Generate)


class VllmHttpParser(Parser):
    """Reads the bodies of vLLM's API for token ids."""

    TYPE = "vllmhttp-parser"
    Parameters = JsonParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = ("/inference/v1/generate",)
    parameters: JsonParameters

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return _READER.content(body, self.parameters)
