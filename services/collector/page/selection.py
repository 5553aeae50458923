"""What is kept of a metric's series while the page is scanned.

Where nothing else is asked for, series that a specification matches are neither added up nor averaged: the newest one
speaks for all, as in the Go original. A selector keeps the best series so far, or what they come to, and no more of
them than its limit, so a page with a million series takes no more memory than one with two.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from enum import StrEnum

from services.collector.page.scan import parse_labels
from services.collector.page.spec import MetricSpec

MOST_LABELS_TEXT = 4096
"""Bytes of the labels of a series that is remembered from page to page."""


class Outcome(StrEnum):
    """What the last page said about a specification."""

    FOUND = "found"
    ABSENT = "absent"
    """The page has no sample of that name."""
    NO_SERIES = "no series"
    """There are samples of that name, but none with the wanted labels."""
    INVALID = "invalid"
    """The series is there, but its value is none that the attribute can have."""
    UNOBSERVED = "unobserved"
    """The series is there, but nothing has been observed on it that would make a value."""
    UNKNOWN = "unknown"
    """No page has been read yet."""


class Selector(ABC):
    """Takes part in scans: cleared before it is offered every sample of its metric, then asked what it has."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.name = spec.name.encode()
        """The metric's name as it stands on a page."""
        self.value = 0.0
        """The selected series' value, or what the series come to, when `found`."""
        self.labels_text = b""
        self.found = False
        self.seen = False
        """Whether the page has any sample of that name."""

    def clear(self) -> None:
        self.found = self.seen = False

    @abstractmethod
    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        """One sample, as `services.collector.page.scan` gives it."""

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


class _Best(Selector):
    """Selects one series: of those with the specification's labels that with the greatest rank. Ties keep the first,
    and ranks below 0 (or no number) never win."""

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


class Newest(_Best):
    """Selects the series with the greatest explicit timestamp; none counts as 0."""

    def rank(self, value: float, timestamp: float) -> float:
        return timestamp


class Greatest(_Best):
    """Selects the series with the greatest value, for metrics whose value is the time at which they were said."""

    def rank(self, value: float, timestamp: float) -> float:
        return value


class _Fold(Selector):
    """What all series with the specification's labels come to. Samples in a row with the same labels are one series,
    which counts with the value of its greatest timestamp, ties with the first. A value that is no number makes the
    result none."""

    def __init__(self, spec: MetricSpec) -> None:
        super().__init__(spec)
        self._before = 0.0
        """What the series before the last one come to."""
        self._folded = 0.0
        self._series = 0
        self._timestamp = 0.0

    def clear(self) -> None:
        super().clear()
        self._series = 0

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        if not self.found or labels != self.labels_text:
            if self.spec.labels and not self.spec.matches(parse_labels(labels)):
                return
            self._before = self._folded
            self._series += 1
            self.found, self.labels_text = True, labels
        elif not timestamp > self._timestamp:
            return
        self._timestamp = timestamp
        self._folded = value if self._series == 1 else self.fold(self._before, value)
        self.value = self.result(self._folded, self._series)

    @abstractmethod
    def fold(self, before: float, value: float) -> float: ...

    def result(self, folded: float, series: int) -> float:
        return folded


class Sum(_Fold):
    """Adds the series up."""

    def fold(self, before: float, value: float) -> float:
        return before + value


class Mean(Sum):
    """The mean of the series' values."""

    def result(self, folded: float, series: int) -> float:
        return folded / series


class Max(_Fold):
    """The greatest value."""

    def fold(self, before: float, value: float) -> float:
        return value if value > before or value != value else before


class Min(_Fold):
    """The smallest value."""

    def fold(self, before: float, value: float) -> float:
        return value if value < before or value != value else before


class Series(Selector):
    """Keeps every series with the specification's labels, up to a limit: counters, each to be compared with what it
    was on the page before. A value that is no finite number, or negative, is passed over, unless `signed`."""

    def __init__(self, spec: MetricSpec, limit: int, *, signed: bool = False) -> None:
        super().__init__(spec)
        self.values: dict[bytes, float] = {}
        """By the text of the series' labels; a new mapping for each page."""
        self.crowded = False
        """Whether there are more than the limit, or one with labels that are too long to be remembered."""
        self._limit = limit
        self._signed = signed
        self._timestamps: dict[bytes, float] = {}

    def clear(self) -> None:
        super().clear()
        self.values = {}
        self._timestamps = {}
        self.crowded = False

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.seen = True
        if not math.isfinite(value) or (value < 0 and not self._signed):
            return
        if labels in self.values:
            if timestamp > self._timestamps.get(labels, 0.0):
                self.values[labels], self._timestamps[labels] = value, timestamp
            return
        if self.crowded or (self.spec.labels and not self.spec.matches(parse_labels(labels))):
            return
        self.found = True
        if len(self.values) >= self._limit or len(labels) > MOST_LABELS_TEXT:
            self.crowded = True
            return
        self.values[labels] = value
        if timestamp:
            self._timestamps[labels] = timestamp

    def __repr__(self) -> str:
        return f"<Series {self.spec} {self.outcome} {len(self.values)}{' and more' if self.crowded else ''}>"


class Choice:
    """One quantity under the names that it has had: the specifications are tried in order until one is found.

    The one that was found last is tried first, so that an old server costs no second look at every page. What was
    found stays until it is looked for again, so a page that is known to say the same needs no look at all.
    """

    def __init__(self, alternatives: Sequence[Selector]) -> None:
        self._alternatives = list(alternatives)
        self._tried = 0

    @property
    def specs(self) -> tuple[MetricSpec, ...]:
        """The specifications, those that are tried first being first."""
        return tuple(one.spec for one in self._alternatives)

    @property
    def only(self) -> bool:
        """Whether there is nothing else to try when what is tried first isn't found."""
        return len(self._alternatives) == 1

    @property
    def found(self) -> bool:
        """Whether what is tried first was found."""
        return self._alternatives[0].found

    def begin(self) -> None:
        """A new page: the first is looked for first."""
        self._tried = 0

    def next(self) -> Selector | None:
        """What to look for next on this page; None when there is nothing more to try, or it has been found. It has to
        be cleared before it is offered samples."""
        if self._tried and self._alternatives[self._tried - 1].found:
            return None
        if self._tried == len(self._alternatives):
            return None
        selector = self._alternatives[self._tried]
        self._tried += 1
        return selector

    def take(self) -> Selector | None:
        """End of the page: the selector that has found something, if one has."""
        # One at most: what is tried after another one is tried because that has found nothing.
        for index, selector in enumerate(self._alternatives):
            if selector.found:
                if index:
                    self._alternatives.insert(0, self._alternatives.pop(index))
                return selector
        return None

    def outcome(self) -> Outcome:
        """What the last page said."""
        outcomes = [one.outcome for one in self._alternatives]
        for outcome in (Outcome.FOUND, Outcome.NO_SERIES):
            if outcome in outcomes:
                return outcome
        return Outcome.ABSENT

    def __str__(self) -> str:
        return " or ".join(str(one.spec) for one in self._alternatives)

    def __repr__(self) -> str:
        return f"<Choice {self} {self.outcome()}>"


def is_amount(value: float) -> bool:
    """Whether a value can be an amount of something: finite and not negative."""
    return math.isfinite(value) and value >= 0
