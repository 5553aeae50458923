"""Ranks endpoints that seem to be down behind all others, whatever they scored and whichever picker chooses."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.state.layout import Floats, Rows

Pick = Callable[[Cycle, Rows, Floats], Sequence[int]]
"""Chooses some of these rows, which have these totals."""

NONE: Mapping[int, str] = {}


def pick_healthy_first(
    pick: Pick, cycle: Cycle, rows: Rows, totals: Floats
) -> tuple[tuple[int, ...], Mapping[int, str]]:
    """(the chosen rows, the unhealthy rows and why they are).

    `pick` chooses among the healthy rows first. Where it wants more than there are, unhealthy ones follow, in the
    order in which it would have chosen them. When all rows are unhealthy, or none is, they are all alike.
    """
    unhealthy = cycle.view.health.unhealthy
    if not unhealthy:
        return tuple(pick(cycle, rows, totals)), NONE
    everywhere = np.ones(len(cycle.layout), np.bool_)
    everywhere[list(unhealthy)] = False
    healthy = everywhere[rows]
    count = int(np.count_nonzero(healthy))
    if count in (0, len(rows)):
        return tuple(pick(cycle, rows, totals)), NONE
    picked = pick(cycle, rows[healthy], totals[healthy])
    if len(picked) == count:
        among_all = pick(cycle, rows, totals)
        left = [row for row in among_all if row in unhealthy]
        picked = [*picked, *left[: len(among_all) - count]]
    return tuple(picked), unhealthy
