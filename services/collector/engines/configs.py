"""User-defined engines: entries of `engineConfigs`, and the engine of the collector's metric flags.

A missing field is off, or inherited from the built-in engine in `extends`. An entry with metrics to derive an attribute
from doesn't inherit the direct metric of that attribute.
"""

from collections import Counter

from msgspec import Struct
from msgspec.structs import replace

from services.collector.engines.builtin import BUILT_IN, CustomMetric, Engine, Specs, built_in, specs
from services.collector.page.query import QueryParameters
from services.collector.page.spec import SpecError, parse_spec
from shared.attributes import CORE, STANDARD_KEYS, AttributeKey

RESERVED = "default"
"""Not allowed as a name: it would look like the default engine."""


class CustomMetricConfig(QueryParameters, frozen=True, kw_only=True):
    """An entry of `customMetrics`. Raises ValueError on creation, with all problems."""

    attribute_key: str
    metric_spec: str

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if not self.attribute_key:
            wrong.append("attributeKey: required, the name of the attribute")
        elif any(key.name == self.attribute_key for key in STANDARD_KEYS):
            wrong.append(f"attributeKey: {self.attribute_key!r} is a standard attribute; set its field of the engine")
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
            raise ValueError("metricSpec: required, the name of a metric")
        return CustomMetric(AttributeKey(self.attribute_key, CORE, float), self.query(spec, "metricSpec"))


class EngineConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of `engineConfigs`. An empty specification switches its metric off.

    Raises ValueError on creation, with all problems.
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
            wrong.append("name: required")
        elif self.name == RESERVED:
            wrong.append(f"name: {RESERVED!r} is reserved, name the engine in defaultEngine instead")
        if self.extends and built_in(self.extends) is None:
            known = ", ".join(engine.name for engine in BUILT_IN)
            wrong.append(f"extends: {self.extends!r} is not a built-in engine; known: {known}")
        for field, written in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            if field.endswith("_spec"):
                try:
                    parse_spec(getattr(self, field) or "")
                except SpecError as error:
                    wrong.append(f"{written}: {error}")
        for key, count in Counter(metric.attribute_key for metric in self.custom_metrics).items():
            if count > 1:
                wrong.append(f"customMetrics: {key!r} is configured twice")
        if wrong:
            raise ValueError("; ".join(wrong))

    def engine(self) -> Engine:
        base = built_in(self.extends) or Engine(name="")
        replaced: set[str] = {"queued_requests"} if self.all_requests_spec else set()
        if self.used_kv_blocks_spec or self.max_kv_blocks_spec or self.used_kv_tokens_spec or self.max_kv_tokens_spec:
            replaced.add("kv_usage")
        metrics = {
            field: specs_or(getattr(self, spec_field(field)), () if field in replaced else getattr(base, field))
            for field in METRICS
        }
        return replace(
            base,
            name=self.name,
            prefixes=(),
            **metrics,
            cache_block_size_label=self.cache_block_size_label_name or base.cache_block_size_label,
            cache_num_blocks_label=self.cache_num_blocks_label_name or base.cache_num_blocks_label,
            custom=tuple(config.metric() for config in self.custom_metrics),
        )


METRICS = tuple(field.removesuffix("_spec") for field in EngineConfig.__struct_fields__ if field.endswith("_spec"))
"""The fields of `Engine` that an entry can set."""


def spec_field(metric: str) -> str:
    """The field of `EngineConfig` with the specification of a field of `Engine`."""
    return f"{metric}_spec"


def specs_or(text: str | None, default: Specs) -> Specs:
    """The parsed specification, or the default without one. Raises `SpecError`."""
    return default if text is None else specs(text)
