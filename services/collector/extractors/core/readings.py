"""Numbers of a page, and the attributes that are made of them.

A quantity can be had in several ways, the direct one first; the first way whose numbers are all on the page gives its
value. So a derived value is made of numbers of one page, and one that lacks a constituent is missing, not 0.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import isnan
from typing import Any

from services.collector.engines.known import CustomMetric
from services.collector.interfaces import Finding
from services.collector.page.meter import Meter
from services.collector.page.selection import Choice, Outcome, is_amount
from shared.attributes import ACTIVE_MODELS, MAX_ACTIVE_MODELS, WAITING_MODELS, AttributeKey, AttributeMap

MOST_LORA_TEXT = 64 * 1024
"""Bytes of a LoRA series' labels: what is longer is no list of adapters, and would fill the frames of all endpoints."""
MOST_LORA_NAMES = 1000
"""Names in them: pickers look each up by itself, at some microseconds a name that is new."""
MOST_DIGITS = 400
"""Of a whole number that are read: with as many it is beyond every float."""


class Number(ABC):
    """A number that each page may have."""

    def __init__(self) -> None:
        self.value: float | None = None
        """Of the last page; None where it didn't have any. One that is no amount is `INVALID`."""
        self.outcome = Outcome.UNKNOWN

    @property
    @abstractmethod
    def what(self) -> str:
        """The specification."""

    @property
    def amount(self) -> float | None:
        """The value where it is one."""
        return None if self.outcome is Outcome.INVALID else self.value

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.what} {self.outcome} {self.value}>"


class Amount(Number):
    """The selected series' value; `whole` truncates it towards zero."""

    def __init__(self, choice: Choice, *, whole: bool = False) -> None:
        super().__init__()
        self.choice = choice
        self._whole = whole

    def read(self) -> None:
        """A page has been scanned: take what it said."""
        selector = self.choice.take()
        if selector is None:
            self.value, self.outcome = None, self.choice.outcome()
            return
        self.value, self.outcome = selector.value, Outcome.FOUND
        if not is_amount(self.value):
            self.value, self.outcome = None if isnan(self.value) else self.value, Outcome.INVALID
        elif self._whole:
            self.value = float(int(self.value))

    @property
    def what(self) -> str:
        return str(self.choice)


class LabelNumbers:
    """A series that has whole numbers as labels; a label that is missing or no number costs only its own number."""

    def __init__(self, choice: Choice, labels: Sequence[str]) -> None:
        self.choice = choice
        self.numbers = [_LabelNumber(choice, label) for label in labels]
        self.outcome = Outcome.UNKNOWN
        """What the last page said of the series."""
        self._text: bytes | None = None

    def read(self) -> None:
        """A page has been scanned: take what it said."""
        selector = self.choice.take()
        if selector is None:
            self.outcome = self.choice.outcome()
            for number in self.numbers:
                number.value, number.outcome = None, self.outcome
            self._text = None
        elif selector.labels_text != self._text:
            self.outcome = Outcome.FOUND
            labels = selector.labels
            for number in self.numbers:
                number.value = _whole(labels.get(number.label, ""))
                number.outcome = Outcome.INVALID if number.value is None else Outcome.FOUND
            self._text = selector.labels_text

    def __repr__(self) -> str:
        return f"<LabelNumbers {self.choice} {self.outcome}>"


class _LabelNumber(Number):
    """One of the numbers of `LabelNumbers`, which reads it."""

    def __init__(self, choice: Choice, label: str) -> None:
        super().__init__()
        self.label = label
        self._choice = choice

    @property
    def what(self) -> str:
        return str(self._choice)


class Way(ABC):
    """A way to have a quantity from numbers of the page."""

    def __init__(self, *numbers: Number) -> None:
        self.numbers = numbers

    @abstractmethod
    def value(self) -> float | None:
        """The quantity, if the page has all that it takes."""

    def outcome(self, number: Number) -> Outcome:
        """What the page said about one of the numbers, as far as this quantity is concerned."""
        return number.outcome


class Direct(Way):
    """The number itself."""

    def value(self) -> float | None:
        return self.numbers[0].value


class Difference(Way):
    """The first number less the second; 0 where the second is greater, as the server counts them one after another."""

    def value(self) -> float | None:
        total, part = self.numbers
        return max(0.0, total.amount - part.amount) if total.amount is not None and part.amount is not None else None


