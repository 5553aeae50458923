"""How values become scores, which of them pass, and how full a pool is: the formulas that several plugins share.

Scores are 0 to 1, the best is 1.
"""

from collections.abc import Callable

import numpy as np

from services.picker.state.layout import Floats, Mask

MOST_FULL = 1.5
"""What an endpoint counts at most among others, 1 being full. So no endpoint alone makes a pool full, whatever it
reports: of two, one counts 0.75."""
USUAL = 100.0
"""Values up to this are never outliers."""


def least_is_best(values: Floats) -> Floats:
    """`(max − v) / (max − min)`; 1 for all when they are equal. The highest value counts at most `USUAL`, or twice the
    second highest if that is more: else one that is far off would make all others equal."""
    if not len(values):
        return values
    low, high = np.minimum.reduce(values), np.maximum.reduce(values)
    if high == low:
        return np.ones(len(values))
    if high > USUAL:
        others = values.copy()
        others[values.argmax()] = -np.inf  # `np.partition` takes 35 times as long where many of 1 000 are equal
        high = min(high, max(USUAL, 2.0 * float(np.maximum.reduce(others))))
        values = np.minimum(values, high)
    scores: Floats = (high - values) / (high - low)
    return scores


def most_is_best(values: Floats) -> Floats:
    """`(v − min) / (max − min)`; 1 for all when they are equal."""
    return least_is_best(-values)


def linear(low: float, high: float, *, least: bool) -> Callable[[Floats], Floats]:
    """Where values lie between two bounds, beyond which nothing gets better or worse; `least` puts 1 at the low one."""

    def place(values: Floats) -> Floats:
        clamped = np.minimum(np.maximum(values, low), high)
        over: Floats = high - clamped if least else clamped - low
        return over / (high - low)

    return place


def at_most(most: float) -> Callable[[Floats], Mask]:
    """`v ≤ most`."""
    return lambda values: values <= most


def mean_fullness(shares: Floats) -> float:
    """How full endpoints are together, each of which has reached this share of its limits: at least one endpoint."""
    if len(shares) > 1:
        shares = np.minimum(shares, MOST_FULL)
    return float(np.add.reduce(shares)) / len(shares)
