"""Reads the standard attributes of one endpoint from the metrics of one engine.

An attribute has one or more derivations in order of preference: a gauge itself, or a difference or ratio of two. The
first derivation whose operands are all on the page gives the value. So a derived value comes from one page, and it is
missing, not 0, when an operand is.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isfinite, isnan
from typing import Any

from services.collector.engines.builtin import Engine, Specs
from services.collector.extractors.prometheus_metric import QueryBinding
from services.collector.interfaces import Finding
from services.collector.page.selection import Greatest, MetricFallback, Newest, Outcome
from shared.attributes import (
    ACTIVE_MODELS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    RUNNING_REQUESTS_SIZE,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
    fault,
)

MAX_LORA_ADAPTERS = 1000
"""Adapters in the labels of a LoRA series: a picker spends microseconds on each new one."""
LORA_BYTES = 64
"""Bytes of the labels for each allowed adapter. A longer text would fill the frames of all endpoints."""
MAX_DIGITS = 400
"""Digits of a label's number that are read; a number of so many is beyond every float."""


class Operand:
    """A number of the last page."""

    def __init__(self, fallback: MetricFallback) -> None:
        self.fallback = fallback
        self.value: float | None = None
        """None without a number. A negative or infinite one is kept, with the outcome INVALID."""
        self.outcome = Outcome.UNKNOWN

    @property
    def valid(self) -> float | None:
        """The value if it isn't INVALID."""
        return None if self.outcome is Outcome.INVALID else self.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.fallback} {self.outcome} {self.value}>"


class Gauge(Operand):
    """The value of the selected series; `whole` truncates it."""

    def __init__(self, fallback: MetricFallback, *, whole: bool = False) -> None:
        super().__init__(fallback)
        self._whole = whole

    def read(self) -> None:
        """Take the selection of a page that was scanned."""
        selector = self.fallback.select()
        if selector is None:
            self.value, self.outcome = None, self.fallback.outcome()
            return
        self.value, self.outcome = selector.value, Outcome.FOUND
        if not (isfinite(self.value) and self.value >= 0):
            self.value, self.outcome = None if isnan(self.value) else self.value, Outcome.INVALID
        elif self._whole:
            self.value = float(int(self.value))


class InfoLabel(Operand):
    """A label with a whole number. Its `InfoMetric` reads it."""

    def __init__(self, fallback: MetricFallback, label: str) -> None:
        super().__init__(fallback)
        self.label = label


class InfoMetric:
    """A series with numbers in its labels. A label without a number doesn't affect the others."""

    def __init__(self, fallback: MetricFallback, labels: Sequence[str]) -> None:
        self.fallback = fallback
        self.labels = [InfoLabel(fallback, label) for label in labels]
        self.outcome = Outcome.UNKNOWN
        self._text: bytes | None = None

    def read(self) -> None:
        """Take the selection of a page that was scanned."""
        selector = self.fallback.select()
        if selector is None:
            self.outcome = self.fallback.outcome()
            for label in self.labels:
                label.value, label.outcome = None, self.outcome
            self._text = None
        elif selector.labels_text != self._text:
            self.outcome = Outcome.FOUND
            values = selector.labels
            for label in self.labels:
                label.value = _whole_number(values.get(label.label, ""))
                label.outcome = Outcome.INVALID if label.value is None else Outcome.FOUND
            self._text = selector.labels_text

    def __repr__(self) -> str:
        return f"<InfoMetric {self.fallback} {self.outcome}>"


class Derivation(ABC):
    """Computes an attribute from operands."""

    def __init__(self, *operands: Operand) -> None:
        self.operands = operands

    @abstractmethod
    def value(self) -> float | None:
        """The value; None when an operand is missing."""

    def outcome(self, operand: Operand) -> Outcome:
        """An operand's outcome as far as this derivation is concerned."""
        return operand.outcome


class Direct(Derivation):
    """The operand itself."""

    def value(self) -> float | None:
        return self.operands[0].value


class Difference(Derivation):
    """The first operand minus the second, at least 0: servers don't update both at the same time."""

    def value(self) -> float | None:
        total, part = (operand.valid for operand in self.operands)
        return max(0.0, total - part) if total is not None and part is not None else None


class Ratio(Derivation):
    """The first operand divided by the second, which has to be above 0."""

    def value(self) -> float | None:
        used, capacity = (operand.valid for operand in self.operands)
        return used / capacity if used is not None and capacity else None

    def outcome(self, operand: Operand) -> Outcome:
        return Outcome.INVALID if operand is self.operands[1] and operand.value == 0 else operand.outcome


