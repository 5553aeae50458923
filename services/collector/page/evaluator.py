"""Evaluates a `MetricQuery` over the pages of one endpoint. Pure: the caller passes the time.

Counters are compared series by series with the page before. A counter that is lower than before was reset: its value is
its increase, and so is that of a series that appears later. The first page gives no increases.

A mean or quantile covers the observations within the window only. Older ones would count as fresh forever, and a server
that isn't chosen because of them would never observe anything else.

Memory is bounded: `MAX_SERIES` series and `MAX_ALL_LABELS_BYTES` of their labels, twice as much of former pages,
`MAX_GROUPS` separate increases, `SAMPLES` points in a window. A page that exceeds one of the first, second and fourth
gives no value. All evaluators together remember the bounds of `MAX_SERIES` buckets by their labels.
"""

import math
import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, TypeVar

from services.collector.page.query import Aggregation, Function, MetricQuery
from services.collector.page.selection import (
    MAX_ALL_LABELS_BYTES,
    AllSeries,
    Max,
    Mean,
    MetricFallback,
    Min,
    Newest,
    Outcome,
    Selector,
    Sum,
)
from services.collector.page.spec import MetricSpec
from shared.attributes import AttributeKey, AttributeMap

MAX_SERIES = 1024
MAX_GROUPS = 256
"""Buckets of a histogram, or series with a rate each."""
SAMPLES = 50
"""Points in a window. Its length is exact to one of these steps."""
MAX_TOTAL = 2.0**53
"""Beyond this total a float loses small increases, so the window starts again."""

_LE = re.compile(
    rb"""
    (?: [ \t,]* (?! le [ \t]* = ) [a-zA-Z_][a-zA-Z0-9_]* [ \t]* = [ \t]* " [^"\\]* (?: \\. [^"\\]* )* " )*
    [ \t,]* le [ \t]* = [ \t]* " ( [^"\\]* ) "
    """,
    re.VERBOSE | re.DOTALL,
)

K = TypeVar("K")

_SELECTORS: Mapping[Aggregation, type[Selector]] = {
    Aggregation.NEWEST: Newest,
    Aggregation.SUM: Sum,
    Aggregation.MAX: Max,
    Aggregation.MIN: Min,
    Aggregation.MEAN: Mean,
}


class QueryEvaluator:
    """Keeps a query's state for one endpoint. `fallbacks` select the series of a page; `evaluate` returns the value."""

    def __init__(self, query: MetricQuery) -> None:
        self.query = query
        self._evaluation = _EVALUATIONS[query.function](query)
        self.fallbacks = tuple(MetricFallback([selector]) for selector in self._evaluation.selectors)
        self.outcome = Outcome.UNKNOWN
        """The result of the last page."""
        self.refused: float | None = None
        """The last page's value when it is outside the query's bounds."""
        self._value: float | None = None
        self._seen_at: float | None = None
        """When a page last had the series."""

    def evaluate(self, at: float) -> float | None:
        """The value after a page that was requested at `at` (monotonic seconds); None when the page gives none and the
        value before ages."""
        self._value = self._evaluate(at)
        return self._value

    def _evaluate(self, at: float) -> float | None:
        value = self._evaluation.evaluate(at)
        self.outcome = self._evaluation.outcome
        self.refused = None
        if value is not None and value not in self.query.bounds:
            self.outcome = Outcome.INVALID
            self.refused = None if math.isnan(value) else value
        match self.outcome:
            case Outcome.FOUND | Outcome.UNOBSERVED:
                self._seen_at = at
                if value is not None:
                    return value
                self.outcome = Outcome.UNOBSERVED
                return self.query.empty_value
            case Outcome.ABSENT | Outcome.NO_SERIES:
                if self._seen_at is not None and at - self._seen_at < self.query.window:
                    return None
                return self.query.empty_value
            case _:
                return None

    def store(self, key: AttributeKey[float], attributes: AttributeMap, at: float) -> bool:
        """Put the last page's value into the attributes. Returns whether the attribute changes."""
        if self.refused is not None:
            attributes.refuse(key, self.refused, self.query.bounds)
        return self._value is not None and attributes.put(key, self._value, at)

    def __repr__(self) -> str:
        return f"<QueryEvaluator {self.query} {self.outcome}{'' if self._value is None else f' {self._value:g}'}>"


class _Evaluation(ABC):
    """One function of a query."""

    selectors: Sequence[Selector]
    outcome = Outcome.UNKNOWN

    @abstractmethod
    def __init__(self, query: MetricQuery) -> None: ...

    @abstractmethod
    def evaluate(self, at: float) -> float | None:
        """Set `outcome` and return the value. FOUND without a value: the window has no observations."""


