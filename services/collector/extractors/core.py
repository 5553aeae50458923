"""`core-metrics-extractor`: queue, batch, KV cache and LoRA adapters of a model server, whatever engine it runs.

The engine of an endpoint is named by one of its labels, so one instance serves a pool of several engines. Each value is
as fresh as the last page that had it: a metric that disappears ages on its own and leaves the others alone.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from services.collector.engines import VLLM, Engine, EngineConfig, Specs, specs, table
from services.collector.interfaces import PROMETHEUS_TEXT, Extractor, Finding, MetricsBinding
from services.collector.selection import Choice, Greatest, Newest, Outcome, Selector, is_amount
from services.collector.spec import SpecError
from shared.attributes import (
    ACTIVE_MODELS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    CORE,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    RUNNING_REQUESTS_SIZE,
    STANDARD_KEYS,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
)
from shared.model import Endpoint

ENGINE_LABEL = "llm-d.ai/engine-type"
FORMER_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
"""Consulted where an endpoint doesn't have the configured label."""
MOST_LORA_TEXT = 64 * 1024
"""Bytes of a LoRA series' labels: what is longer is no list of adapters, and would fill the frames of all endpoints."""

FLAT = ("queue_requests_spec", "running_requests_spec", "kv_usage_spec", "lora_spec", "cache_info_spec")


class CoreParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they don't fit together."""

    engine_label_key: str = ENGINE_LABEL
    default_engine: str = VLLM.name
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
        known = table([one.engine() for one in self.engine_configs])
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
        written = dict(zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True))
        return tuple(written[field] for field in FLAT if getattr(self, field) is not None)

    def engines(self) -> dict[str, Engine]:
        """Every engine by name, as these parameters have them."""
        known = table([one.engine() for one in self.engine_configs])
        if self.flat:
            base = known[self.default_engine]
            engine = Engine(
                name=base.name,
                queued=_given(self.queue_requests_spec, base.queued),
                running=_given(self.running_requests_spec, base.running),
                kv_usage=_given(self.kv_usage_spec, base.kv_usage),
                lora=_given(self.lora_spec, base.lora),
                cache_info=_given(self.cache_info_spec, base.cache_info),
                cache_block_size_label=base.cache_block_size_label,
                cache_num_blocks_label=base.cache_num_blocks_label,
                cache_block_size=base.cache_block_size,
                cache_num_blocks=base.cache_num_blocks,
            )
            known[engine.name] = engine
        return known


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

    @classmethod
    def deprecations(cls, parameters: CoreParameters) -> list[str]:
        return [f"{field} is deprecated; write an entry of engineConfigs" for field in parameters.flat]

    def engine(self, endpoint: Endpoint) -> Engine:
        """The engine that an endpoint's labels name; the default one where they name none that is known."""
        keys = (self.parameters.engine_label_key, FORMER_ENGINE_LABEL)
        named = next((value for key in keys if key and (value := endpoint.labels.get(key))), "")
        return self._engines.get(named) or self._engines[self.parameters.default_engine]

    def bind(self, endpoint: Endpoint) -> "CoreBinding":
        return CoreBinding(self.engine(endpoint))


