"""Prometheus text exposition, written fast: a family is rendered again only when one of its values has changed.

Layout and number format are those of Python's prometheus-client, which vLLM, SGLang and trtllm-serve use; Triton's own
writer has whole numbers without a decimal point.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from prometheus_client.utils import floatToGoString

from services.simulator.histogram import Histogram

M = TypeVar("M")
N = TypeVar("N", contravariant=True)

Labels = Mapping[str, str]


class Part(Protocol[N]):
    """A piece of a page."""

    def render(self, moment: N) -> str:
        """Its text, with a line end."""


class Text(Generic[M]):
    """A piece that never changes."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, moment: M) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"<Text {len(self._text)} characters>"


class Family(Generic[M]):
    """Gauges or counters of one name: a line for each set of labels."""

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        series: Sequence[tuple[Labels, Callable[[M], float]]],
        *,
        whole: bool = False,
    ) -> None:
        self.name = name
        self._head = head(name, kind, help)
        self._leads = [f"{name}{braces(labels)} " for labels, _ in series]
        self._getters = [getter for _, getter in series]
        self._format = _whole if whole else number
        self._values: list[float] = []
        self._text = ""

    def render(self, moment: M) -> str:
        values = [getter(moment) for getter in self._getters]
        if values != self._values or not self._text:
            lines = [f"{lead}{self._format(value)}\n" for lead, value in zip(self._leads, values, strict=True)]
            self._values, self._text = values, self._head + "".join(lines)
        return self._text

    def __repr__(self) -> str:
        return f"<Family {self.name}, {len(self._leads)} series>"


class HistogramFamily(Generic[M]):
    """A histogram with one set of labels."""

    def __init__(self, name: str, help: str, labels: Labels, getter: Callable[[M], Histogram]) -> None:
        self.name = name
        self._labels = labels
        self._getter = getter
        self._head = head(name, "histogram", help)
        self._leads: list[str] = []
        self._seen = (-1, 0.0)
        self._text = ""

    def render(self, moment: M) -> str:
        histogram = self._getter(moment)
        seen = (histogram.count, histogram.sum)
        if seen != self._seen:
            self._leads = self._leads or self._buckets(histogram)
            self._seen, self._text = seen, self._lines(histogram)
        return self._text

    def _buckets(self, histogram: Histogram) -> list[str]:
        ends = [number(bound) for bound in histogram.bounds] + ["+Inf"]
        return [f"{self.name}_bucket{braces({**self._labels, 'le': end})} " for end in ends]

    def _lines(self, histogram: Histogram) -> str:
        lines = [self._head]
        below = 0
        for lead, count in zip(self._leads, histogram.counts, strict=True):
            below += count
            lines.append(f"{lead}{number(below)}\n")
        labels = braces(self._labels)
        lines.append(f"{self.name}_count{labels} {number(histogram.count)}\n")
        lines.append(f"{self.name}_sum{labels} {number(histogram.sum)}\n")
        return "".join(lines)

    def __repr__(self) -> str:
        return f"<HistogramFamily {self.name}>"


def head(name: str, kind: str, help: str) -> str:
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n"


def braces(labels: Labels) -> str:
    """`{a="x",b="y"}`, sorted by name as prometheus-client does; nothing without labels."""
    if not labels:
        return ""
    inner = ",".join(f'{name}="{escape(value)}"' for name, value in sorted(labels.items()))
    return f"{{{inner}}}"


def escape(value: str) -> str:
    """A label value as the text format wants it."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A sample's value as prometheus-client writes it: `3.0`, `1.795e+09`."""
    if isinstance(value, int) and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _whole(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


def filler(prefix: str, labels: Labels, size: int) -> str:
    """Idle histograms of about `size` bytes, as a page has them for parts of the engine that nobody uses.

    The last line is a comment that fills the rest.
    """
    bounds = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
    pieces: list[str] = []
    left = size
    while True:
        name = f"{prefix}simulated_stage_{len(pieces):04d}_seconds"
        family: HistogramFamily[Histogram] = HistogramFamily(
            name, "A stage of the simulated engine that is never entered.", labels, lambda histogram: histogram
        )
        piece = family.render(Histogram(bounds))
        if len(piece) > left:
            break
        pieces.append(piece)
        left -= len(piece)
    if left >= 3:
        pieces.append(f"# {'.' * (left - 3)}\n")
    return "".join(pieces)
