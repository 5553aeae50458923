"""What a `core-metrics-extractor` is told, and what it comes to: every engine, and whose words define it."""

from typing import Any

from msgspec import Struct

from services.collector.engines.configs import EngineConfig, given
from services.collector.engines.known import VLLM, Engine, table
from services.collector.page.spec import SpecError
from shared.attributes import STANDARD_KEYS, AttributeKey

ENGINE_LABEL = "llm-d.ai/engine-type"

FLAT = ("queue_requests_spec", "running_requests_spec", "kv_usage_spec", "lora_spec", "cache_info_spec")


class CoreParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they don't fit together."""

    engine_label_key: str = ENGINE_LABEL
    default_engine: str = VLLM.name
    recognize_engine: bool = True
    engine_configs: tuple[EngineConfig, ...] = ()
    # The first generation knew one engine: these stand for fields of the default engine.
    queue_requests_spec: str | None = None
    running_requests_spec: str | None = None
    kv_usage_spec: str | None = None
    lora_spec: str | None = None
    cache_info_spec: str | None = None

    def __post_init__(self) -> None:
        names = [one.name for one in self.engine_configs]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"engineConfigs: {name!r} is configured twice; an engine's name is unique")
        known = table(self.own_engines())
        if self.default_engine not in known:
            raise ValueError(f"defaultEngine: {self.default_engine!r} is no engine; known: {', '.join(sorted(known))}")
        if self.flat and self.engine_configs:
            raise ValueError(f"{self.flat[0]}: give specifications here or in engineConfigs, not in both")
        try:
            self.engines()
        except SpecError as error:
            raise ValueError(str(error)) from error

    @property
    def flat(self) -> tuple[str, ...]:
        """The first generation's parameters that are given, as they are written."""
        return tuple(_written(field) for field in FLAT if getattr(self, field) is not None)

    def own_engines(self) -> list[Engine]:
        """The engines that are defined here, in order."""
        return [one.engine() for one in self.engine_configs]

    def engines(self) -> dict[str, Engine]:
        """Every engine by name: those that are defined here in order, then the built-ins."""
        known = table(self.own_engines())
        if self.flat:
            base = known[self.default_engine]
            known[base.name] = Engine(
                name=base.name,
                queued=given(self.queue_requests_spec, base.queued),
                running=given(self.running_requests_spec, base.running),
                kv_usage=given(self.kv_usage_spec, base.kv_usage),
                lora=given(self.lora_spec, base.lora),
                cache_info=given(self.cache_info_spec, base.cache_info),
                cache_block_size_label=base.cache_block_size_label,
                cache_num_blocks_label=base.cache_num_blocks_label,
                cache_block_size=base.cache_block_size,
                cache_num_blocks=base.cache_num_blocks,
            )
        return known

    def attributes(self) -> tuple[AttributeKey[Any], ...]:
        """The standard attributes, and those of every engine's own metrics."""
        custom = [one.key for engine in self.own_engines() for one in engine.custom]
        return (*STANDARD_KEYS, *dict.fromkeys(custom))


def _written(field: str) -> str:
    """A parameter as documents write it."""
    return CoreParameters.__struct_encode_fields__[CoreParameters.__struct_fields__.index(field)]


FLAT_NAMES = tuple(map(_written, FLAT))
"""The first generation's parameters, as documents write them."""
