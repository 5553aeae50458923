"""A histogram in plain lists, which becomes a metric when it is scraped."""

from bisect import bisect_left
from collections.abc import Callable, Iterable
from functools import cache
from itertools import accumulate

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString


@cache
def _format_bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    """Upper bounds as Go's client writes them on its pages: what a dashboard of the Go original names is there."""
    texts: list[str] = [floatToGoString(bound) for bound in bounds]  # type: ignore[no-untyped-call]
    return (*(text.removesuffix(".0") for text in texts), "+Inf")


class Histogram:
    """Counts amounts by upper bound, and adds them up. Not for several threads.

    What is observed with every request is only noted: it is counted when the histogram is read, or by `fold`, which has
    to be called from time to time.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "_waiting", "note")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._waiting: list[float] = []
        self.note: Callable[[float], None] = self._waiting.append
        """`observe`, later."""

    @property
    def count(self) -> int:
        """How often something was observed."""
        self.fold()
        return sum(self._counts)

    def observe(self, amount: float, times: int = 1) -> None:
        """Count one, or so many; an amount that equals a bound is within it."""
        self._counts[bisect_left(self._bounds, amount)] += times
        self._sum += amount * times

    def fold(self) -> None:
        """Count what was noted."""
        if self._waiting:
            amounts = np.array(self._waiting)
            self._waiting.clear()
            places = np.searchsorted(self._bounds, amounts, side="left")
            for place, count in enumerate(np.bincount(places, minlength=len(self._counts)).tolist()):
                self._counts[place] += count
            self._sum += float(amounts.sum())

    def add_to(self, family: HistogramMetricFamily, labels: Iterable[str] = ()) -> None:
        """Make it a series of a metric."""
        self.fold()
        counts = zip(_format_bounds(self._bounds), accumulate(self._counts), strict=True)
        family.add_metric(list(labels), buckets=list(counts), sum_value=self._sum)

    def __repr__(self) -> str:
        return f"<Histogram {self.count} times, {self._sum:g} together>"
