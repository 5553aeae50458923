"""Metric specifications: the series from which an attribute is read.

`name` or `name{label=value,other="va,lue"}`: a metric name, and labels that a series must have. Values with a quote,
comma, brace, blank or operator have to be quoted as in PromQL. Other matchers, ranges and functions of PromQL are
refused when the configuration is loaded.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

_BLANK = re.compile(r"\s*")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATOR = re.compile(r"!=|=~|!~|=")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"|' r"'((?:[^'\\]|\\.)*)'", re.DOTALL)
_BARE = re.compile(r"""[^\s"'`,{}=~!]+""")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}


class SpecError(ValueError):
    """An invalid metric specification, with the reason and the position."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r} is not a metric specification such as name or name{{label=value}}: {why}")


class MetricSpec(Struct, frozen=True):
    """Series named exactly `name` whose labels include all of `labels`."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.labels)

    def __str__(self) -> str:
        if not self.labels:
            return self.name
        return f"{self.name}{{{','.join(f'{name}={_quote(value)}' for name, value in self.labels)}}}"


def parse_spec(text: str) -> MetricSpec | None:
    """Parses a specification. An empty text gives None and switches the metric off. Raises `SpecError`."""
    if not text.strip():
        return None
    return _Parser(text).spec()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def spec(self) -> MetricSpec:
        self._take(_BLANK)
        name = self._take(_NAME)
        if not name:
            raise self._wrong("a metric name is expected")
        self._take(_BLANK)
        labels: dict[str, str] = {}
        if self._literal("{"):
            self._labels(labels)
            self._take(_BLANK)
        if self._at < len(self._text):
            raise self._wrong(f"{self._text[self._at :]!r} is unexpected")
        # Labels such as `__name__` aren't on the page.
        return MetricSpec(name, tuple((label, value) for label, value in labels.items() if not label.startswith("__")))

    def _labels(self, labels: dict[str, str]) -> None:
        while True:
            self._take(_BLANK)
            if self._literal("}"):
                return
            label = self._take(_LABEL)
            if not label:
                raise self._wrong("a label name is expected")
            self._take(_BLANK)
            operator = self._take(_OPERATOR)
            if not operator:
                raise self._wrong(f"= is expected after the label {label!r}")
            if operator != "=":
                raise self._wrong(f"{operator} isn't supported; use =")
            self._take(_BLANK)
            if label in labels:
                raise self._wrong(f"the label {label!r} is given twice")
            labels[label] = self._value(label)
            self._take(_BLANK)
            if not self._literal(","):
                if self._literal("}"):
                    return
                raise self._wrong("a comma or } is expected")

    def _value(self, label: str) -> str:
        match = _QUOTED.match(self._text, self._at)
        if match:
            self._at = match.end()
            inner: str = match.group(1) if match.group(1) is not None else match.group(2)
            return _ESCAPE.sub(lambda found: _ESCAPES.get(found.group(1), found.group(1)), inner)
        bare = self._take(_BARE)
        if not bare:
            raise self._wrong(f"a value is expected for the label {label!r}; quote it if it has special characters")
        return bare

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match.group()

    def _literal(self, char: str) -> bool:
        found = self._text.startswith(char, self._at)
        self._at += found
        return found

    def _wrong(self, why: str) -> SpecError:
        return SpecError(self._text, f"{why} (at character {self._at + 1})")


def _quote(value: str) -> str:
    if _BARE.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
