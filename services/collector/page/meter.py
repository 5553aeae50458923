"""A measure at work for one endpoint: from the series of page after page to a number. Pure: time is passed in.

Counters are compared with what they were on the page before, series by series, so that a server that starts again (its
counters with it) costs nothing: a counter that is lower than before has risen from 0. So has a series that wasn't on
the pages before. On the first page of all nothing has risen yet.

A mean or quantile says what was observed within the window, and no longer: what was observed before it would count as
fresh for ever, and a server that isn't chosen because of it would never observe anything else.

What is kept is bounded, whatever the pages say: `MOST_SERIES` series, `MOST_GROUPS` increases that are told apart,
`SAMPLES` moments of a window. A page that exceeds the first two makes no value.
"""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from services.collector.page.measure import Aggregation, Function, Measure
from services.collector.page.scan import parse_labels
from services.collector.page.selection import Choice, Max, Mean, Min, Newest, Outcome, Selector, Series, Sum
from services.collector.page.spec import MetricSpec
from shared.attributes import AttributeKey, AttributeMap

MOST_SERIES = 1024
MOST_GROUPS = 256
"""Buckets of a histogram, or series whose rates are told apart."""
SAMPLES = 50
"""Moments that a window is divided into; how far back it reaches is exact to one of them."""
MOST_TOTAL = 2.0**53
"""How far a counter may rise in all: beyond, small increases are lost in what is large, so a window begins anew."""

K = TypeVar("K")

_SELECTORS: Mapping[Aggregation, type[Selector]] = {
    Aggregation.NEWEST: Newest,
    Aggregation.SUM: Sum,
    Aggregation.MAX: Max,
    Aggregation.MIN: Min,
    Aggregation.MEAN: Mean,
}


class Meter:
    """Reads its measure off one endpoint's pages.

    Takes part in the reading of each page by its `choices`; `read` after the page says what the measure is now.
    """

    def __init__(self, measure: Measure) -> None:
        self.measure = measure
        self._reading = _READINGS[measure.function](measure)
        self.choices: Sequence[Choice] = self._reading.choices
        """The series that it looks for."""
        self.outcome = Outcome.UNKNOWN
        """What the last page said."""
        self._value: float | None = None
        """What the last page made."""
        self.refused: float | None = None
        """What it made that is beyond the measure's bounds."""
        self._seen_at: float | None = None
        """When a page last had the series."""

    def read(self, at: float) -> float | None:
        """The measure after a page that was asked for at `at` (monotonic seconds); None when the page makes no value
        and what it was before has to age."""
        self._value = self._read(at)
        return self._value

    def _read(self, at: float) -> float | None:
        value = self._reading.read(at)
        self.outcome = self._reading.outcome
        self.refused = None
        if value is not None and value not in self.measure.bounds:
            self.outcome = Outcome.INVALID
            self.refused = None if math.isnan(value) else value
        match self.outcome:
            case Outcome.FOUND | Outcome.UNOBSERVED:
                self._seen_at = at
                if value is not None:
                    return value
                self.outcome = Outcome.UNOBSERVED
                return self.measure.empty_value
            case Outcome.ABSENT | Outcome.NO_SERIES:
                if self._seen_at is not None and at - self._seen_at < self.measure.window:
                    return None
                return self.measure.empty_value
            case _:
                return None

    def store(self, key: AttributeKey[float], attributes: AttributeMap, at: float) -> bool:
        """Put what the last page made into the attributes; whether that is news."""
        if self.refused is not None:
            attributes.refuse(key, self.refused, self.measure.bounds)
        return self._value is not None and attributes.put(key, self._value, at)

    def __str__(self) -> str:
        return str(self.measure)

    def __repr__(self) -> str:
        return f"<Meter {self.measure} {self.outcome}{'' if self._value is None else f' {self._value:g}'}>"


class _Reading(ABC):
    """What one function does after each page."""

    choices: Sequence[Choice]
    outcome = Outcome.UNKNOWN

    @abstractmethod
    def __init__(self, measure: Measure) -> None: ...

    @abstractmethod
    def read(self, at: float) -> float | None:
        """The value, and `outcome`. FOUND without a value: nothing was observed within the window."""


class _Value(_Reading):
    """The series as they stand."""

    def __init__(self, measure: Measure) -> None:
        self._choice = Choice([_SELECTORS[measure.aggregation](measure.spec)])
        self.choices = (self._choice,)

    def read(self, at: float) -> float | None:
        selector = self._choice.take()
        self.outcome = self._choice.outcome()
        return None if selector is None else selector.value


