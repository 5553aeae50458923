"""The core extractor's binding: it reads the metrics of one endpoint's engine, and recognizes the engine.

While pages have metrics of the engine, it reads no others. After a page without any, it reads the metrics of all
candidates until it recognizes one. It repeats the recognition after 1, 2, 4, … up to `MAX_RECOGNITION_PAUSE` pages,
because metrics appear one after another while a server starts: Triton has its own long before those of the TensorRT-LLM
model that it loads.
"""

from collections.abc import Sequence
from enum import StrEnum

from services.collector.engines.builtin import Engine
from services.collector.extractors.core.engine_reader import MAX_LORA_ADAPTERS, EngineReader
from services.collector.interfaces import Finding, MetricsBinding
from services.collector.page.selection import MetricFallback
from shared.attributes import AttributeMap

MAX_RECOGNITION_PAUSE = 1024
"""Pages between two recognitions."""


class ChosenBy(StrEnum):
    """How the engine of an endpoint was chosen."""

    LABEL = "label"
    DEFAULT = "default"
    RECOGNIZED = "recognized"


class CoreBinding(MetricsBinding):
    """Reads one endpoint's pages.

    `engine` comes from the endpoint's label or is the default. `others` are the alternatives in order of preference.
    `unknown` is the label's value when no engine has that name.
    """

    def __init__(
        self,
        engine: Engine,
        chosen: ChosenBy,
        others: Sequence[Engine] = (),
        unknown: str = "",
        max_lora_adapters: int = MAX_LORA_ADAPTERS,
    ) -> None:
        self.chosen = chosen
        self._max_lora_adapters = max_lora_adapters
        self._unknown = unknown
        self._candidates = (engine, *others)
        self._reader = EngineReader(engine, max_lora_adapters)
        self._candidate_readers: list[EngineReader] = []
        """Those of all candidates during a recognition, the present reader included."""
        self._pages_left = 0
        """Pages until the next recognition."""
        self._pause = 1
        if others:
            self._start_recognition()

    @property
    def engine(self) -> Engine:
        return self._reader.engine

    @property
    def fallbacks(self) -> Sequence[MetricFallback]:
        if not self._candidate_readers:
            return self._reader.fallbacks
        return [fallback for reader in self._candidate_readers for fallback in reader.fallbacks]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        former = self._reader
        if self._candidate_readers:
            for reader in self._candidate_readers:
                reader.read(at)
            self._recognize()
        else:
            former.read(at)
            if len(self._candidates) > 1:
                self._plan_recognition()
        changed = self._reader.store(attributes, at)
        if former is not self._reader:
            for key in former.keys - self._reader.keys:
                sample = attributes.sample(key)
                if sample is not None and sample.value is not None:
                    changed |= attributes.deny(key, at)
        return changed

    def _plan_recognition(self) -> None:
        """Start a recognition with the next page if it is due."""
        if not self._reader.present:
            self._pause = 1
            self._start_recognition()
        elif self.chosen is ChosenBy.RECOGNIZED:
            self._pages_left -= 1
            if not self._pages_left:
                self._start_recognition()

    def _start_recognition(self) -> None:
        self._candidate_readers = [
            self._reader if engine is self.engine else EngineReader(engine, self._max_lora_adapters)
            for engine in self._candidates
        ]

    def _recognize(self) -> None:
        """Select the engine of the last page. The recognition continues if the page has none."""
        default, *others = self._candidate_readers
        # Engines can share a name, so the one with the most of its metrics wins.
        found = default if default.present else max(others, key=lambda reader: reader.request_coverage)
        if found is not default and not found.request_coverage:
            return
        if found is not self._reader:
            self._reader, self._pause = found, 1
        self.chosen = ChosenBy.DEFAULT if found is default else ChosenBy.RECOGNIZED
        self._candidate_readers = []
        self._pages_left, self._pause = self._pause, min(2 * self._pause, MAX_RECOGNITION_PAUSE)

    def findings(self) -> list[Finding]:
        return self._reader.findings()

    def describe(self) -> dict[str, str]:
        described = {"engine": self.engine.name, "engine_chosen_by": self.chosen.value}
        return described | {"unknown_engine_label": self._unknown} if self._unknown else described

    def __repr__(self) -> str:
        recognizing = f", recognizing {len(self._candidate_readers)}" if self._candidate_readers else ""
        return f"<CoreBinding {self.engine.name} by {self.chosen}{recognizing}>"
