"""`models-data-source`: the lists of the models that servers serve."""

from abc import abstractmethod
from collections.abc import Sequence

from services.collector.interfaces import Binding
from services.collector.sources.http import HttpParameters, HttpSource
from shared.quantities import Duration

MODELS_JSON = "OpenAI list of models"
"""The output of this source; the bindings of its extractors are `ModelsBinding`s."""
INTERVAL = 1.0
"""Seconds. A list changes when an adapter is loaded, and costs a server about as much as a metrics page."""


class ModelsBinding(Binding):
    """A binding for lists of models."""

    @abstractmethod
    def take(self, page: bytes) -> None:
        """Read an answer. A bad one raises nothing."""


class ModelsParameters(HttpParameters, frozen=True, kw_only=True):
    """Parameters: those of every HTTP source."""

    path: str = "/v1/models"
    interval: Duration | None = INTERVAL


class ModelsSource(HttpSource):
    """The polling source of `GET /v1/models`, as vLLM, SGLang and TensorRT-LLM answer it."""

    TYPE = "models-data-source"
    OUTPUT = MODELS_JSON
    Parameters = ModelsParameters

    async def read(self, page: bytes, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            if isinstance(binding, ModelsBinding):
                binding.take(page)
