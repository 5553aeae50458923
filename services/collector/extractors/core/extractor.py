"""`core-metrics-extractor`: queue, batch, KV cache and LoRA adapters of a model server, whatever engine it runs.

The engine of an endpoint is named by one of its labels, or recognized from its pages, so one instance serves a pool of
several engines. Each value is as fresh as the last page that had it: a metric that disappears ages on its own and
leaves the others alone.
"""

from typing import Any

import structlog

from services.collector.engines.configs import EngineConfig
from services.collector.engines.sufficiency import Words, shortfalls
from services.collector.extractors.core.binding import Chosen, CoreBinding
from services.collector.extractors.core.parameters import CoreParameters
from services.collector.interfaces import PROMETHEUS_TEXT, Extractor
from shared.attributes import CORE, STANDARD_KEYS, AttributeKey
from shared.model import Endpoint
from shared.plugin import Concern, Demand

log = structlog.get_logger(__name__)

MOST_UNKNOWN = 20
"""Names of engines that nobody knows, of which the log tells."""
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
        self._unknown: set[str] = set()

    @classmethod
    def produces(cls, name: str, parameters: CoreParameters) -> tuple[AttributeKey[Any], ...]:
        return parameters.attributes()

    @classmethod
    def check(cls, parameters: CoreParameters, demand: Demand) -> list[Concern]:
        """Whether the engines that are defined here can give what is wanted. What the default engine lacks that is a
        built-in one can't be had, so that is a warning; of the other built-in ones nobody knows whether they are there.
        """
        lacking = [
            Concern(f"engineConfigs[{index}]", one.message, one.fatal)
            for index, config in enumerate(parameters.engine_configs)
            for one in shortfalls(config, demand, _WORDS)
        ]
        risky = [
            Concern(f"engineConfigs[{index}].customMetrics[{position}]", one.measure.concern, fatal=False)
            for index, engine in enumerate(parameters.own_engines())
            for position, one in enumerate(engine.custom)
            if one.measure.concern and one.key in demand.required
        ]
        return lacking + risky + _lacking_by_default(parameters, demand)

    @classmethod
    def deprecations(cls, parameters: CoreParameters) -> list[str]:
        return [f"{field} is deprecated; write an entry of engineConfigs" for field in parameters.flat]

    def label(self, endpoint: Endpoint) -> str:
        """What the endpoint's labels say that its engine is; empty where they say nothing."""
        keys = (self.parameters.engine_label_key, FORMER_ENGINE_LABEL)
        return next((value for key in keys if key and (value := endpoint.labels.get(key))), "")

    def reads(self, endpoint: Endpoint) -> str:
        return self.label(endpoint)

    def bind(self, endpoint: Endpoint) -> CoreBinding:
        label = self.label(endpoint)
        named = self._engines.get(label)
        if named is not None:
            return CoreBinding(named, Chosen.LABEL)
        if label:
            self._note(label, endpoint)
        others = self._others if self.parameters.recognize_engine else ()
        return CoreBinding(self._default, Chosen.DEFAULT, others, unknown=label)

    def _note(self, label: str, endpoint: Endpoint) -> None:
        """Say once of each name that it is no engine's."""
        if label not in self._unknown and len(self._unknown) < MOST_UNKNOWN:
            self._unknown.add(label)
            known = ", ".join(sorted(self._engines))
            log.warning("engine.unknown", extractor=self.name, endpoint=endpoint.id, engine=label[:100], known=known)


def _lacking_by_default(parameters: CoreParameters, demand: Demand) -> list[Concern]:
    """What plugins require and a built-in default engine doesn't publish."""
    name = parameters.default_engine
    if parameters.flat or any(one.name == name for one in parameters.engine_configs):
        return []
    engine = parameters.engines()[name]
    return [
        Concern(
            "defaultEngine",
            f"{name} doesn't publish {key.name}, which {' and '.join(map(repr, readers))} "
            f"require{'s' * (len(readers) == 1)}: endpoints of this engine don't have it",
            fatal=False,
        )
        for key, readers in demand.required.items()
        if key in STANDARD_KEYS and not engine.gives(key)
    ]
