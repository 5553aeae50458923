"""How pickers divide the room of a band: pure arithmetic that every picker does alike, on the same tables.

What is divided is the band's capacity: the room that is free and what the band has running. A picker's quota of it is
fair to the flows, whichever pickers they wait at; a picker with less running than its quota is owed the difference, and
the free room is divided among what is owed. So room goes first to who has just released it, without a word to anybody,
and quotas move only as demand does.
"""

from collections.abc import Sequence
from math import floor, inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.picker.state.layout import Floats

_LEAST = 1e-9
"""What rounding errors of 64-bit floats are well below."""


def water_fill(capacity: float, demands: Floats, weights: Floats) -> Floats:
    """What each flow gets of a capacity: its demand, or its share by weight, whichever is less. What flows don't want
    is divided among the others in the same way."""
    if not len(demands) or demands.sum() <= capacity:
        return demands
    level_of = demands / weights
    order = np.argsort(level_of, kind="stable")
    wanted, levels = demands[order], level_of[order]
    before = np.cumsum(wanted) - wanted
    heavier = np.cumsum(weights[order][::-1])[::-1]
    reached = (capacity - before) / heavier
    level = float(reached[np.argmax(reached <= levels)])
    filled: Floats = np.minimum(demands, weights * max(level, 0.0))
    return filled


def quotas(
    capacity: float,
    pickers: NDArray[Any],
    flows: NDArray[Any],
    demands: Floats,
    ages: Sequence[float],
    weights: dict[int, float] | None = None,
) -> list[int]:
    """Requests that each picker may have running, in whole numbers whose sum is that of `min(capacity, all demands)`,
    rounded down.

    Row by row: a picker's number, the hash of a flow, and its demand there: the requests that wait and those that run.
    `ages` has for each picker how long its oldest request waits. Where parts of a request are left over, pickers get
    one each in the order of these, the oldest first; so nobody's part is always too small. Of equal ones, the lower
    number comes first.
    """
    count = len(ages)
    total = float(demands.sum())
    if total <= capacity:
        return [int(one) for one in np.bincount(pickers, demands, count)]
    known, which = np.unique(flows, return_inverse=True)
    wanted: Floats = np.bincount(which, demands).astype(np.float64)
    weight = np.ones(len(known))
    for flow, heavy in (weights or {}).items():
        at = int(np.searchsorted(known, np.uint64(flow)))
        if at < len(known) and known[at] == flow:
            weight[at] = heavy
    share = water_fill(capacity, wanted, weight) / np.maximum(wanted, _LEAST)
    return apportion(capacity, [float(one) for one in np.bincount(pickers, demands * share[which], count)], ages)


def apportion(total: float, parts: Sequence[float], ages: Sequence[float]) -> list[int]:
    """The parts in whole numbers: each rounded down, and what is left over of the total, rounded down, one each to the
    oldest of those that were rounded. The parts' sum is the total, or less."""
    whole = [floor(part + _LEAST) for part in parts]
    left = floor(min(total, sum(parts)) + _LEAST * (len(parts) + 1)) - sum(whole)
    if left > 0:
        rounded = [at for at, part in enumerate(parts) if part - whole[at] > _LEAST]
        for at in sorted(rounded, key=lambda at: (-ages[at], at))[:left]:
            whole[at] += 1
    return whole


def allowances(room: float, owed: Sequence[int], ages: Sequence[float]) -> list[int]:
    """How many requests each picker may dispatch: what it is owed; where the room doesn't suffice, a part of the room
    in proportion to it. The sum is the room, rounded down, or less."""
    debts = sum(owed)
    most = floor(room + _LEAST) if room < inf else debts
    if debts <= most:
        return list(owed)
    return apportion(most, [most * one / debts for one in owed], ages)
