"""Renders a metrics page in Prometheus's text format from a template.

A template is a page with names in place of values, `vllm:num_requests_running{engine="0"} running`; a histogram is one
line, of which the buckets, the sum and the count are made. Layout and number format are those of Python's
prometheus-client, which vLLM, SGLang and trtllm-serve use. Triton writes integers without a decimal point.

A family is rendered again only when one of its values has changed: scrapes are then cheap.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import TypeAlias

from prometheus_client.utils import floatToGoString

CONSTANTS: Mapping[str, float] = {"0": 0, "1": 1}
"""Values that stand in a template as they are."""
_LE = 'le=""'
"""Label of a histogram's series in a template: the bound of a bucket comes here."""


class Histogram:
    """Counts observations into buckets; `bounds` are the upper bounds, without the last, infinite one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    def __repr__(self) -> str:
        return f"<Histogram {self.count} observations, sum {self.sum:g}>"


Values: TypeAlias = Mapping[str, float | Histogram]
"""What the names in a template stand for."""


class Family:
    """A metric family: its series, each as its name with labels and the name of its value."""

    def __init__(
        self,
        name: str,
        kind: str,
        help: str,
        series: Sequence[tuple[str, str]],
        *,
        created: float | None = None,
        integers: bool = False,
    ) -> None:
        """With `created`, in Unix seconds, a `_created` gauge follows that says so, as prometheus-client writes it."""
        self._kind = kind
        self._series = series
        self._head = head(name, kind, help)
        self._tail = ""
        if created is not None and kind != "gauge":
            base = name.removesuffix("_total") if kind == "counter" else name
            lines = [f"{base}_created{_without_le(lead)[len(name) :]} {number(created)}\n" for lead, _ in series]
            self._tail = "".join([head(f"{base}_created", "gauge", help), *lines])
        self._number = _integer if integers else number
        self._buckets: dict[str, list[str]] = {}
        self._seen: list[float | tuple[int, float]] = []
        self._text = ""

    def render(self, values: Values) -> str:
        current = [values[name] for _, name in self._series]
        seen = [(value.count, value.sum) if isinstance(value, Histogram) else value for value in current]
        if seen != self._seen or not self._text:
            lines = (self._lines(lead, value) for (lead, _), value in zip(self._series, current, strict=True))
            self._seen, self._text = seen, "".join([self._head, *chain.from_iterable(lines), self._tail])
        return self._text

    def _lines(self, lead: str, value: float | Histogram) -> Iterator[str]:
        if not isinstance(value, Histogram):
            yield f"{lead} {self._number(value)}\n"
            return
        name, _, labels = lead.partition("{")
        others = _without_le(lead)[len(name) :]
        if self._kind == "histogram":
            if lead not in self._buckets:
                bounds = [*map(number, value.bounds), "+Inf"]
                self._buckets[lead] = [name + "_bucket{" + labels.replace(_LE, f'le="{bound}"') for bound in bounds]
            for bucket, below in zip(self._buckets[lead], accumulate(value.counts), strict=True):
                yield f"{bucket} {number(below)}\n"
        yield f"{name}_count{others} {number(value.count)}\n"
        yield f"{name}_sum{others} {number(value.sum)}\n"


def families(template: str, *, created: float | None = None, integers: bool = False) -> list[Family]:
    """The families of a template."""
    found = []
    for block in f"\n{template}".split("\n# HELP ")[1:]:
        help_line, type_line, *samples = block.splitlines()
        name, help = help_line.split(" ", 1)
        series = [(lead, value) for lead, _, value in (sample.rpartition(" ") for sample in samples)]
        kind = type_line.rsplit(" ", 1)[1]
        found.append(Family(name, kind, help, series, created=created, integers=integers))
    return found


def _without_le(lead: str) -> str:
    return lead.replace(f"{_LE},", "").replace(f"{{{_LE}}}", "")


def head(name: str, kind: str, help: str) -> str:
    return f"# HELP {name} {help}\n# TYPE {name} {kind}\n"


def escape(value: str) -> str:
    """A label value in the text format."""
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def number(value: float) -> str:
    """A sample's value as prometheus-client writes it: `3.0`, `1.795e+09`."""
    if isinstance(value, int) and -1_000_000 < value < 1_000_000:
        return f"{value}.0"
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _integer(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


_EMPTY = "# \n"
"""The shortest comment."""


def filler(prefix: str, model: str, size: int) -> str:
    """`size` bytes of histograms without observations, as of parts of an engine that are idle; a comment fills up the
    rest."""
    idle = Histogram((0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
    pieces: list[str] = []
    left = size
    while True:
        name = f"{prefix}simulated_stage_{len(pieces):04d}_seconds"
        help = "Time in a stage of the simulated engine that is never entered."
        series = [(f'{name}{{{_LE},model_name="{escape(model)}"}}', "idle")]
        piece = Family(name, "histogram", help, series).render({"idle": idle})
        if len(piece) != left and len(piece) > left - len(_EMPTY):
            break
        pieces.append(piece)
        left -= len(piece)
    if left >= len(_EMPTY):
        pieces.append(f"# {'.' * (left - len(_EMPTY))}\n")
    return "".join(pieces)
