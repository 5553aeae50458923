"""What a configuration or flags ask for that isn't on a page, and which names on it come near.

Metrics of built-in engines aren't asked for by anybody: a server publishes some of them only once they have a value.
What the user has written down is: a metric that isn't there then is most likely misspelt.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.core.parameters import FLAT
from services.collector.interfaces import Binding, Extractor, Finding, MetricsBinding
from services.collector.page.meter import Meter
from services.collector.page.selection import Choice, Newest, Outcome
from services.collector.page.spec import MetricSpec, parse_spec
from shared.attributes import AttributeMap
from shared.config.problems import closest

SUGGESTED = 3
"""Names that are suggested at most."""
ALIKE = 0.5
"""Share of the words of two names that they have in common, from which on one is suggested for the other."""


class Missing(Struct, frozen=True, kw_only=True, rename="camel"):
    """A series that was asked for."""

    specification: str
    outcome: str
    """Whether the page has no sample of that name, or none with these labels."""
    similar: tuple[str, ...] = ()
    """Names on the page that are like it."""

    def __str__(self) -> str:
        near = f"; similar names: {', '.join(self.similar)}" if self.similar else ""
        return f"{self.specification}: {self.outcome}{near}"


class Asked(MetricsBinding):
    """Looks on the pages of one endpoint for all series that an extractor was told of; stores nothing."""

    def __init__(self, extractor: Extractor, binding: Binding) -> None:
        self._binding = binding
        self._default = ""
        self._choices: dict[str, list[Choice]] = {}
        """By the engine that has them, empty for an extractor that knows none."""
        if isinstance(extractor, CoreMetricsExtractor):
            self._default = extractor.parameters.default_engine
            for engine, specs in _of_engines(extractor):
                self._choices[engine] = [Choice([Newest(spec)]) for spec in specs]
        elif isinstance(binding, MetricsBinding):
            found = [spec for choice in binding.choices for spec in choice.specs]
            self._choices[""] = [Choice([Newest(spec)]) for spec in dict.fromkeys(found)]

    @property
    def choices(self) -> Sequence[Choice]:
        return [choice for choices in self._choices.values() for choice in choices]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        return False

    def findings(self) -> list[Finding]:
        return []

    def missing(self, page: bytes) -> tuple[Missing, ...]:
        """What the last page, given here once more, doesn't have."""
        outcomes = {str(one): one.outcome() for one in self._choices.get(self._engine(), ())}
        names = sample_names(page)
        return tuple(
            Missing(specification=what, outcome=outcome.value, similar=similar(what.partition("{")[0], names))
            if outcome is Outcome.ABSENT
            else Missing(specification=what, outcome=outcome.value)
            for what, outcome in outcomes.items()
            if outcome is not Outcome.FOUND
        )

    def _engine(self) -> str:
        """Whose metrics are to be on the page: the endpoint's engine's, or where that is a built-in one which was
        recognized because the default's aren't there, the default's."""
        decided = self._binding.describe()
        engine = decided.get("engine", "")
        return engine if engine in self._choices or decided.get("engine_chosen_by") == "label" else self._default


def _of_engines(extractor: CoreMetricsExtractor) -> Iterator[tuple[str, list[MetricSpec]]]:
    """The engines that the user has defined, each with the series that the definition names."""
    parameters = extractor.parameters
    if parameters.flat:
        yield parameters.default_engine, _specs(getattr(parameters, field) for field in FLAT)
    for config in parameters.engine_configs:
        fields = [field for field in config.__struct_fields__ if field.endswith("_spec")]
        meters = [Meter(one.metric().measure) for one in config.custom_metrics]
        made = [spec for meter in meters for choice in meter.choices for spec in choice.specs]
        yield config.name, [*_specs(getattr(config, field) for field in fields), *dict.fromkeys(made)]


def _specs(texts: Iterable[str | None]) -> list[MetricSpec]:
    return [spec for text in texts if text and (spec := parse_spec(text)) is not None]


def sample_names(page: bytes) -> list[str]:
    """The names of a page's samples, in order."""
    lines = (line for line in page.splitlines() if line.strip() and not line.startswith(b"#"))
    return list(dict.fromkeys(re.split(rb"[{\s]", line, maxsplit=1)[0].decode("utf-8", "replace") for line in lines))


def similar(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Of the names those that may be meant: misspelt almost alike, else of mostly the same words, the likest first."""
    if meant := closest(name, names):
        return (meant,)
    words = _words(name)
    shares = {one: len(words & _words(one)) / len(words | _words(one)) for one in names}
    return tuple(sorted((one for one in names if shares[one] >= ALIKE), key=lambda one: -shares[one])[:SUGGESTED])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
