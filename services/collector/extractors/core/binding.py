"""The core extractor at work for one endpoint: it reads the pages of one engine, and finds out which one that is.

While the engine's metrics are on the pages, nothing else is looked for. A page without any of them is followed by looks
at the metrics of all engines that it may be, until one is found. An engine that was found in this way is looked at
again after 1, 2, 4, … up to `LATEST_LOOK` pages, because a server that starts shows its metrics one after another:
Triton has its own long before those of the TensorRT-LLM model that it loads.
"""

from collections.abc import Sequence
from enum import StrEnum

from services.collector.engines.known import Engine
from services.collector.extractors.core.reader import EngineReader
from services.collector.interfaces import Finding, MetricsBinding
from services.collector.page.selection import Choice
from shared.attributes import AttributeMap

LATEST_LOOK = 1024
"""Pages between two looks at an engine that was recognized long ago."""


class Chosen(StrEnum):
    """How the engine of an endpoint was chosen."""

    LABEL = "label"
    DEFAULT = "default"
    RECOGNIZED = "recognized"


class CoreBinding(MetricsBinding):
    """Reads one endpoint's pages.

    `engine` is what its label says, or the default; `others` are the engines that it may be instead, in the order in
    which they are looked for. `unknown` is what its label says where no engine has that name.
    """

    def __init__(self, engine: Engine, chosen: Chosen, others: Sequence[Engine] = (), unknown: str = "") -> None:
        self.chosen = chosen
        self._unknown = unknown
        self._candidates = (engine, *others)
        self._reader = EngineReader(engine)
        self._looked_at: list[EngineReader] = []
        """All candidates, while there is a look; the present reader is one of them."""
        self._next_look = 0
        """Pages until the next look."""
        self._pause = 1
        if others:
            self._look()

    @property
    def engine(self) -> Engine:
        return self._reader.engine

    @property
    def choices(self) -> Sequence[Choice]:
        if not self._looked_at:
            return self._reader.choices
        return [choice for reader in self._looked_at for choice in reader.choices]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        former = self._reader
        if self._looked_at:
            for reader in self._looked_at:
                reader.read(at)
            self._recognize()
        else:
            former.read(at)
            if len(self._candidates) > 1:
                self._plan()
        changed = self._reader.store(attributes, at)
        if former is not self._reader:
            for key in former.keys - self._reader.keys:
                sample = attributes.sample(key)
                if sample is not None and sample.value is not None:
                    changed |= attributes.deny(key, at)
        return changed

    def _plan(self) -> None:
        """Whether the next page is looked at for all candidates."""
        if not self._reader.named:
            self._pause = 1
            self._look()
        elif self.chosen is Chosen.RECOGNIZED:
            self._next_look -= 1
            if not self._next_look:
                self._look()

    def _look(self) -> None:
        self._looked_at = [
            self._reader if engine is self.engine else EngineReader(engine) for engine in self._candidates
        ]

    def _recognize(self) -> None:
        """Of what a look has found, the engine; the look goes on when that is none."""
        default, *others = self._looked_at
        # All of an engine's metrics go before some: engines can share a name.
        found = default if default.named else max(others, key=lambda one: one.requests)
        if found is not default and not found.requests:
            return
        if found is not self._reader:
            self._reader, self._pause = found, 1
        self.chosen = Chosen.DEFAULT if found is default else Chosen.RECOGNIZED
        self._looked_at = []
        self._next_look, self._pause = self._pause, min(2 * self._pause, LATEST_LOOK)

    def findings(self) -> list[Finding]:
        return self._reader.findings()

    def describe(self) -> dict[str, str]:
        described = {"engine": self.engine.name, "engine_chosen_by": self.chosen.value}
        return described | {"unknown_engine_label": self._unknown} if self._unknown else described

    def __repr__(self) -> str:
        looking = f", looking at {len(self._looked_at)}" if self._looked_at else ""
        return f"<CoreBinding {self.engine.name} by {self.chosen}{looking}>"