class DerivedAttribute:
    """An attribute and its derivations in order of preference."""

    def __init__(self, key: AttributeKey[float], derivations: Sequence[Derivation]) -> None:
        self.key = key
        self.derivations = derivations

    def store(self, attributes: AttributeMap, at: float) -> bool:
        for derivation in self.derivations:
            value = derivation.value()
            if value is not None:
                changed = attributes.put(self.key, value, at)
                if value in self.key.bounds:
                    return changed
        return False

    def findings(self) -> list[Finding]:
        """One for each operand."""
        return [
            Finding(str(operand.fallback), self.key.name, self._outcome(derivation, operand))
            for derivation in self.derivations
            for operand in derivation.operands
        ]

    def _outcome(self, derivation: Derivation, operand: Operand) -> Outcome:
        value = derivation.value()
        return derivation.outcome(operand) if value is None or value in self.key.bounds else Outcome.INVALID

    def __repr__(self) -> str:
        return f"<DerivedAttribute {self.key.name} of {len(self.derivations)} derivations>"


class LoraAttributes:
    """The attributes of LoRA adapters, from one series: names in labels, separated by commas, and their maximum.

    Every page has the full lists: an empty one means that no adapter is loaded or requested.
    """

    KEYS: tuple[AttributeKey[Any], ...] = (ACTIVE_MODELS, WAITING_MODELS, MAX_ACTIVE_MODELS)

    def __init__(self, fallback: MetricFallback, max_adapters: int) -> None:
        self.fallback = fallback
        self._max_adapters = max_adapters
        self._sendable = True
        """Whether a frame may have the last lists."""
        self._outcomes = [Outcome.UNKNOWN] * 3
        self._text: bytes | None = None
        self._values: tuple[tuple[str, ...], tuple[str, ...], float | None] = ((), (), None)

    @property
    def outcome(self) -> Outcome:
        return self._outcomes[0]

    def read(self) -> None:
        """Take the selection of a page that was scanned."""
        selector = self.fallback.select()
        if selector is None:
            self._outcomes = [self.fallback.outcome()] * 3
        elif max(len(text := selector.labels_text) / LORA_BYTES, text.count(b",")) > self._max_adapters:
            self._outcomes = [Outcome.INVALID] * 3
        else:
            if text != self._text:
                labels = selector.labels
                running, waiting = labels.get("running_lora_adapters"), labels.get("waiting_lora_adapters")
                self._values = _names(running), _names(waiting), _whole_number(labels.get("max_lora", ""))
                self._text = text
                self._sendable = not any(map(fault, self.KEYS, self._values[:2]))
            if not self._sendable:
                self._outcomes = [Outcome.INVALID] * 3
                return
            maximum = Outcome.INVALID if self._values[2] is None else Outcome.FOUND
            self._outcomes = [Outcome.FOUND, Outcome.FOUND, maximum]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        changed = False
        for key, outcome, value in zip(self.KEYS, self._outcomes, self._values, strict=True):
            if outcome is Outcome.FOUND:
                changed |= attributes.put(key, value, at)
        return changed

    def findings(self) -> list[Finding]:
        specs = str(self.fallback)
        return [Finding(specs, key.name, outcome) for key, outcome in zip(self.KEYS, self._outcomes, strict=True)]

    def __repr__(self) -> str:
        return f"<LoraAttributes {self.fallback}>"