class _Value(_Evaluation):
    """The value of the series."""

    def __init__(self, query: MetricQuery) -> None:
        self._selector = _SELECTORS[query.aggregation](query.spec)
        self.selectors = (self._selector,)

    def evaluate(self, at: float) -> float | None:
        self.outcome = self._selector.outcome
        return self._selector.value if self._selector.found else None


class _Rate(_Evaluation):
    """The increase of counters per second. Every aggregation except the sum needs one rate per series."""

    def __init__(self, query: MetricQuery) -> None:
        self._aggregation = query.aggregation
        self._per_series = query.aggregation is not Aggregation.SUM
        self._series = AllSeries(query.spec, MAX_GROUPS if self._per_series else MAX_SERIES)
        self.selectors = (self._series,)
        self._baselines = _Baselines()
        self._window: _Window[bytes] = _Window(query.window)

    def evaluate(self, at: float) -> float | None:
        self.outcome = _outcome(self._series)
        if self.outcome is Outcome.INVALID:
            return None
        values = self._series.values
        for labels, increase in self._baselines.increases(values):
            self._window.add(labels if self._per_series else b"", increase)
        if self._window.groups > MAX_GROUPS:
            self._window.reset()  # series come and go; the present ones start again
            self.outcome = Outcome.INVALID
        increases, seconds = self._window.increases(at)
        if self.outcome is not Outcome.FOUND or not seconds:
            return None
        if not self._per_series:
            return increases.get(b"", 0.0) / seconds
        rates = [increases.get(labels, 0.0) / seconds for labels in values]
        if self._aggregation is Aggregation.MAX:
            return max(rates)
        return min(rates) if self._aggregation is Aggregation.MIN else sum(rates) / len(rates)


class _Mean(_Evaluation):
    """The mean of the observations of histograms or summaries."""

    def __init__(self, query: MetricQuery) -> None:
        self._sums = AllSeries(_part(query.spec, "_sum"), MAX_SERIES, signed=True)
        self._counts = AllSeries(_part(query.spec, "_count"), MAX_SERIES)
        self.selectors = (self._sums, self._counts)
        self._count_baselines = _Baselines()
        self._sum_baselines: dict[bytes, float] = {}
        self._window: _Window[str] = _Window(query.window)

    def evaluate(self, at: float) -> float | None:
        sums, counts = self._sums.values, self._counts.values
        self.outcome = _outcome(self._sums, self._counts)
        if self.outcome is Outcome.INVALID:
            return None
        if self.outcome is Outcome.FOUND:
            self._add({labels: count for labels, count in counts.items() if labels in sums}, sums)
        else:
            self._count_baselines.increases({})
        if self.outcome is Outcome.FOUND and not any(counts.values()):
            self._window.clear()
            self.outcome = Outcome.UNOBSERVED
        increases, _ = self._window.increases(at)
        count = increases.get("count", 0.0)
        return increases.get("sum", 0.0) / count if self.outcome is Outcome.FOUND and count > 0 else None

    def _add(self, counts: Mapping[bytes, float], sums: Mapping[bytes, float]) -> None:
        baselines = self._count_baselines
        for labels, count in counts.items():
            count_before, total = baselines.values.get(labels), sums[labels]
            if count_before is None:
                increase = total if baselines.started else 0.0
            else:
                # Only the count shows a reset: negative observations lower the sum without one.
                increase = total if count < count_before else total - self._sum_baselines.get(labels, 0.0)
            if increase:
                self._window.add("sum", increase)
        for _, increase in baselines.increases(counts):
            self._window.add("count", increase)
        before = self._sum_baselines
        self._sum_baselines = {labels: sums.get(labels, before.get(labels, 0.0)) for labels in baselines.values}


class _Quantile(_Evaluation):
    """A quantile of the observations of histograms."""

    def __init__(self, query: MetricQuery) -> None:
        self._series = AllSeries(_part(query.spec, "_bucket"), MAX_SERIES)
        self.selectors = (self._series,)
        self._quantile = query.quantile
        self._baselines = _Baselines()
        self._window: _Window[float] = _Window(query.window)
        self._bounds: dict[bytes, float | None] = {}
        """By the labels' text."""

    def evaluate(self, at: float) -> float | None:
        values = self._series.values
        self.outcome = _outcome(self._series)
        if self.outcome is Outcome.INVALID:
            return None
        before = self._baselines.values
        increased = self._baselines.increases(values)
        if self._baselines.values is not before:
            self._bounds.clear()
        for labels, increase in increased:
            if labels not in self._bounds:
                self._bounds[labels] = upper_bound(labels)
            bound = self._bounds[labels]
            if bound is not None:
                self._window.add(bound, increase)
        if self._window.groups > MAX_GROUPS:
            self._window.reset()
            self.outcome = Outcome.INVALID
            return None
        if self.outcome is Outcome.FOUND and not any(values.values()):
            self._window.clear()
            self.outcome = Outcome.UNOBSERVED
        increases, _ = self._window.increases(at)
        if self.outcome is not Outcome.FOUND or not any(increases.values()):
            return None
        value = histogram_quantile(self._quantile, increases)
        if value is None:
            self.outcome = Outcome.INVALID
        return value


