"""`models-data-extractor`: the models that a server serves, base models and LoRA adapters.

A list that can't be read completely is refused, because requests for the missing models would fail. Only entries
without a name are skipped. A list far beyond the limits is refused unread, because parsing takes long.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct
from xxhash import xxh3_128_digest

from services.collector.interfaces import Extractor, Finding
from services.collector.page.selection import Outcome
from services.collector.sources.models import MODELS_JSON, ModelsBinding
from shared.attributes import SERVED_MODELS, AttributeMap, fault
from shared.model import Endpoint

ENTRY = 1024
"""Bytes of an entry beside its name, on average; vLLM's have 500."""
SPARE = 64 * 1024
"""Bytes that every answer may have, however few models are allowed."""
COMMAS = 64
"""Commas of an entry, on average; vLLM's have 19. Each may end an entry, which costs even if it is empty."""
SPARE_COMMAS = 1000
WHAT = "data[].id"
"""The path of the names in the answer."""


class ModelsExtractorParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters: the limits of a list, which goes to every picker several times a second."""

    max_models: Annotated[int, Meta(ge=1)] = 1000
    max_name_length: Annotated[int, Meta(ge=1)] = 512
    """Characters."""

    @property
    def max_bytes(self) -> int:
        """The longest answer that is parsed."""
        return SPARE + self.max_models * (self.max_name_length + ENTRY)


class Model(Struct):
    """An entry of the list, without its other fields."""

    id: str
    parent: str | None = None
    """The base model of an adapter."""


class ModelList(Struct):
    """The answer; entries are decoded one by one, so that a bad one doesn't affect the others."""

    data: list[Raw]


class Listing(Struct, frozen=True):
    """The result of an answer."""

    outcome: Outcome
    ids: tuple[str, ...] = ()
    adapters: int = 0
    problem: str = ""
    """What is wrong with it, skipped entries included."""


def read_models(page: bytes, parameters: ModelsExtractorParameters) -> Listing:
    """The ids in the order of the list, without duplicates. No answer raises an exception."""
    if len(page) > parameters.max_bytes:
        most = f"maxModels and maxNameLength allow, {parameters.max_bytes}"
        return Listing(Outcome.INVALID, problem=f"{len(page)} bytes are more than {most}")
    commas = page.count(b",")
    if commas > (max_commas := parameters.max_models * COMMAS + SPARE_COMMAS):
        return Listing(Outcome.INVALID, problem=f"{commas} commas are more than maxModels allows, {max_commas}")
    try:
        entries = _LIST.decode(page).data
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Listing(Outcome.INVALID, problem=f"not a list of models: {error}")
    if len(entries) > parameters.max_models:
        return Listing(
            Outcome.INVALID, problem=f"{len(entries)} models are more than maxModels, {parameters.max_models}"
        )
    ids: dict[str, bool] = {}
    problem = ""
    for position, entry in enumerate(entries):
        try:
            model = _MODEL.decode(entry)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = problem or f"entry {position} was skipped: {error}"
            continue
        if len(model.id) > parameters.max_name_length:
            length, limit = len(model.id), parameters.max_name_length
            return Listing(
                Outcome.INVALID, problem=f"entry {position}: {length} characters in the id; maxNameLength is {limit}"
            )
        if not model.id:
            problem = problem or f"entry {position} was skipped: its id is empty"
            continue
        ids.setdefault(model.id, bool(model.parent))
    if entries and not ids:
        return Listing(Outcome.INVALID, problem=problem)
    if reason := fault(SERVED_MODELS, tuple(ids)):
        return Listing(Outcome.INVALID, problem=reason)
    return Listing(Outcome.FOUND, tuple(ids), sum(ids.values()), problem)


class ModelsExtractor(Extractor):
    """The extractor of `/v1/models`."""

    TYPE = SERVED_MODELS.producer
    ALIASES = ("model-server-protocol-models",)
    INPUT = MODELS_JSON
    DEFAULT_SOURCE = "models-data-source"
    Parameters = ModelsExtractorParameters
    PRODUCES = (SERVED_MODELS,)

    parameters: ModelsExtractorParameters

    def reads(self, endpoint: Endpoint) -> None:
        return None

    def bind(self, endpoint: Endpoint) -> "ModelListBinding":
        return ModelListBinding(self.parameters)


class ModelListBinding(ModelsBinding):
    """Reads one server's lists. A repeated answer isn't decoded again."""

    def __init__(self, parameters: ModelsExtractorParameters) -> None:
        self._parameters = parameters
        self._digest = b""
        """The last answer's digest."""
        self._listing = Listing(Outcome.UNKNOWN)

    def take(self, page: bytes) -> None:
        digest = xxh3_128_digest(page)
        if digest != self._digest:
            self._digest, self._listing = digest, read_models(page, self._parameters)

    def store(self, attributes: AttributeMap, at: float) -> bool:
        if self._listing.outcome is not Outcome.FOUND:
            return False
        return attributes.put(SERVED_MODELS, self._listing.ids, at)

    def findings(self) -> list[Finding]:
        return [Finding(WHAT, SERVED_MODELS.name, self._listing.outcome)]

    def describe(self) -> dict[str, str]:
        listing = self._listing
        described = {}
        if listing.outcome is Outcome.FOUND:
            described["models"] = f"{len(listing.ids)}, {listing.adapters} of them adapters"
        if listing.problem:
            described["models_problem"] = listing.problem
        return described

    def __repr__(self) -> str:
        return f"<ModelListBinding {self._listing.outcome} {', '.join(self._listing.ids[:5])}>"


_LIST = msgspec.json.Decoder(ModelList)
_MODEL = msgspec.json.Decoder(Model)
