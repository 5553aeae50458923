"""Engines that users define: entries of `engineConfigs`, and the one that the collector's flags make.

What an entry leaves out is off; with `extends` it is what the built-in engine of that name has. Who gives something to
derive a quantity from means that, so the base's own metric for the quantity isn't added then.
"""

from collections.abc import Mapping

from msgspec import Struct

from services.collector.engines.known import (
    BUILT_IN,
    CustomMetric,
    Engine,
    Specs,
    built_in,
    specs,
)
from services.collector.page.measure import MeasureParameters
from services.collector.page.spec import SpecError, parse_spec
from shared.attributes import CORE, STANDARD_KEYS, AttributeKey

RESERVED = "default"
"""No engine's name: it would read as the default engine's."""


class CustomMetricConfig(MeasureParameters, frozen=True, kw_only=True):
    """An entry of `customMetrics`. Raises ValueError on creation, with everything that is wrong with it."""

    attribute_key: str
    metric_spec: str

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if not self.attribute_key:
            wrong.append("attributeKey: empty; the attribute needs a name")
        elif any(key.name == self.attribute_key for key in STANDARD_KEYS):
            wrong.append(
                f"attributeKey: {self.attribute_key!r} has a field of its own in the engine; take another name"
            )
        try:
            super().__post_init__()
            self.metric()
        except ValueError as error:
            wrong.append(str(error))
        if wrong:
            raise ValueError("; ".join(wrong))

    def metric(self) -> CustomMetric:
        try:
            spec = parse_spec(self.metric_spec)
        except SpecError as error:
            raise ValueError(f"metricSpec: {error}") from error
        if spec is None:
            raise ValueError("metricSpec: empty; name a metric")
        return CustomMetric(AttributeKey(self.attribute_key, CORE, float), self.measure(spec, "metricSpec"))


class EngineConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of `engineConfigs`. An empty specification switches its metric off.

    Raises ValueError on creation, with every specification that isn't one.
    """

    name: str
    extends: str = ""
    queued_requests_spec: str | None = None
    running_requests_spec: str | None = None
    all_requests_spec: str | None = None
    kv_usage_spec: str | None = None
    used_kv_blocks_spec: str | None = None
    max_kv_blocks_spec: str | None = None
    used_kv_tokens_spec: str | None = None
    max_kv_tokens_spec: str | None = None
    lora_spec: str | None = None
    cache_info_spec: str | None = None
    cache_block_size_label_name: str = ""
    cache_num_blocks_label_name: str = ""
    cache_block_size_spec: str | None = None
    cache_num_blocks_spec: str | None = None
    custom_metrics: tuple[CustomMetricConfig, ...] = ()

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if not self.name:
            wrong.append("name: an engine needs one")
        elif self.name == RESERVED:
            wrong.append(f"name: {RESERVED!r} is reserved, name the engine in defaultEngine instead")
        if self.extends and built_in(self.extends) is None:
            known = ", ".join(one.name for one in BUILT_IN)
            wrong.append(f"extends: {self.extends!r} is no built-in engine; known: {known}")
        for field, written in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            if field.endswith("_spec"):
                try:
                    parse_spec(getattr(self, field) or "")
                except SpecError as error:
                    wrong.append(f"{written}: {error}")
        keys = [one.attribute_key for one in self.custom_metrics]
        for key in dict.fromkeys(key for key in keys if keys.count(key) > 1):
            wrong.append(f"customMetrics: {key!r} is configured twice; an attributeKey is unique in its engine")
        if wrong:
            raise ValueError("; ".join(wrong))

    def engine(self) -> Engine:
        base = built_in(self.extends) or Engine(name="")
        waiting = bool(self.all_requests_spec)
        share = any(
            (self.used_kv_blocks_spec, self.max_kv_blocks_spec, self.used_kv_tokens_spec, self.max_kv_tokens_spec)
        )
        return Engine(
            name=self.name,
            queued=given(self.queued_requests_spec, () if waiting else base.queued),
            running=given(self.running_requests_spec, base.running),
            all=given(self.all_requests_spec, ()),
            kv_usage=given(self.kv_usage_spec, () if share else base.kv_usage),
            used_blocks=given(self.used_kv_blocks_spec, ()),
            max_blocks=given(self.max_kv_blocks_spec, ()),
            used_tokens=given(self.used_kv_tokens_spec, ()),
            max_tokens=given(self.max_kv_tokens_spec, ()),
            lora=given(self.lora_spec, base.lora),
            cache_info=given(self.cache_info_spec, base.cache_info),
            cache_block_size_label=self.cache_block_size_label_name or base.cache_block_size_label,
            cache_num_blocks_label=self.cache_num_blocks_label_name or base.cache_num_blocks_label,
            cache_block_size=given(self.cache_block_size_spec, base.cache_block_size),
            cache_num_blocks=given(self.cache_num_blocks_spec, base.cache_num_blocks),
            custom=tuple(one.metric() for one in self.custom_metrics),
        )


FIELDS: Mapping[str, str] = {
    "queued": "queued_requests_spec",
    "running": "running_requests_spec",
    "all": "all_requests_spec",
    "kv_usage": "kv_usage_spec",
    "used_blocks": "used_kv_blocks_spec",
    "max_blocks": "max_kv_blocks_spec",
    "used_tokens": "used_kv_tokens_spec",
    "max_tokens": "max_kv_tokens_spec",
    "lora": "lora_spec",
    "cache_info": "cache_info_spec",
    "cache_block_size": "cache_block_size_spec",
    "cache_num_blocks": "cache_num_blocks_spec",
}
"""The field of `EngineConfig` that an engine's specifications come from."""


def given(text: str | None, otherwise: Specs) -> Specs:
    """The specification that a text is, or what holds where none is given. Raises `SpecError`."""
    return otherwise if text is None else specs(text)