class EngineReader:
    """Reads the attributes of one endpoint from an engine's metrics."""

    def __init__(self, engine: Engine, max_lora_adapters: int) -> None:
        self.engine = engine
        gauges: list[Gauge] = []

        def gauge(specs: Specs, *, whole: bool = False) -> Gauge | None:
            if not specs:
                return None
            gauges.append(Gauge(_newest(specs), whole=whole))
            return gauges[-1]

        queued, running, total = (
            gauge(engine.queued_requests),
            gauge(engine.running_requests),
            gauge(engine.all_requests),
        )
        self._request_gauges = list(gauges)
        usage, used_blocks, max_blocks = (
            gauge(engine.kv_usage),
            gauge(engine.used_kv_blocks),
            gauge(engine.max_kv_blocks),
        )
        used_tokens, max_tokens = gauge(engine.used_kv_tokens), gauge(engine.max_kv_tokens)
        block_size, blocks = gauge(engine.cache_block_size, whole=True), gauge(engine.cache_num_blocks, whole=True)
        self._standard: list[Gauge | InfoMetric | LoraAttributes] = [*gauges]
        info_size: Operand | None = None
        info_blocks: Operand | None = None
        if engine.cache_info:
            labels = (engine.cache_block_size_label, engine.cache_num_blocks_label)
            self._standard.append(info := InfoMetric(_newest(engine.cache_info), labels))
            info_size, info_blocks = info.labels
        capacities = [max_blocks] if max_blocks else [blocks, info_blocks]
        derived = (
            DerivedAttribute(WAITING_QUEUE_SIZE, [*_derive(Direct, queued), *_derive(Difference, total, running)]),
            DerivedAttribute(RUNNING_REQUESTS_SIZE, _derive(Direct, running)),
            DerivedAttribute(
                KV_CACHE_USAGE,
                [
                    *_derive(Direct, usage),
                    *(ratio for capacity in capacities for ratio in _derive(Ratio, used_blocks, capacity)),
                    *_derive(Ratio, used_tokens, max_tokens),
                ],
            ),
            DerivedAttribute(CACHE_BLOCK_SIZE, [*_derive(Direct, block_size), *_derive(Direct, info_size)]),
            DerivedAttribute(CACHE_NUM_BLOCKS, [*_derive(Direct, blocks), *_derive(Direct, info_blocks)]),
        )
        self._attributes: list[DerivedAttribute | LoraAttributes] = [each for each in derived if each.derivations]
        self._custom = [QueryBinding(metric.key, metric.query) for metric in engine.custom]
        keys = {
            *(attribute.key for attribute in derived if attribute.derivations),
            *(each.key for each in self._custom),
        }
        if engine.lora:
            lora = LoraAttributes(MetricFallback([Greatest(spec) for spec in engine.lora]), max_lora_adapters)
            self._standard.append(lora)
            self._attributes.append(lora)
            keys |= {*lora.KEYS}
        self.keys: frozenset[AttributeKey[Any]] = frozenset(keys)
        """The attributes that it can find."""
        custom = [fallback for binding in self._custom for fallback in binding.fallbacks]
        self.fallbacks: Sequence[MetricFallback] = [*(metric.fallback for metric in self._standard), *custom]
        """The metrics to look for."""

    def read(self, at: float) -> None:
        """Take the selections of a page that was requested at `at` (monotonic seconds) and scanned."""
        for metric in self._standard:
            metric.read()
        for binding in self._custom:
            binding.evaluate(at)

    @property
    def present(self) -> bool:
        """Whether the last page had any of the engine's metrics. Custom metrics count only without others, because the
        page of any engine may have them."""
        for metric in self._standard or self._custom:  # runs for every page, and mostly ends with the first metric
            if metric.outcome is not Outcome.ABSENT and metric.outcome is not Outcome.UNKNOWN:
                return True
        return False

    @property
    def request_coverage(self) -> float:
        """The share of the engine's request gauges that the last page had."""
        found = sum(gauge.outcome in (Outcome.FOUND, Outcome.INVALID) for gauge in self._request_gauges)
        return found / len(self._request_gauges) if found else 0.0

    def store(self, attributes: AttributeMap, at: float) -> bool:
        """Put the last page's values into the attributes. Returns whether any value changes."""
        changed = False
        for attribute in self._attributes:
            changed |= attribute.store(attributes, at)
        for binding in self._custom:
            changed |= binding.put(attributes, at)
        return changed

    def findings(self) -> list[Finding]:
        return [finding for each in (*self._attributes, *self._custom) for finding in each.findings()]

    def __repr__(self) -> str:
        return f"<EngineReader {self.engine.name} {len(self.fallbacks)} metrics>"


def _derive(kind: type[Derivation], *operands: Operand | None) -> list[Derivation]:
    """The derivation, if the engine has all operands."""
    present = [operand for operand in operands if operand is not None]
    return [kind(*present)] if len(present) == len(operands) else []


def _newest(specs: Specs) -> MetricFallback:
    return MetricFallback([Newest(spec) for spec in specs])


def _names(text: str | None) -> tuple[str, ...]:
    """The names between commas, without blanks and duplicates."""
    return tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))


def _whole_number(text: str) -> float | None:
    """A label's value if it is a whole number."""
    stripped = text.strip()
    return float(stripped[:MAX_DIGITS]) if stripped.isascii() and stripped.isdigit() else None