class _Rate(_Reading):
    """How fast counters rise. An aggregation other than the sum tells the series apart."""

    def __init__(self, measure: Measure) -> None:
        self._series = Series(measure.spec, MOST_SERIES if measure.aggregation is Aggregation.SUM else MOST_GROUPS)
        self.choices = (Choice([self._series]),)
        self._aggregation = measure.aggregation
        self._standings = _Standings()
        self._window: _Window[bytes] = _Window(measure.window)

    def read(self, at: float) -> float | None:
        self.choices[0].take()
        series = self._series
        self.outcome = _outcome(series)
        if self.outcome is Outcome.INVALID:
            return None
        values = series.values
        apart = self._aggregation is not Aggregation.SUM
        for text, rise in self._standings.rises(values):
            self._window.add(text if apart else b"", rise)
        if crowded := self._window.groups > MOST_GROUPS:
            self._window.reset()  # series come and go; those that are there begin anew
        risen, seconds = self._window.risen(at)
        if crowded:
            self.outcome = Outcome.INVALID
        if self.outcome is not Outcome.FOUND or not seconds:
            return None
        if not apart:
            return risen.get(b"", 0.0) / seconds
        rates = [risen.get(text, 0.0) / seconds for text in values]
        if self._aggregation is Aggregation.MAX:
            return max(rates)
        return min(rates) if self._aggregation is Aggregation.MIN else sum(rates) / len(rates)


class _Mean(_Reading):
    """What histograms or summaries have observed on average."""

    def __init__(self, measure: Measure) -> None:
        spec = measure.spec
        self._sums = Series(_part(spec, "_sum"), MOST_SERIES, signed=True)
        self._counts = Series(_part(spec, "_count"), MOST_SERIES)
        self.choices = (Choice([self._sums]), Choice([self._counts]))
        self._counted = _Standings()
        self._summed: dict[bytes, float] = {}
        self._window: _Window[str] = _Window(measure.window)

    def read(self, at: float) -> float | None:
        for choice in self.choices:
            choice.take()
        sums, counts = self._sums, self._counts
        self.outcome = _outcome(sums, counts)
        if self.outcome is Outcome.INVALID:
            return None
        if self.outcome is Outcome.FOUND:
            self._add({text: count for text, count in counts.values.items() if text in sums.values}, sums.values)
        else:
            self._counted.rises({})
        if self.outcome is Outcome.FOUND and not any(counts.values.values()):
            self._window.clear()
            self.outcome = Outcome.UNOBSERVED
        risen, _ = self._window.risen(at)
        count = risen.get("count", 0.0)
        return risen.get("sum", 0.0) / count if self.outcome is Outcome.FOUND and count > 0 else None

    def _add(self, counts: Mapping[bytes, float], sums: Mapping[bytes, float]) -> None:
        before = self._counted.standings
        begun = self._counted.begun
        for text, count in counts.items():
            counted, total = before.get(text), sums[text]
            if counted is None:
                rise = total if begun else 0.0
            else:
                # The count says whether the server started again: a sum of negative observations falls by itself.
                rise = total if count < counted else total - self._summed.get(text, 0.0)
            if rise:
                self._window.add("sum", rise)
        for _, rise in self._counted.rises(counts):
            self._window.add("count", rise)
        self._summed = {text: sums.get(text, self._summed.get(text, 0.0)) for text in self._counted.standings}


class _Quantile(_Reading):
    """At or below which value a share of a histogram's observations was."""

    def __init__(self, measure: Measure) -> None:
        self._series = Series(_part(measure.spec, "_bucket"), MOST_SERIES)
        self.choices = (Choice([self._series]),)
        self._share = measure.quantile
        self._standings = _Standings()
        self._window: _Window[float] = _Window(measure.window)

    def read(self, at: float) -> float | None:
        self.choices[0].take()
        values = self._series.values
        self.outcome = _outcome(self._series)
        if self.outcome is Outcome.INVALID:
            return None
        for text, rise in self._standings.rises(values):
            bound = _bound(text)
            if bound is not None:
                self._window.add(bound, rise)
        if self._window.groups > MOST_GROUPS:
            self._window.reset()
            self.outcome = Outcome.INVALID
            return None
        if self.outcome is Outcome.FOUND and not any(values.values()):
            self._window.clear()
            self.outcome = Outcome.UNOBSERVED
        risen, _ = self._window.risen(at)
        if self.outcome is not Outcome.FOUND or not any(risen.values()):
            return None
        value = quantile(self._share, risen)
        if value is None:
            self.outcome = Outcome.INVALID
        return value


