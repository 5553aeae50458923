"""Selects or aggregates the series that match a metric specification while a page is scanned.

By default the series with the newest timestamp gives the value, as in the Go EPP. A selector keeps one series, one
aggregate, or a limited number of series. So a page with a million series takes no more memory than one with two.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum

from services.collector.page.scan import parse_labels
from services.collector.page.spec import MetricSpec

MAX_LABELS_BYTES = 4096
"""The longest labels of a series that `AllSeries` keeps."""
MAX_ALL_LABELS_BYTES = 512 * 1024
"""The labels of all series that it keeps."""


class Outcome(StrEnum):
    """The result of looking for a specification on the last page."""

    FOUND = "found"
    ABSENT = "absent"
    """The page has no sample of that name."""
    NO_SERIES = "no series"
    """The page has samples of that name, but none with the required labels."""
    INVALID = "invalid"
    """The page has the series, but the attribute can't have its value."""
    UNOBSERVED = "unobserved"
    """The page has the series, but the window contains no observations."""
    UNKNOWN = "unknown"
    """No page has been read yet."""


class Selector(ABC):
    """Receives every sample of one metric. `clear` comes before each scan."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.name = spec.name.encode()
        """The sample name on the page."""
        self.value = 0.0
        """The selected series' value or the aggregate, valid when `found`."""
        self.labels_text = b""
        self.found = False
        self.seen = False
        """Whether the page has any sample of that name, whatever its labels."""

    def clear(self) -> None:
        self.found = self.seen = False

    @abstractmethod
    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        """Take one sample from `services.collector.page.scan`."""

    @property
    def labels(self) -> Mapping[str, str]:
        """The selected series' labels."""
        return parse_labels(self.labels_text)

    @property
    def outcome(self) -> Outcome:
        if self.found:
            return Outcome.FOUND
        return Outcome.NO_SERIES if self.seen else Outcome.ABSENT

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec} {self.outcome}{f' {self.value}' if self.found else ''}>"


class _Ranked(Selector):
    """Selects the matching series with the highest rank. Ties keep the first. A negative or NaN rank never wins."""

    def __init__(self, spec: MetricSpec) -> None:
        super().__init__(spec)
        self._rank = 0.0

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        rank = self.rank(value, timestamp)
        if not rank >= 0 or (self.found and rank <= self._rank):
            return
        if self.spec.labels and not self.spec.matches(parse_labels(labels)):
            return
        self.found, self.value, self.labels_text, self._rank = True, value, labels, rank

    @abstractmethod
    def rank(self, value: float, timestamp: float) -> float: ...


class Newest(_Ranked):
    """Selects the series with the newest timestamp. A missing timestamp counts as 0."""

    def rank(self, value: float, timestamp: float) -> float:
        return timestamp


class Greatest(_Ranked):
    """Selects the series with the greatest value, for metrics whose value is a timestamp."""

    def rank(self, value: float, timestamp: float) -> float:
        return value


class _Aggregate(Selector):
    """Aggregates all matching series. Consecutive samples with equal labels are one series; its newest timestamp gives
    the value, ties keep the first. NaN makes the result NaN."""

    def __init__(self, spec: MetricSpec) -> None:
        super().__init__(spec)
        self._before = 0.0
        """The aggregate without the last series."""
        self._aggregate = 0.0
        self._count = 0
        self._timestamp = 0.0

    def clear(self) -> None:
        super().clear()
        self._count = 0

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        if not self.found or labels != self.labels_text:
            if self.spec.labels and not self.spec.matches(parse_labels(labels)):
                return
            self._before = self._aggregate
            self._count += 1
            self.found, self.labels_text = True, labels
        elif not timestamp > self._timestamp:
            return
        self._timestamp = timestamp
        self._aggregate = value if self._count == 1 else self.combine(self._before, value)
        self.value = self.result(self._aggregate, self._count)

    @abstractmethod
    def combine(self, before: float, value: float) -> float: ...

    def result(self, aggregate: float, count: int) -> float:
        return aggregate


class Sum(_Aggregate):
    """The sum of the values."""

    def combine(self, before: float, value: float) -> float:
        return before + value


