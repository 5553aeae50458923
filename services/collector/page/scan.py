"""Finds the samples of given metrics on a page of the Prometheus text format, and parses nothing else.

A page has hundreds of lines, of which a collector needs about five. So `bytes.find` finds the names, and only their
lines are parsed; a parser of whole pages takes a hundred times as long. Sample names match exactly (a counter's
includes `_total`). No page raises an error: a line that isn't a sample is skipped. A scan stops after a given number of
lines, so that it never takes long, and continues where it stopped.

Accepted lines: text format 0.0.4, exemplars of OpenMetrics (after ` # `), `\\r\\n`, blanks before the name, and no
newline after the last line. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol

PIECE = 64 * 1024
"""Bytes of a piece; most pages have fewer."""
MAX_LINE = 128 * 1024
"""Bytes of a line. `pieces` skips longer ones, which take more than some 10 ms to parse."""

# No two adjacent repetitions match the same characters, so the time is linear in the line's length. Possessive
# quantifiers would ensure that, but Python before 3.11.5 matches them wrongly.
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
_NEWLINE, _TAB, _SPACE, _BRACE = b"\n\t {"
MAX_LABELS = 256
"""Labels of a series that are read. vLLM's have up to 30; a line has room for 25 000, which take some 30 ms."""
_LABEL_BYTES = 128
"""Bytes of labels that count as a line, because they take as long."""
_CACHED_LABELS = 512
"""Bytes of labels that are cached; a hostile page could fill the memory with longer ones. Of these, the last ones are,
because all selectors of a metric read them."""


class Sink(Protocol):
    """Receives every sample of one metric, in the page's order."""

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        """`labels` is the text between the braces; `timestamp` is 0 if the sample has none."""


class Scanned(NamedTuple):
    """Where a scan stopped and found samples."""

    first: int
    """Start of the first sample's name; -1 without a sample."""
    last: int
    """End of the last sample's line; -1 without a sample."""
    end: int
    """Where to continue; at least the requested end when all was scanned."""


def scan(
    page: bytes, name: bytes, sinks: Sequence[Sink], start: int = 0, end: int | None = None, limit: int | None = None
) -> Scanned:
    """Offer every sample of a metric between `start` and `end` (line boundaries) to the sinks.

    It stops after `limit` parsed lines, samples or not; long labels count as several.
    """
    if end is None:
        end = len(page)
    find, match, length = page.find, _SAMPLE.match, len(name)
    first = last = -1
    left = 0 if limit is None else limit
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
                if labels:
                    left -= len(labels) // _LABEL_BYTES
                try:
                    # Python's underscores in numbers aren't the format's.
                    if b"_" in number:
                        raise ValueError
                    value = float(number)
                    timestamp = 0.0 if moment is None else float(moment)
                except ValueError:
                    pass  # not a sample
                else:
                    for sink in sinks:
                        sink.offer(labels or b"", value, timestamp)
                    if first < 0:
                        first = at
                    last = after
            if limit is not None and left <= 0:
                beginning = after if page[after - 1] == _NEWLINE else page.find(b"\n", after, end) + 1
                return Scanned(first, last, beginning or end)
        at = find(name, after, end)
    return Scanned(first, last, end)


def pieces(page: bytes, size: int = PIECE, line: int = MAX_LINE) -> Iterator[tuple[int, int]]:
    """Splits the page into line-aligned pieces of about `size` bytes, without lines of more than `line` bytes."""
    start, total = 0, len(page)
    while total - start > size:
        cut = page.rfind(b"\n", start, start + size) + 1
        if not cut:
            cut = page.find(b"\n", start, start + line) + 1
            if not cut and total - start <= line:
                break  # the last line, which may end without a newline
            if not cut:
                start = page.find(b"\n", start + line) + 1 or total
                continue
        yield start, cut
        start = cut
    if start < total:
        yield start, total


def parse_labels(raw: bytes) -> Mapping[str, str]:
    """The labels from the text between a sample's braces, at most `MAX_LABELS`. Equal texts share the result, so don't
    change it."""
    return _cached(raw) if len(raw) <= _CACHED_LABELS else _last(raw)


def _parse(raw: bytes) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    at = 0
    for _ in range(MAX_LABELS):
        found = _LABEL.match(raw, at)
        if found is None:
            break
        labels[found[1].decode("ascii")] = _text(found[2])
        at = found.end()
    return labels


_cached = lru_cache(maxsize=4096)(_parse)
"""At most 40 MB: labels take twenty times their text."""
_last = lru_cache(maxsize=1)(_parse)

_FOLLOWS = frozenset((_SPACE, _TAB, _BRACE))


def _text(value: bytes) -> str:
    text = value.decode("utf-8", "replace")
    if "\\" not in text:
        return text
    # a call for each escape would take ten times as long
    return "\\".join(part.replace('\\"', '"').replace("\\n", "\n") for part in text.split("\\\\"))


def _leads_line(page: bytes, at: int, start: int) -> bool:
    """Whether only blanks precede the position in its line."""
    while at > start:
        at -= 1
        byte = page[at]
        if byte == _NEWLINE:
            return True
        if byte != _SPACE and byte != _TAB:
            return False
    return True