def quantile(share: float, risen: Mapping[float, float]) -> float | None:
    """The value that a share (0 to 1) of observations is at or below, from how many are at or below each bound; linear
    within a bucket, the lowest of which begins at 0 where its bound is above that.

    Where it is above the last finite bound, that bound. None without a bound +Inf or any other. As in PromQL, more
    observations at or below a lower bound than at or below a higher one, which pages that aren't taken in one moment
    show, count there too.
    """
    bounds = sorted(risen)
    if len(bounds) < 2 or bounds[-1] != math.inf:
        return None
    counts: list[float] = []
    most = 0.0
    for bound in bounds:
        most = max(most, risen[bound])
        counts.append(most)
    if not most:
        return None
    rank = share * most
    index = next(index for index, count in enumerate(counts) if count >= rank and count > 0)
    if index == len(bounds) - 1:
        return bounds[-2]
    upper = bounds[index]
    if index == 0 and upper <= 0:
        return upper
    lower, below = (0.0, 0.0) if index == 0 else (bounds[index - 1], counts[index - 1])
    return lower + (upper - lower) * (max(0.0, rank - below) / (counts[index] - below))


class _Standings:
    """Where counters stood on the last page that had them."""

    def __init__(self) -> None:
        self.standings: dict[bytes, float] = {}
        self.begun = False
        self._page: Mapping[bytes, float] | None = None

    def rises(self, values: Mapping[bytes, float]) -> list[tuple[bytes, float]]:
        """By how much each counter has risen since; those that haven't are left out."""
        if values is self._page:
            return []  # nobody has read them again, because the page says the same
        before = self.standings
        risen: list[tuple[bytes, float]] = []
        for text, value in values.items():
            last = before.get(text, 0.0 if self.begun else value)
            if value != last:
                risen.append((text, value - last if value > last else value))
        before.update(values)
        if len(before) > 2 * MOST_SERIES:
            self.standings = dict(values)
        self._page, self.begun = values, True
        return risen


class _Window(Generic[K]):
    """How far each of several totals has risen over the last seconds."""

    def __init__(self, length: float) -> None:
        self._length = length
        self._totals: dict[K, float] = {}
        self._noted = True
        """Whether a sample holds the mapping, which then no longer changes."""
        self._samples: deque[tuple[float, dict[K, float]]] = deque()

    @property
    def groups(self) -> int:
        return len(self._totals)

    def add(self, group: K, rise: float) -> None:
        total = self._totals.get(group, 0.0) + rise
        if not abs(total) < MOST_TOTAL:
            self.reset()
            return
        if self._noted:
            self._totals, self._noted = dict(self._totals), False
        self._totals[group] = total

    def clear(self) -> None:
        """Begin anew: what has risen so far no longer counts."""
        self._samples.clear()

    def reset(self) -> None:
        """Forget all groups."""
        self._totals, self._noted = {}, True
        self._samples.clear()

    def risen(self, at: float) -> tuple[dict[K, float], float]:
        """The increases since the window's begin, or since the first moment if that was later, and the seconds since
        then; 0 at the first moment."""
        samples = self._samples
        while len(samples) > 1 and samples[1][0] <= at - self._length:
            samples.popleft()
        if not samples or at - samples[-1][0] >= self._length / SAMPLES:
            samples.append((at, self._totals))
            self._noted = True
        since, base = samples[0]
        if base is self._totals:
            return {}, at - since
        return {group: total - base.get(group, 0.0) for group, total in self._totals.items()}, at - since


def _outcome(*series: Series) -> Outcome:
    """The least of what the last page said of several."""
    if any(one.crowded for one in series):
        return Outcome.INVALID
    outcomes = [one.outcome for one in series]
    for outcome in (Outcome.ABSENT, Outcome.NO_SERIES):
        if outcome in outcomes:
            return outcome
    return Outcome.FOUND


def _part(spec: MetricSpec, end: str) -> MetricSpec:
    return MetricSpec(spec.name + end, spec.labels)


def _bound(labels: bytes) -> float | None:
    """The upper bound of a bucket, if its labels say one."""
    try:
        bound = float(parse_labels(labels).get("le", ""))
    except ValueError:
        return None
    return None if math.isnan(bound) else bound


_READINGS: Mapping[Function, type[_Reading]] = {
    Function.VALUE: _Value,
    Function.RATE: _Rate,
    Function.MEAN: _Mean,
    Function.QUANTILE: _Quantile,
}
