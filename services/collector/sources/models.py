"""`models-data-source`: the model servers' lists of the models that they serve."""

from abc import abstractmethod
from collections.abc import Sequence

from services.collector.interfaces import Binding
from services.collector.sources.http import HttpParameters, HttpSource
from shared.quantities import Duration

MODELS_JSON = "OpenAI list of models"
"""The format of what this source gives: its extractors' bindings are `ModelsBinding`s."""
INTERVAL = 1.0
"""Seconds. A list changes when an adapter is loaded, which users notice; writing one costs a server about as much as a
metrics page, so it isn't asked for at the metrics' rhythm."""


class ModelsBinding(Binding):
    """A binding that reads lists of models."""

    @abstractmethod
    def take(self, page: bytes) -> None:
        """Read an answer. Never raises on account of it."""


class ModelsParameters(HttpParameters, frozen=True, kw_only=True):
    """Parameters, as of every HTTP source."""

    path: str = "/v1/models"
    interval: Duration | None = INTERVAL


class ModelsSource(HttpSource):
    """The polling source of `GET /v1/models`, as vLLM, SGLang and TensorRT-LLM answer it."""

    TYPE = "models-data-source"
    OUTPUT = MODELS_JSON
    Parameters = ModelsParameters

    async def read(self, page: bytes, bindings: Sequence[Binding]) -> None:
        for one in bindings:
            if isinstance(one, ModelsBinding):
                one.take(page)