class Share(Way):
    """The first number of the second, which has to be above 0."""

    def value(self) -> float | None:
        used, most = self.numbers
        return used.amount / most.amount if used.amount is not None and most.amount else None

    def outcome(self, number: Number) -> Outcome:
        return Outcome.INVALID if number is self.numbers[1] and number.value == 0 else number.outcome


class Quantity:
    """One attribute, a number, and the ways to have it in order of preference."""

    def __init__(self, key: AttributeKey[float], ways: Sequence[Way]) -> None:
        self.key = key
        self.keys = (key,)
        self.ways = ways

    def store(self, attributes: AttributeMap, at: float) -> bool:
        for way in self.ways:
            value = way.value()
            if value is not None:
                changed = attributes.put(self.key, value, at)
                if value in self.key.bounds:
                    return changed
        return False

    def findings(self) -> list[Finding]:
        """A line for each number that the attribute can be made of."""
        return [Finding(one.what, self.key.name, self._outcome(way, one)) for way in self.ways for one in way.numbers]

    def _outcome(self, way: Way, number: Number) -> Outcome:
        value = way.value()
        return way.outcome(number) if value is None or value in self.key.bounds else Outcome.INVALID

    def __repr__(self) -> str:
        return f"<Quantity {self.key.name} of {len(self.ways)} ways>"


class Adapters:
    """LoRA adapters: names in labels, separated by commas, and how many fit at a time.

    Each page says all of it anew: empty lists mean that no adapter is loaded or waited for.
    """

    def __init__(self, choice: Choice) -> None:
        self.choice = choice
        self.keys: tuple[AttributeKey[Any], ...] = (ACTIVE_MODELS, WAITING_MODELS, MAX_ACTIVE_MODELS)
        self._outcomes = [Outcome.UNKNOWN] * 3
        self._text: bytes | None = None
        self._values: tuple[tuple[str, ...], tuple[str, ...], float | None] = ((), (), None)

    @property
    def outcome(self) -> Outcome:
        """What the last page said of the series."""
        return self._outcomes[0]

    def read(self) -> None:
        """A page has been scanned: take what it said."""
        selector = self.choice.take()
        if selector is None:
            self._outcomes = [self.choice.outcome()] * 3
        elif len(text := selector.labels_text) > MOST_LORA_TEXT or text.count(b",") > MOST_LORA_NAMES:
            self._outcomes = [Outcome.INVALID] * 3
        else:
            if text != self._text:
                labels = selector.labels
                running, waiting = labels.get("running_lora_adapters"), labels.get("waiting_lora_adapters")
                self._values = _names(running), _names(waiting), _whole(labels.get("max_lora", ""))
                self._text = text
            most = Outcome.INVALID if self._values[2] is None else Outcome.FOUND
            self._outcomes = [Outcome.FOUND, Outcome.FOUND, most]

    def store(self, attributes: AttributeMap, at: float) -> bool:
        changed = False
        for key, outcome, value in zip(self.keys, self._outcomes, self._values, strict=True):
            if outcome is Outcome.FOUND:
                changed |= attributes.put(key, value, at)
        return changed

    def findings(self) -> list[Finding]:
        what = str(self.choice)
        return [Finding(what, key.name, one) for key, one in zip(self.keys, self._outcomes, strict=True)]

    def __repr__(self) -> str:
        return f"<Adapters {self.choice}>"


class Custom:
    """An attribute of the user's own."""

    def __init__(self, metric: CustomMetric) -> None:
        self._meter = Meter(metric.measure)
        self._key = metric.key
        self.keys = (metric.key,)
        self.choices = self._meter.choices

    @property
    def outcome(self) -> Outcome:
        return self._meter.outcome

    def read(self, at: float) -> None:
        """A page that was asked for at `at` (monotonic seconds) has been scanned: take what it said."""
        self._meter.read(at)

    def store(self, attributes: AttributeMap, at: float) -> bool:
        return self._meter.store(self._key, attributes, at)

    def findings(self) -> list[Finding]:
        return [Finding(str(self._meter), self._key.name, self._meter.outcome)]

    def __repr__(self) -> str:
        return f"<Custom {self._key.name} {self._meter!r}>"


def _names(text: str | None) -> tuple[str, ...]:
    """Names between commas, trimmed, each once, in order."""
    return tuple(dict.fromkeys(name for part in (text or "").split(",") if (name := part.strip())))


def _whole(text: str) -> float | None:
    """A label's whole number, if it is one."""
    stripped = text.strip()
    return float(stripped[:MOST_DIGITS]) if stripped.isascii() and stripped.isdigit() else None
