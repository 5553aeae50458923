"""Arithmetic of what is shown: distributions, counters that begin again with their process, Prometheus histograms.

All of it is bounded, however long the demo runs.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]
_PRECISION = 1.02
"""Ratio of neighbouring buckets of a `Distribution`: quantiles are right to within 2 %."""


class Distribution:
    """How positive numbers are distributed, in buckets that grow by 2 %."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0

    def add(self, value: float) -> None:
        """Count a value; what isn't above zero counts as the smallest that there is."""
        self._buckets[math.ceil(math.log(max(value, 1e-9), _PRECISION))] += 1
        self.count += 1

    def quantile(self, share: float) -> float | None:
        """The value that `share` (0 to 1) of all values don't exceed; None when there are none."""
        if not self.count:
            return None
        wanted, seen = share * self.count, 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                break
        return float(_PRECISION**bucket)

    def __repr__(self) -> str:
        return f"<Distribution of {self.count}, median {self.quantile(0.5)}>"


class Recent:
    """The values of the last `span` seconds, at most `limit` of them."""

    def __init__(self, span: float, limit: int = 10_000) -> None:
        self.span = span
        self._values: deque[tuple[float, float]] = deque(maxlen=limit)

    def add(self, value: float, now: float) -> None:
        self._values.append((now, value))

    def values(self, now: float) -> list[float]:
        """Those that aren't too old, in order of time."""
        while self._values and self._values[0][0] < now - self.span:
            self._values.popleft()
        return [value for _, value in self._values]

    def quantile(self, share: float, now: float) -> float | None:
        """The value that `share` (0 to 1) of the values don't exceed; None when there are none."""
        values = sorted(self.values(now))
        return values[max(0, math.ceil(share * len(values)) - 1)] if values else None

    def __repr__(self) -> str:
        return f"<Recent {len(self._values)} values of {self.span:g} s>"


class Climb:
    """A counter of another process, added up over that process's restarts, at which it begins again with zero."""

    def __init__(self) -> None:
        self.total = 0.0
        self._last = 0.0

    def read(self, value: float) -> float:
        """Take in a reading; returns by how much the counter has risen since the last one."""
        rise = value - self._last if value >= self._last else value
        self._last = value
        self.total += rise
        return rise

    def __repr__(self) -> str:
        return f"<Climb {self.total:g}, last read {self._last:g}>"


class Page:
    """A metrics page in Prometheus's text format, for lookups by the name of a sample."""

    def __init__(self, text: str) -> None:
        """Raises ValueError for what isn't in that format."""
        self._samples: dict[str, list[tuple[Labels, float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self._samples.setdefault(sample.name, []).append((sample.labels, sample.value))

    def values(self, name: str, label: str) -> dict[str, float]:
        """The values of all samples of that name, by one of their labels; added up where it is the same."""
        found: dict[str, float] = {}
        for labels, value in self._samples.get(name, []):
            key = labels.get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def buckets(self, name: str) -> "Buckets":
        """The histogram of that name, all its series added up."""
        by_bound = self.values(f"{name}_bucket", "le")
        return Buckets(tuple(sorted((float(bound), count) for bound, count in by_bound.items())))

    def __repr__(self) -> str:
        return f"<Page {len(self._samples)} names>"


class Buckets(Struct, frozen=True):
    """A Prometheus histogram: (upper bound, observations up to it) in rising order, the last bound infinite."""

    cumulative: tuple[tuple[float, float], ...] = ()

    @property
    def count(self) -> float:
        return self.cumulative[-1][1] if self.cumulative else 0.0

    def since(self, before: "Buckets") -> "Buckets":
        """What came in after `before`; all of it when the process has begun anew meanwhile."""
        then = dict(before.cumulative)
        if any(count < then.get(bound, 0.0) for bound, count in self.cumulative):
            return self
        return Buckets(tuple((bound, count - then.get(bound, 0.0)) for bound, count in self.cumulative))

    def plus(self, other: "Buckets") -> "Buckets":
        """Both together; they have the same bounds, or one is empty."""
        if not self.cumulative or not other.cumulative:
            return self if self.cumulative else other
        theirs = dict(other.cumulative)
        return Buckets(tuple((bound, count + theirs.get(bound, 0.0)) for bound, count in self.cumulative))

    def quantile(self, share: float) -> float | None:
        """As PromQL's histogram_quantile has it: linear within a bucket, and the largest finite bound for what lies
        beyond; None without observations."""
        if not self.count:
            return None
        wanted, low, below = share * self.count, 0.0, 0.0
        for bound, count in self.cumulative:
            if count >= wanted and count > below:
                return low if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)
            low, below = bound, count
        return low


def total(parts: Iterable[Buckets]) -> Buckets:
    """All of them together."""
    whole = Buckets()
    for part in parts:
        whole = whole.plus(part)
    return whole