def histogram_quantile(quantile: float, buckets: Mapping[float, float]) -> float | None:
    """PromQL's function: a quantile (0 to 1) of the cumulative counts of buckets by their upper bounds.

    It interpolates linearly within a bucket; the lowest one begins at 0 if its bound is positive. In the bucket +Inf
    it returns the last finite bound. None without a bucket +Inf or any other one. When a count is lower than that of a
    lower bound, because the page isn't taken in one moment, the higher count applies to both.
    """
    bounds = sorted(buckets)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return None
    counts: list[float] = []
    most = 0.0
    for bound in bounds:
        most = max(most, buckets[bound])
        counts.append(most)
    if not most:
        return None
    rank = quantile * most
    index = next(index for index, count in enumerate(counts) if count >= rank and count > 0)
    if index == len(bounds) - 1:
        return bounds[-2]
    upper = bounds[index]
    if index == 0 and upper <= 0:
        return upper
    lower, below = (0.0, 0.0) if index == 0 else (bounds[index - 1], counts[index - 1])
    return lower + (upper - lower) * (max(0.0, rank - below) / (counts[index] - below))


class _Baselines:
    """The value of each counter on the last page that had it."""

    def __init__(self) -> None:
        self.values: dict[bytes, float] = {}
        self.started = False
        self._page: Mapping[bytes, float] | None = None

    def increases(self, values: Mapping[bytes, float]) -> list[tuple[bytes, float]]:
        """The counters that have increased, by their labels."""
        if values is self._page:
            return []  # the page repeats the last one, so nothing read it again
        before = self.values
        increases: list[tuple[bytes, float]] = []
        for labels, value in values.items():
            last = before.get(labels, 0.0 if self.started else value)
            if value != last:
                increases.append((labels, value - last if value > last else value))
        known = len(before)
        before.update(values)
        if len(before) > known and (len(before) > 2 * MAX_SERIES or sum(map(len, before)) > 2 * MAX_ALL_LABELS_BYTES):
            self.values = dict(values)
        self._page, self.started = values, True
        return increases


class _Window(Generic[K]):
    """The increases of several totals over the last seconds."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._totals: dict[K, float] = {}
        self._sampled = True
        """Whether a sample holds `_totals`, so that the next change needs a copy."""
        self._samples: deque[tuple[float, dict[K, float]]] = deque()

    @property
    def groups(self) -> int:
        return len(self._totals)

    def add(self, group: K, increase: float) -> None:
        total = self._totals.get(group, 0.0) + increase
        if not abs(total) < MAX_TOTAL:
            self.reset()
            return
        if self._sampled:
            self._totals, self._sampled = dict(self._totals), False
        self._totals[group] = total

    def clear(self) -> None:
        """Start a new window with the present totals."""
        self._samples.clear()

    def reset(self) -> None:
        """Forget all groups."""
        self._totals, self._sampled = {}, True
        self._samples.clear()

    def increases(self, at: float) -> tuple[dict[K, float], float]:
        """The increases since the window's start, and the seconds since then: less than the length at first, 0 on the
        first call."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= at - self._length:
            samples.popleft()
        if not samples or at - samples[-1][0] >= self._length / SAMPLES:
            samples.append((at, self._totals))
            self._sampled = True
        since, base = samples[0]
        if base is self._totals:
            return {}, at - since
        return {group: total - base.get(group, 0.0) for group, total in self._totals.items()}, at - since


def _outcome(*selectors: AllSeries) -> Outcome:
    """The worst outcome of several selectors."""
    if any(selector.over_limit for selector in selectors):
        return Outcome.INVALID
    outcomes = [selector.outcome for selector in selectors]
    for outcome in (Outcome.ABSENT, Outcome.NO_SERIES):
        if outcome in outcomes:
            return outcome
    return Outcome.FOUND


def _part(spec: MetricSpec, suffix: str) -> MetricSpec:
    return MetricSpec(spec.name + suffix, spec.labels)


@lru_cache(maxsize=MAX_SERIES)
def upper_bound(labels: bytes) -> float | None:
    """A bucket's label `le`, if it is a number. The other labels aren't parsed: there may be hundreds. Several queries
    of one page, such as several quantiles of a histogram, find it once."""
    found = _LE.match(labels)
    try:
        bound = math.nan if found is None else float(found.group(1))
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


_EVALUATIONS: Mapping[Function, type[_Evaluation]] = {
    Function.VALUE: _Value,
    Function.RATE: _Rate,
    Function.MEAN: _Mean,
    Function.QUANTILE: _Quantile,
}
