"""`core-metrics-extractor`: queue, batch, KV cache and LoRA adapters of a model server, whatever engine it runs.

The engine of an endpoint is named by one of its labels, or recognized from its pages, so one instance serves a pool of
several engines. Each value is as fresh as the last page that had it: a metric that disappears ages on its own and
leaves the others alone.
"""

from typing import Any

from services.collector.engines.configs import EngineConfig
from services.collector.engines.known import Engine
from services.collector.engines.sufficiency import Words, shortfalls
from services.collector.extractors.core.binding import Chosen, CoreBinding
from services.collector.extractors.core.parameters import CoreParameters
from services.collector.interfaces import PROMETHEUS_TEXT, Extractor
from shared.attributes import CORE, STANDARD_KEYS, AttributeKey
from shared.model import Endpoint
from shared.plugin import Concern, Demand

FORMER_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
"""Consulted where an endpoint doesn't have the configured label."""

_WORDS = Words(
    names=dict(zip(EngineConfig.__struct_fields__, EngineConfig.__struct_encode_fields__, strict=True)),
    off=lambda name: f'{name}: ""',
)


class CoreMetricsExtractor(Extractor):
    """The extractor of the standard attributes."""

    TYPE = CORE
    ALIASES = ("model-server-protocol-metrics",)
    INPUT = PROMETHEUS_TEXT
    Parameters = CoreParameters
    PRODUCES = STANDARD_KEYS

    parameters: CoreParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._engines = self.parameters.engines()
        self._default = self._engines[self.parameters.default_engine]
        self._others = tuple(one for one in self._engines.values() if one is not self._default)

    @classmethod
    def produces(cls, name: str, parameters: CoreParameters) -> tuple[AttributeKey[Any], ...]:
        return parameters.attributes()

    @classmethod
    def check(cls, parameters: CoreParameters, demand: Demand) -> list[Concern]:
        """Whether the engines that are defined here can give what is wanted; of the built-in ones that isn't asked,
        because what they don't publish can't be had."""
        return [
            Concern(f"engineConfigs[{index}]", one.message, one.fatal)
            for index, config in enumerate(parameters.engine_configs)
            for one in shortfalls(config, demand, _WORDS)
        ]

    @classmethod
    def deprecations(cls, parameters: CoreParameters) -> list[str]:
        return [f"{field} is deprecated; write an entry of engineConfigs" for field in parameters.flat]

    def named(self, endpoint: Endpoint) -> Engine | None:
        """The engine that an endpoint's labels name, if they name one that is known."""
        keys = (self.parameters.engine_label_key, FORMER_ENGINE_LABEL)
        return self._engines.get(next((value for key in keys if key and (value := endpoint.labels.get(key))), ""))

    def bind(self, endpoint: Endpoint) -> CoreBinding:
        named = self.named(endpoint)
        if named is not None:
            return CoreBinding(named, Chosen.LABEL)
        return CoreBinding(self._default, Chosen.DEFAULT, self._others if self.parameters.recognize_engine else ())
