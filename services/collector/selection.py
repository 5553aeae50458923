"""Which of a metric's series an attribute is read from: one at a time, while the page is scanned.

Series that a specification matches are never added up or averaged: the newest one speaks for all, as in the Go
original. A selector keeps the best series so far and nothing else, so a page with a million series takes no more memory
than one with two.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum

from services.collector.scan import parse_labels
from services.collector.spec import MetricSpec


class Outcome(StrEnum):
    """What the last page said about a specification."""

    FOUND = "found"
    ABSENT = "absent"
    """The page has no sample of that name."""
    NO_SERIES = "no series"
    """There are samples of that name, but none with the wanted labels."""
    INVALID = "invalid"
    """The series is there, but its value is none that the attribute can have."""
    UNKNOWN = "unknown"
    """No page has been read yet."""


class Selector:
    """Takes part in scans: cleared before each page, offered every sample of its metric, then asked what it has."""

    def __init__(self, spec: MetricSpec) -> None:
        self.spec = spec
        self.name = spec.name.encode()
        """The metric's name as it stands on a page."""
        self.value = 0.0
        """The selected series' value, when `found`."""
        self.labels_text = b""
        self.found = False
        self.seen = False
        """Whether the page has any sample of that name."""
        self._rank = 0.0

    def clear(self) -> None:
        self.found = self.seen = False

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        """One sample. Of those with the specification's labels that with the greatest rank stays; ties keep the first,
        and those below 0 (or no number) never win."""
        self.seen = True
        rank = self.rank(value, timestamp)
        if not rank >= 0 or (self.found and rank <= self._rank):
            return
        if self.spec.labels and not self.spec.matches(parse_labels(labels)):
            return
        self.found, self.value, self.labels_text, self._rank = True, value, labels, rank

    def rank(self, value: float, timestamp: float) -> float:
        raise NotImplementedError

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


class Newest(Selector):
    """Selects the series with the greatest explicit timestamp; none counts as 0."""

    def rank(self, value: float, timestamp: float) -> float:
        return timestamp


class Greatest(Selector):
    """Selects the series with the greatest value, for metrics whose value is the time at which they were said."""

    def rank(self, value: float, timestamp: float) -> float:
        return value


class Choice:
    """One quantity under the names that it has had: the specifications are tried in order until one is found.

    The one that was found last is tried first, so that an old server costs no second look at every page.
    """

    def __init__(self, alternatives: Sequence[Selector]) -> None:
        self._alternatives = list(alternatives)
        self._tried = 0

    def next(self) -> Selector | None:
        """What to look for next on this page; None when there is nothing more to try, or it has been found."""
        if self._tried and self._alternatives[self._tried - 1].found:
            return None
        if self._tried == len(self._alternatives):
            return None
        selector = self._alternatives[self._tried]
        selector.clear()
        self._tried += 1
        return selector

    def take(self) -> Selector | None:
        """End of the page: the selector that has found something, if one has."""
        winner = self._tried - 1
        self._tried = 0
        if winner < 0 or not self._alternatives[winner].found:
            return None
        if winner:
            self._alternatives.insert(0, self._alternatives.pop(winner))
        return self._alternatives[0]

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