class CoreBinding(MetricsBinding):
    """Reads one engine's pages."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._readings: list[_Reading] = []
        for key, alternatives in (
            (WAITING_QUEUE_SIZE, engine.queued),
            (RUNNING_REQUESTS_SIZE, engine.running),
            (KV_CACHE_USAGE, engine.kv_usage),
        ):
            if alternatives:
                self._readings.append(_Amount(key, _newest(alternatives)))
        if engine.lora:
            self._readings.append(_Adapters(Choice([Greatest(spec) for spec in engine.lora])))
        if engine.cache_info:
            labels = (
                (CACHE_BLOCK_SIZE, engine.cache_block_size_label),
                (CACHE_NUM_BLOCKS, engine.cache_num_blocks_label),
            )
            self._readings.append(_WholeNumbersInLabels(labels, _newest(engine.cache_info)))
        for key, alternatives in (
            (CACHE_BLOCK_SIZE, engine.cache_block_size),
            (CACHE_NUM_BLOCKS, engine.cache_num_blocks),
        ):
            if alternatives:
                self._readings.append(_Amount(key, _newest(alternatives), whole=True))
        self._choices = [one.choice for one in self._readings]

    @property
    def choices(self) -> Sequence[Choice]:
        return self._choices

    def store(self, attributes: AttributeMap, at: float) -> bool:
        changed = False
        for reading in self._readings:
            changed |= reading.store(attributes, at)
        return changed

    def findings(self) -> list[Finding]:
        return [finding for reading in self._readings for finding in reading.findings()]

    def describe(self) -> dict[str, str]:
        return {"engine": self.engine.name}

    def __repr__(self) -> str:
        return f"<CoreBinding {self.engine.name}>"


class _Value:
    """One attribute as this binding last read it."""

    def __init__(self, key: AttributeKey[Any]) -> None:
        self.key = key
        self.outcome = Outcome.UNKNOWN
        self._last: Any = None

    def found(self, attributes: AttributeMap, value: Any, at: float) -> bool:
        """Put the value; whether it is another one than before."""
        self.outcome = Outcome.FOUND
        attributes.put(self.key, value, at)
        if value == self._last:
            return False
        self._last = value
        return True


class _Reading:
    """One choice of series, and the attributes that are made of it."""

    def __init__(self, choice: Choice, keys: Sequence[AttributeKey[Any]]) -> None:
        self.choice = choice
        self.values = [_Value(key) for key in keys]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        selector = self.choice.take()
        if selector is None:
            outcome = self.choice.outcome()
            for value in self.values:
                value.outcome = outcome
            return False
        return self.put(selector, attributes, at)

    def put(self, selector: Selector, attributes: AttributeMap, at: float) -> bool:
        raise NotImplementedError

    def findings(self) -> list[Finding]:
        return [Finding(str(self.choice), value.key.name, value.outcome) for value in self.values]


class _Amount(_Reading):
    """The series' value; `whole` truncates it towards zero."""

    def __init__(self, key: AttributeKey[float], choice: Choice, *, whole: bool = False) -> None:
        super().__init__(choice, [key])
        self._whole = whole

    def put(self, selector: Selector, attributes: AttributeMap, at: float) -> bool:
        amount = selector.value
        if not is_amount(amount):
            self.values[0].outcome = Outcome.INVALID
            return False
        return self.values[0].found(attributes, float(int(amount)) if self._whole else amount, at)


class _WholeNumbersInLabels(_Reading):
    """Whole numbers that the series has as labels; a label that is missing or no number costs only its attribute."""

    def __init__(self, labels: Sequence[tuple[AttributeKey[float], str]], choice: Choice) -> None:
        super().__init__(choice, [key for key, _ in labels])
        self._labels = [label for _, label in labels]
        self._text: bytes | None = None
        self._numbers: list[float | None] = []

    def put(self, selector: Selector, attributes: AttributeMap, at: float) -> bool:
        if selector.labels_text != self._text:
            labels = selector.labels
            self._numbers = [_whole(labels.get(label, "")) for label in self._labels]
            self._text = selector.labels_text
        changed = False
        for value, number in zip(self.values, self._numbers, strict=True):
            if number is None:
                value.outcome = Outcome.INVALID
            else:
                changed |= value.found(attributes, number, at)
        return changed


class _Adapters(_Reading):
    """LoRA adapters: names in labels, separated by commas, and how many fit at a time.

    Each page says all of it anew: empty lists mean that no adapter is loaded or waited for.
    """

    def __init__(self, choice: Choice) -> None:
        super().__init__(choice, [ACTIVE_MODELS, WAITING_MODELS, MAX_ACTIVE_MODELS])
        self._text: bytes | None = None
        self._names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._most: float | None = None

    def put(self, selector: Selector, attributes: AttributeMap, at: float) -> bool:
        if len(selector.labels_text) > MOST_LORA_TEXT:
            for value in self.values:
                value.outcome = Outcome.INVALID
            return False
        if selector.labels_text != self._text:
            labels = selector.labels
            self._names = (_names(labels.get("running_lora_adapters")), _names(labels.get("waiting_lora_adapters")))
            self._most = _whole(labels.get("max_lora", ""))
            self._text = selector.labels_text
        active, waiting, most = self.values
        changed = active.found(attributes, self._names[0], at)
        changed |= waiting.found(attributes, self._names[1], at)
        if self._most is None:
            most.outcome = Outcome.INVALID
            return changed
        return most.found(attributes, self._most, at) or changed


def _newest(alternatives: Specs) -> Choice:
    return Choice([Newest(spec) for spec in alternatives])


def _given(text: str | None, otherwise: Specs) -> Specs:
    return otherwise if text is None else specs(text)


def _names(text: str | None) -> tuple[str, ...]:
    """Names between commas, trimmed, each once, in order."""
    return tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))


def _whole(text: str) -> float | None:
    """A label's whole number, if it is one."""
    stripped = text.strip()
    return float(stripped) if stripped.isascii() and stripped.isdigit() and len(stripped) <= 18 else None
