"""`core-metrics-extractor`: requests, KV cache and LoRA adapters of model servers of any engine.

A label names the engine of an endpoint, or the extractor recognizes it from the page. So one instance serves a pool of
several engines. Each value is as fresh as the last page that had it: a metric that disappears only ages itself.
"""

from typing import Any

import structlog

from services.collector.engines.configs import EngineConfig
from services.collector.engines.sufficiency import FieldNames, missing_attributes
from services.collector.extractors.core.binding import ChosenBy, CoreBinding
from services.collector.extractors.core.parameters import CoreParameters
from services.collector.interfaces import PROMETHEUS_TEXT, Extractor
from shared.attributes import CORE, STANDARD_KEYS, AttributeKey
from shared.model import Endpoint
from shared.plugin import Concern, Demand

log = structlog.get_logger(__name__)

MAX_LOGGED_NAMES = 20
"""Unknown engine names that are logged."""
FORMER_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
"""The label to read when an endpoint doesn't have the configured one."""

_FIELD_NAMES = FieldNames(
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
        self._others = tuple(engine for engine in self._engines.values() if engine is not self._default)
        self._unknown: set[str] = set()

    @classmethod
    def produces(cls, name: str, parameters: CoreParameters) -> tuple[AttributeKey[Any], ...]:
        return parameters.attributes()

    @classmethod
    def check(cls, parameters: CoreParameters, demand: Demand) -> list[Concern]:
        """Whether the configured engines, and the default one, provide the demanded attributes. A built-in default
        can't be changed, so its gaps are warnings. The pool may not have the other built-in ones at all.
        """
        concerns = [
            Concern(f"engineConfigs[{index}]", missing.message, missing.fatal)
            for index, config in enumerate(parameters.engine_configs)
            for missing in missing_attributes(config, demand, _FIELD_NAMES)
        ]
        risky = [
            Concern(f"engineConfigs[{index}].customMetrics[{position}]", metric.query.concern, fatal=False)
            for index, engine in enumerate(parameters.configured_engines())
            for position, metric in enumerate(engine.custom)
            if metric.query.concern and metric.key in demand.required
        ]
        return concerns + risky + _missing_by_default(parameters, demand)

    @classmethod
    def deprecations(cls, parameters: CoreParameters) -> list[str]:
        return [f"{field} is deprecated; write an entry of engineConfigs" for field in parameters.flat]

    def label(self, endpoint: Endpoint) -> str:
        """The engine in the endpoint's labels; empty without one."""
        keys = (self.parameters.engine_label_key, FORMER_ENGINE_LABEL)
        return next((value for key in keys if key and (value := endpoint.labels.get(key))), "")

    def reads(self, endpoint: Endpoint) -> str:
        return self.label(endpoint)

    def bind(self, endpoint: Endpoint) -> CoreBinding:
        label = self.label(endpoint)
        named = self._engines.get(label)
        limit = self.parameters.max_lora_adapters
        if named is not None:
            return CoreBinding(named, ChosenBy.LABEL, max_lora_adapters=limit)
        if label:
            self._log_unknown(label, endpoint)
        others = self._others if self.parameters.recognize_engine else ()
        return CoreBinding(self._default, ChosenBy.DEFAULT, others, label, limit)

    def _log_unknown(self, label: str, endpoint: Endpoint) -> None:
        """Log each unknown name once."""
        if label not in self._unknown and len(self._unknown) < MAX_LOGGED_NAMES:
            self._unknown.add(label)
            known = ", ".join(sorted(self._engines))
            log.warning("engine.unknown", extractor=self.name, endpoint=endpoint.id, engine=label[:100], known=known)


def _missing_by_default(parameters: CoreParameters, demand: Demand) -> list[Concern]:
    """The required attributes that a built-in default engine doesn't provide."""
    name = parameters.default_engine
    if parameters.flat or any(config.name == name for config in parameters.engine_configs):
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
        if key in STANDARD_KEYS and not engine.provides(key)
    ]
