"""Histograms and their usual buckets, as the engines' own metrics have them."""

from bisect import bisect_left


class Histogram:
    """Counts observations into buckets; `bounds` are the upper ends, without the last, infinite one."""

    __slots__ = ("bounds", "count", "counts", "sum")

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


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit`: vLLM's buckets for token counts, with its context length as the limit."""
    bounds: list[float] = []
    magnitude = 1
    while magnitude <= limit:
        bounds += [float(magnitude * step) for step in (1, 2, 5) if magnitude * step <= limit]
        magnitude *= 10
    return tuple(bounds)
