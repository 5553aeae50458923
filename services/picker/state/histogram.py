"""A histogram in plain lists, which becomes a metric when it is scraped."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


@cache
def _written(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Upper bounds as Go's client writes them on its pages: what a dashboard of the Go original names is there."""
    texts: list[str] = [floatToGoString(bound) for bound in bounds]  # type: ignore[no-untyped-call]
    return (*(text.removesuffix(".0") for text in texts), "+Inf")


class Histogram:
    """Counts amounts by upper bound, and adds them up. Not for several threads."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def count(self) -> int:
        """How often something was observed."""
        return sum(self._counts)

    def observe(self, amount: float) -> None:
        """Count one; an amount that equals a bound is within it."""
        self._counts[bisect_left(self._bounds, amount)] += 1
        self._sum += amount

    def add_to(self, family: HistogramMetricFamily, labels: Iterable[str] = ()) -> None:
        """Make it a series of a metric."""
        counts = zip(_written(self._bounds), accumulate(self._counts), strict=True)
        family.add_metric(list(labels), buckets=list(counts), sum_value=self._sum)

    def __repr__(self) -> str:
        return f"<Histogram {self.count} times, {self._sum:g} together>"


class Timings(Histogram):
    """A histogram for what is observed with every request: to take an amount down is all that `observe` does. It is
    counted when somebody looks, or when `fold` is called, which has to happen from time to time."""

    __slots__ = ("_waiting", "note")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__(bounds)
        self._waiting: list[float] = []
        self.note: Callable[[float], None] = self._waiting.append
        """`observe`, without a call of ours."""

    def observe(self, amount: float) -> None:
        self._waiting.append(amount)

    @property
    def count(self) -> int:
        self.fold()
        return sum(self._counts)

    def fold(self) -> None:
        """Count what waits."""
        if not self._waiting:
            return
        amounts = np.array(self._waiting)
        self._waiting.clear()
        places = np.searchsorted(self._bounds, amounts, side="left")
        for place, count in enumerate(np.bincount(places, minlength=len(self._counts)).tolist()):
            self._counts[place] += count
        self._sum += float(amounts.sum())

    def add_to(self, family: HistogramMetricFamily, labels: Iterable[str] = ()) -> None:
        self.fold()
        super().add_to(family, labels)
