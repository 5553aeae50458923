"""`probabilistic-admitter`: the fuller the pool, the more sheddable requests are refused, by chance.

As everywhere, losing only the metrics refuses no request: without a fresh value all requests are admitted.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.metadata import REJECTED_SATURATED
from services.picker.request import RETRY_AFTER, Refusal
from services.picker.scheduling.cycle import Cycle, Samples
from services.picker.scheduling.formulas import mean_fullness
from services.picker.scheduling.interfaces import Admitter
from services.picker.state.layout import Floats, Rows
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.plugin import Input

_SHED = Refusal(
    status=429,
    message="the pool is busy, sheddable request dropped",
    kind="rate_limit_exceeded",
    reason=REJECTED_SATURATED,
    retry_after=RETRY_AFTER,
)


class ProbabilisticAdmitterParameters(Struct, frozen=True, rename="camel"):
    """What fills an endpoint, and how fast the probability rises."""

    queue_depth_threshold: Annotated[float, Meta(gt=0)] = 5.0
    kv_cache_util_threshold: Annotated[float, Meta(gt=0)] = 0.8
    power: Annotated[float, Meta(gt=0)] = 5.0
    k: Annotated[float, Meta(gt=0)] = 300.0


class ProbabilisticAdmitter(Admitter):
    """Refuses a request with a negative priority with the probability `min(s^power · k, 1)`."""

    TYPE = "probabilistic-admitter"
    CONSUMES = (Input(WAITING_QUEUE_SIZE, optional=True), Input(KV_CACHE_USAGE, optional=True))
    Parameters = ProbabilisticAdmitterParameters
    parameters: ProbabilisticAdmitterParameters

    def admit(self, cycle: Cycle, rows: Rows) -> Refusal | None:
        if cycle.priority >= 0 or not len(rows):
            return None
        saturation = self._saturation(cycle, rows)
        with np.errstate(over="ignore"):
            probability = np.float64(saturation) ** self.parameters.power * self.parameters.k
        return _SHED if cycle.random.random() < probability else None

    def _saturation(self, cycle: Cycle, rows: Rows) -> float:
        """The mean of `max(queue / threshold, usage / threshold)`, where no endpoint counts for more than `MOST_FULL`
        among others. A stale one counts as the policy says."""
        limits = self.parameters
        queue, usage = cycle.read(WAITING_QUEUE_SIZE, rows), cycle.read(KV_CACHE_USAGE, rows)
        fullness = np.fmax(_fresh(queue) / limits.queue_depth_threshold, _fresh(usage) / limits.kv_cache_util_threshold)
        known = ~np.isnan(fullness)
        if not known.any():
            return 0.0
        counted = fullness[known] if cycle.stale.policy == "ignore" else np.where(known, fullness, 1.0)
        return mean_fullness(counted)


def _fresh(samples: Samples) -> Floats:
    """The values; NaN for those that aren't fresh."""
    return samples.values if samples.fresh is None else np.where(samples.fresh, samples.values, np.nan)
