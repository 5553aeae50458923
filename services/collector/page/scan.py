"""Finds the samples of wanted metrics in a page of the Prometheus text format, and looks at nothing else of it.

A real page has hundreds of lines of which a handful is wanted, so names are found with `bytes.find` and only the lines
that they lead are parsed; a whole-page parser takes a hundred times as long. A sample goes by its exact name (a
counter's includes `_total`). Nothing that a page contains raises: a line that isn't a sample costs only itself. Nor
does anything take long in one go: a scan ends after as many lines as it is told, and goes on where it ended.

What a line may look like: text format 0.0.4, with what OpenMetrics adds (an exemplar after ` # `), `\\r\\n`, blanks
before the name, and no newline after the last line. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

STEP = 64 * 1024
"""Bytes that are scanned at a time; more than most pages have."""
MOST_LINE = 128 * 1024
"""Bytes of a line; `steps` passes over longer ones, which would take more than some 10 ms to parse."""

# No two repetitions of the same characters touch, so the time that a line takes grows with its length alone. Possessive
# quantifiers would say the same, and Python before 3.11.5 matches them wrongly.
_SAMPLE = re.compile(
    rb"""
    (?: [ \t]* \{ (?P<labels> (?: [ \t]* , )?
           (?: [ \t]* [a-zA-Z_][a-zA-Z0-9_]* [ \t]* = [ \t]*
               " [^"\\\n]* (?: \\[^\n] [^"\\\n]* )* " [ \t]* (?: , | (?=\}) ) )*
           [ \t]* ) \}
    )?
    [ \t]* (?P<value> [^\s{}"\#]+ )
    (?: [ \t]+ (?P<timestamp> [^\s{}"\#]+ ) )?
    (?: [ \t]+ \# [^\n]* | [ \t\r]* ) (?: \n | \Z )
    """,
    re.VERBOSE,
)
_LABEL = re.compile(rb'[ \t,]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_ESCAPE = re.compile(r'\\([\\n"])')
_NEWLINE, _TAB, _SPACE, _BRACE = b"\n\t {"
_CACHED_LABELS = 512
"""Bytes; longer label texts aren't remembered, so that a hostile page can't fill the memory."""


class Sink(Protocol):
    """What is offered every sample of one metric, in the page's order."""

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        """`labels` as they stand on the page, without braces; `timestamp` in its own unit, 0 where there is none."""


class Scanned(NamedTuple):
    """How far a scan has come, and where the samples stood."""

    first: int
    """Where the first sample's name begins; -1 where there is no sample."""
    last: int
    """Where the last sample's line ends; -1 where there is no sample."""
    end: int
    """Where to go on; at least the end that was asked for when all of it has been scanned."""


def scan(
    page: bytes, name: bytes, sinks: Sequence[Sink], start: int = 0, end: int | None = None, most: int | None = None
) -> Scanned:
    """Offer every sample of a metric between `start` and `end` (line boundaries) to the sinks.

    `most` is the number of lines that are parsed, those that turn out to be no samples included.
    """
    if end is None:
        end = len(page)
    find, match, length = page.find, _SAMPLE.match, len(name)
    first = last = -1
    left = -1 if most is None else most
    at = find(name, start, end)
    while at >= 0:
        after = at + length
        if (
            after < end
            and page[after] in _FOLLOWS
            and (at == start or page[at - 1] == _NEWLINE or _leads_line(page, at, start))
        ):
            left -= 1
            line = match(page, after, end)
            if line is not None:
                labels, number, moment = line.groups()
                after = line.end()
                try:
                    # Python's underscores in numbers aren't the format's.
                    if b"_" in number:
                        raise ValueError
                    value = float(number)
                    timestamp = 0.0 if moment is None else float(moment)
                except ValueError:
                    pass  # no number: the line isn't a sample
                else:
                    for sink in sinks:
                        sink.offer(labels or b"", value, timestamp)
                    if first < 0:
                        first = at
                    last = after
            if not left:
                beginning = after if page[after - 1] == _NEWLINE else page.find(b"\n", after, end) + 1
                return Scanned(first, last, beginning or end)
        at = find(name, after, end)
    return Scanned(first, last, end)


def steps(page: bytes, size: int = STEP, line: int = MOST_LINE) -> Iterator[tuple[int, int]]:
    """Line-aligned pieces of about `size` bytes that together are the page, but for lines of more than `line` bytes."""
    start, total = 0, len(page)
    while total - start > size:
        cut = page.rfind(b"\n", start, start + size) + 1
        if not cut:
            cut = page.find(b"\n", start, start + line) + 1
            if not cut:
                start = page.find(b"\n", start + line) + 1 or total
                continue
        yield start, cut
        start = cut
    if start < total:
        yield start, total


def parse_labels(raw: bytes) -> Mapping[str, str]:
    """The labels of a sample, from the text between its braces. Not to be changed: equal texts share the result."""
    return _remembered(raw) if len(raw) <= _CACHED_LABELS else _parse(raw)


def _parse(raw: bytes) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while found := _LABEL.match(raw, at):
        labels[found[1].decode("ascii")] = _text(found[2])
        at = found.end()
    return labels


_remembered = lru_cache(maxsize=4096)(_parse)
"""At most some 40 MB: labels take twenty times their text."""

_FOLLOWS = frozenset((_SPACE, _TAB, _BRACE))


def _text(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    return _ESCAPE.sub(_unescape, text) if "\\" in text else text


def _unescape(found: re.Match[str]) -> str:
    char = found.group(1)
    return "\n" if char == "n" else char


def _leads_line(page: bytes, at: int, start: int) -> bool:
    """Whether nothing but blanks stands between the line's beginning and the position."""
    while at > start:
        at -= 1
        byte = page[at]
        if byte == _NEWLINE:
            return True
        if byte != _SPACE and byte != _TAB:
            return False
    return True