class Mean(Sum):
    """The mean of the values."""

    def result(self, aggregate: float, count: int) -> float:
        return aggregate / count


class Max(_Aggregate):
    """The greatest value."""

    def combine(self, before: float, value: float) -> float:
        return value if value > before or value != value else before


class Min(_Aggregate):
    """The smallest value."""

    def combine(self, before: float, value: float) -> float:
        return value if value < before or value != value else before


class AllSeries(Selector):
    """Keeps every matching series up to a limit: counters that are compared with the page before. Infinite, NaN and,
    unless `signed`, negative values are ignored."""

    def __init__(self, spec: MetricSpec, limit: int, *, signed: bool = False) -> None:
        super().__init__(spec)
        self.values: dict[bytes, float] = {}
        """By the labels' text. Each page gets a new mapping."""
        self.over_limit = False
        """Whether the page has more series than the limit, or more labels than `MAX_LABELS_BYTES` and
        `MAX_ALL_LABELS_BYTES`."""
        self._limit = limit
        self._bytes = 0
        self._signed = signed
        self._timestamps: dict[bytes, float] = {}

    def clear(self) -> None:
        super().clear()
        self.values = {}
        self._timestamps = {}
        self.over_limit = False
        self._bytes = 0

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        if not math.isfinite(value) or (value < 0 and not self._signed):
            return
        if labels in self.values:
            if timestamp > self._timestamps.get(labels, 0.0):
                self.values[labels], self._timestamps[labels] = value, timestamp
            return
        if self.over_limit or (self.spec.labels and not self.spec.matches(parse_labels(labels))):
            return
        self.found = True
        self._bytes += len(labels)
        over = len(self.values) >= self._limit or len(labels) > MAX_LABELS_BYTES
        if over or self._bytes > MAX_ALL_LABELS_BYTES:
            self.over_limit = True
            return
        self.values[labels] = value
        if timestamp:
            self._timestamps[labels] = timestamp

    def __repr__(self) -> str:
        return f"<AllSeries {self.spec} {self.outcome} {len(self.values)}{' and more' if self.over_limit else ''}>"


class MetricFallback:
    """One metric under its alternative names, in order of preference: the first that a page has is selected.

    The alternative found last moves to the front, so an old server's page is searched once. A selection stays until
    the next `begin`, so a page that repeats the last one needs no search.
    """

    def __init__(self, alternatives: Sequence[Selector]) -> None:
        self._alternatives = list(alternatives)
        self._tried = 0

    @property
    def specs(self) -> tuple[MetricSpec, ...]:
        """The specifications in the order in which they are tried."""
        return tuple(selector.spec for selector in self._alternatives)

    @property
    def settled(self) -> bool:
        """Whether the first alternative was found, or is the only one."""
        return self._alternatives[0].found or len(self._alternatives) == 1

    def begin(self) -> None:
        """Start a new page with the first alternative."""
        self._tried = 0

    def next(self) -> Selector | None:
        """The next alternative to search for on this page; None when one was found or all were tried. The caller
        clears it before it offers samples."""
        if self._tried and self._alternatives[self._tried - 1].found:
            return None
        if self._tried == len(self._alternatives):
            return None
        selector = self._alternatives[self._tried]
        self._tried += 1
        return selector

    def select(self) -> Selector | None:
        """The alternative that was found on this page, if any."""
        # At most one: an alternative is tried only when those before it weren't found.
        for index, selector in enumerate(self._alternatives):
            if selector.found:
                if index:
                    self._alternatives.insert(0, self._alternatives.pop(index))
                return selector
        return None

    def outcome(self) -> Outcome:
        """The result on the last page."""
        outcomes = [selector.outcome for selector in self._alternatives]
        for outcome in (Outcome.FOUND, Outcome.NO_SERIES):
            if outcome in outcomes:
                return outcome
        return Outcome.ABSENT

    def __str__(self) -> str:
        return " or ".join(str(selector.spec) for selector in self._alternatives)

    def __repr__(self) -> str:
        return f"<MetricFallback {self} {self.outcome()}>"
