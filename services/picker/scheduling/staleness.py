"""Which endpoints a filter judges by an attribute: those whose values are fresh.

When no candidate's value is fresh it is the collectors that failed, not the servers: then the last values count, so
that losing the metrics refuses no request that wasn't refused before.
"""

import numpy as np

from services.picker.scheduling.cycle import Cycle, Samples
from services.picker.state.layout import Mask


def split_by_staleness(cycle: Cycle, samples: Samples) -> tuple[Mask, Mask]:
    """(the endpoints to judge by their values, those that pass without). The others have stale values, or none: they
    pass under `ignore`, and where there is no value at all."""
    known: Mask = ~np.isnan(samples.values)
    fresh = known if samples.fresh is None else known & samples.fresh
    by_value = fresh if fresh.any() else known
    passes = cycle.stale.policy == "ignore" or not by_value.any()
    return by_value, ~by_value if passes else np.zeros(len(known), np.bool_)
