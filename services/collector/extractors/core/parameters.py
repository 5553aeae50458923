"""The parameters of `core-metrics-extractor`, and the engines that they define."""

from collections import Counter
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from services.collector.engines.builtin import VLLM, Engine, engines_by_name
from services.collector.engines.configs import EngineConfig, specs_or
from services.collector.extractors.core.engine_reader import MAX_LORA_ADAPTERS
from services.collector.page.spec import SpecError
from shared.attributes import STANDARD_KEYS, AttributeKey

ENGINE_LABEL = "llm-d.ai/engine-type"

FLAT = ("queue_requests_spec", "running_requests_spec", "kv_usage_spec", "lora_spec", "cache_info_spec")


class CoreParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they contradict each other."""

    engine_label_key: str = ENGINE_LABEL
    default_engine: str = VLLM.name
    recognize_engine: bool = True
    engine_configs: tuple[EngineConfig, ...] = ()
    max_lora_adapters: Annotated[int, Meta(ge=1)] = MAX_LORA_ADAPTERS
    # Deprecated: fields of the default engine, from before there was more than one.
    queue_requests_spec: str | None = None
    running_requests_spec: str | None = None
    kv_usage_spec: str | None = None
    lora_spec: str | None = None
    cache_info_spec: str | None = None

    def __post_init__(self) -> None:
        for name, count in Counter(config.name for config in self.engine_configs).items():
            if count > 1:
                raise ValueError(f"engineConfigs: {name!r} is configured twice")
        known = engines_by_name(self.configured_engines())
        if self.default_engine not in known:
            raise ValueError(
                f"defaultEngine: {self.default_engine!r} is not an engine; known: {', '.join(sorted(known))}"
            )
        if self.flat and self.engine_configs:
            raise ValueError(f"{self.flat[0]}: give specifications here or in engineConfigs, not in both")
        try:
            self.engines()
        except SpecError as error:
            raise ValueError(str(error)) from error

    @property
    def flat(self) -> tuple[str, ...]:
        """The deprecated parameters that are given, as documents write them."""
        return tuple(_document_name(field) for field in FLAT if getattr(self, field) is not None)

    def configured_engines(self) -> list[Engine]:
        return [config.engine() for config in self.engine_configs]

    def engines(self) -> dict[str, Engine]:
        """All engines by name: the configured ones in their order, then the built-in ones."""
        engines = engines_by_name(self.configured_engines())
        if self.flat:
            base = engines[self.default_engine]
            engines[base.name] = replace(
                base,
                queued_requests=specs_or(self.queue_requests_spec, base.queued_requests),
                running_requests=specs_or(self.running_requests_spec, base.running_requests),
                kv_usage=specs_or(self.kv_usage_spec, base.kv_usage),
                lora=specs_or(self.lora_spec, base.lora),
                cache_info=specs_or(self.cache_info_spec, base.cache_info),
            )
        return engines

    def attributes(self) -> tuple[AttributeKey[Any], ...]:
        """The standard attributes and the custom ones of all engines."""
        custom = [metric.key for engine in self.configured_engines() for metric in engine.custom]
        return (*STANDARD_KEYS, *dict.fromkeys(custom))


def _document_name(field: str) -> str:
    """The name of a parameter in documents."""
    return CoreParameters.__struct_encode_fields__[CoreParameters.__struct_fields__.index(field)]


FLAT_NAMES = tuple(map(_document_name, FLAT))
"""The deprecated parameters, as documents write them."""
