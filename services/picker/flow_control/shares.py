"""How pickers divide the room of a band: pure arithmetic that every picker does alike, on the same tables.

What is divided is the band's capacity: the room that is free and what the band has running. A picker's quota of it is
fair to the flows, whichever pickers they wait at; a picker with less running than its quota is owed the difference, and
the free room is divided among what is owed. So room goes first to the picker that has just released it, without a
message, and quotas change only with demand.
"""

from collections.abc import Mapping, Sequence
from math import floor, inf

import numpy as np

from services.picker.flow_control.flow_columns import Integers
from services.picker.state.layout import Floats

_ROUNDING = 1e-9
"""What rounding errors of 64-bit floats are well below."""


def water_fill(capacity: float, demands: Floats, weights: Floats) -> Floats:
    """What each flow gets of a capacity: its demand, or its share by weight, whichever is less. What flows don't want
    is divided among the others in the same way."""
    if not len(demands) or demands.sum() <= capacity:
        return demands
    level_of = demands / weights
    order = np.argsort(level_of)
    wanted, levels = demands[order], level_of[order]
    before = np.cumsum(wanted) - wanted
    heavier = np.cumsum(weights[order][::-1])[::-1]
    reached = (capacity - before) / heavier
    level = float(reached[np.argmax(reached <= levels)])
    filled: Floats = np.minimum(demands, weights * max(level, 0.0))
    return filled


class Flows:
    """The flows of each picker in a band, by the hashes of their ids: which of them are the same, and their weights."""

    def __init__(self, parts: Sequence[Integers], weights: Mapping[int, float] | None = None) -> None:
        self._sizes = [len(part) for part in parts]
        self._all = np.concatenate([np.zeros(0, np.uint64), *parts])
        self.pickers = np.repeat(np.arange(len(parts)), self._sizes)
        """Whose each row is, by the pickers' numbers."""
        known, self.which = np.unique(self._all, return_inverse=True)
        """Which of the different flows each row is."""
        self.weights: Floats = np.ones(len(known))
        """Of the different flows."""
        if weights:
            self.weights[:] = [weights.get(flow, 1.0) for flow in known.tolist()]

    def are(self, parts: Sequence[Integers]) -> bool:
        """Whether these are the flows, in this order."""
        return self._sizes == [len(part) for part in parts] and bool(
            not parts or np.array_equal(self._all, np.concatenate(parts))
        )


def quotas(capacity: float, flows: Flows, demands: Floats, ages: Sequence[float]) -> list[int]:
    """Requests that each picker may have running, in whole numbers whose sum is that of `min(capacity, all demands)`,
    rounded down.

    `demands` are those of the flows' rows: the requests that wait and those that run. `ages` has for each picker how
    long its oldest request waits. Where parts of a request are left over, pickers get one each in the order of these,
    the oldest first; so no picker's part is always too small. Of equal ones, the lower number comes first.
    """
    if float(demands.sum()) <= capacity:
        return [int(demand) for demand in np.bincount(flows.pickers, demands, len(ages))]
    wanted: Floats = np.bincount(flows.which, demands, len(flows.weights)).astype(np.float64)
    share = water_fill(capacity, wanted, flows.weights) / np.maximum(wanted, _ROUNDING)
    parts = np.bincount(flows.pickers, demands * share[flows.which], len(ages))
    return apportion(capacity, parts.tolist(), ages)


def apportion(total: float, parts: Sequence[float], ages: Sequence[float]) -> list[int]:
    """The parts in whole numbers: each rounded down, and what is left over of the total, rounded down, one each to the
    oldest of those that were rounded. The parts' sum is the total, or less."""
    whole = [floor(part + _ROUNDING) for part in parts]
    left = floor(min(total, sum(parts)) + _ROUNDING * (len(parts) + 1)) - sum(whole)
    if left > 0:
        rounded = [at for at, part in enumerate(parts) if part - whole[at] > _ROUNDING]
        for at in sorted(rounded, key=lambda at: (-ages[at], at))[:left]:
            whole[at] += 1
    return whole


def allowances(room: float, owed: Sequence[int], ages: Sequence[float]) -> list[int]:
    """How many requests each picker may dispatch: what it is owed; where the room doesn't suffice, a part of the room
    in proportion to it. The sum is the room, rounded down, or less."""
    debts = sum(owed)
    most = floor(room + _ROUNDING) if room < inf else debts
    if debts <= most:
        return list(owed)
    return apportion(most, [most * debt / debts for debt in owed], ages)
