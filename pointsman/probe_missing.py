"""Metrics that a configuration or flags request and that a page doesn't have, with similar names on the page.

Metrics of built-in engines aren't requested: a server publishes some of them only once they have a value. A metric that
the user has named and that isn't on the page is most likely misspelled.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.core.parameters import FLAT
from services.collector.interfaces import Binding, Extractor, Finding, MetricsBinding
from services.collector.page.evaluator import QueryEvaluator
from services.collector.page.selection import MetricFallback, Newest, Outcome
from services.collector.page.spec import MetricSpec, parse_spec
from shared.attributes import AttributeMap
from shared.config.problems import closest

SUGGESTED = 3
"""Suggested names at most."""
ALIKE = 0.5
"""Share of common words from which on a name is suggested for another."""


COMPARED = 2000
"""Names of a page, from its beginning, that are compared with a missing one: each takes up to 0.1 ms."""


class MissingMetric(Struct, frozen=True, kw_only=True, rename="camel"):
    """A requested series."""

    specification: str
    outcome: str
    """Whether the page has no sample of that name, or none with these labels."""
    similar: tuple[str, ...] = ()
    """Similar names on the page."""

    def __str__(self) -> str:
        near = f"; similar names: {', '.join(self.similar)}" if self.similar else ""
        return f"{self.specification}: {self.outcome}{near}"


class RequestedMetrics(MetricsBinding):
    """Looks for all series that the user has named for an extractor on the pages of one endpoint; stores nothing."""

    def __init__(self, extractor: Extractor, binding: Binding) -> None:
        self._binding = binding
        self._default = ""
        self._fallbacks: dict[str, list[MetricFallback]] = {}
        """By engine; empty for an extractor without engines."""
        if isinstance(extractor, CoreMetricsExtractor):
            self._default = extractor.parameters.default_engine
            for engine, specs in _of_engines(extractor):
                self._fallbacks[engine] = [MetricFallback([Newest(spec)]) for spec in specs]
        elif isinstance(binding, MetricsBinding):
            found = [spec for fallback in binding.fallbacks for spec in fallback.specs]
            self._fallbacks[""] = [MetricFallback([Newest(spec)]) for spec in dict.fromkeys(found)]

    @property
    def fallbacks(self) -> Sequence[MetricFallback]:
        return [fallback for fallbacks in self._fallbacks.values() for fallback in fallbacks]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        return False

    def findings(self) -> list[Finding]:
        return []

    def missing(self, page: bytes) -> tuple[MissingMetric, ...]:
        """The requested series that the last page, passed again, doesn't have."""
        outcomes = {str(fallback): fallback.outcome() for fallback in self._fallbacks.get(self._engine(), ())}
        names = sample_names(page)
        return tuple(
            MissingMetric(specification=what, outcome=outcome.value, similar=similar(what.partition("{")[0], names))
            if outcome is Outcome.ABSENT
            else MissingMetric(specification=what, outcome=outcome.value)
            for what, outcome in outcomes.items()
            if outcome is not Outcome.FOUND
        )

    def _engine(self) -> str:
        """The engine whose metrics the page should have: the endpoint's, or the default engine if a built-in one was
        recognized only because the default's metrics are missing."""
        decided = self._binding.describe()
        engine = decided.get("engine", "")
        return engine if engine in self._fallbacks or decided.get("engine_chosen_by") == "label" else self._default


def _of_engines(extractor: CoreMetricsExtractor) -> Iterator[tuple[str, list[MetricSpec]]]:
    """The engines that the user has defined, each with its series."""
    parameters = extractor.parameters
    if parameters.flat:
        yield parameters.default_engine, _specs(getattr(parameters, field) for field in FLAT)
    for config in parameters.engine_configs:
        fields = [field for field in config.__struct_fields__ if field.endswith("_spec")]
        evaluators = [QueryEvaluator(metric.metric().query) for metric in config.custom_metrics]
        made = [spec for evaluator in evaluators for fallback in evaluator.fallbacks for spec in fallback.specs]
        yield config.name, [*_specs(getattr(config, field) for field in fields), *dict.fromkeys(made)]


def _specs(texts: Iterable[str | None]) -> list[MetricSpec]:
    return [spec for text in texts if text and (spec := parse_spec(text)) is not None]


def sample_names(page: bytes) -> list[str]:
    """The names of a page's samples, in order."""
    lines = (line for line in page.splitlines() if line.strip() and not line.startswith(b"#"))
    return list(dict.fromkeys(re.split(rb"[{\s]", line, maxsplit=1)[0].decode("utf-8", "replace") for line in lines))


def similar(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """The name that this one most likely misspells; otherwise names with mostly the same words, best first. Looks at
    the first `COMPARED` names."""
    names = names[:COMPARED]
    if match := closest(name, names):
        return (match,)
    words = _words(name)
    shares = {candidate: len(words & _words(candidate)) / len(words | _words(candidate)) for candidate in names}
    return tuple(
        sorted(
            (candidate for candidate in names if shares[candidate] >= ALIKE), key=lambda candidate: -shares[candidate]
        )[:SUGGESTED]
    )


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))
