"""`utilization-detector`: saturation from queues and KV caches; as a filter, keeps the endpoints below both limits.

An endpoint whose metrics are stale counts as the configured policy says: full, not at all, or by its last values (full
when it never had any). When no endpoint's metrics are fresh it is the collectors that
failed, not the servers: then the requests in flight decide, so that losing the metrics alone sheds nothing.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, Cycle, Samples
from services.picker.scheduling.interfaces import Filter, SaturationDetector
from services.picker.state.layout import Floats, Mask, Rows
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.plugin import Input, Role
from shared.quantities import PositiveDuration


class UtilizationParameters(Struct, frozen=True, rename="camel"):
    """The limits of one endpoint."""

    queue_depth_threshold: Annotated[int, Meta(gt=0)] = 5
    kv_cache_util_threshold: Annotated[float, Meta(gt=0, le=1)] = 0.8
    metrics_staleness_threshold: PositiveDuration | None = None
    """Default: `dataLayer.staleMetrics.after`."""
    headroom: Annotated[float, Meta(ge=0)] = 0.0
    """How far beyond the limits the filter lets an endpoint go, as a share of them."""
    max_concurrency: Annotated[int, Meta(gt=0)] = 100
    """Requests in flight that fill an endpoint, while no endpoint's metrics are fresh."""


class UtilizationDetector(SaturationDetector, Filter):
    """Mean over endpoints of `max(queue / limit, usage / limit)`."""

    TYPE = "utilization-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR, Role.FILTER})
    Parameters = UtilizationParameters
    CONSUMES = (
        Input(WAITING_QUEUE_SIZE, optional=True),
        Input(KV_CACHE_USAGE, optional=True),
        Input(IN_FLIGHT_LOAD, optional=True),
    )
    parameters: UtilizationParameters

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        if not len(rows):
            return 1.0
        fullness, fresh = self._fullness(cycle, rows)
        if not fresh.any():
            requests = cycle.view.in_flight.requests[rows]
            cycle.note("InFlightRequests", rows, requests)
            return float(requests.mean() / self.parameters.max_concurrency)
        if cycle.stale.policy == "ignore":
            return float(fullness[fresh].mean())
        return float(np.where(fresh, fullness, 1.0).mean())

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        """The fresh endpoints below both limits; all of them when there is none."""
        fullness, fresh = self._fullness(cycle, rows)
        kept: Rows = rows[fresh & (fullness < 1.0 + self.parameters.headroom)]
        return kept if len(kept) else rows

    def _fullness(self, cycle: Cycle, rows: Rows) -> tuple[Floats, Mask]:
        """(share of the limits that each endpoint has reached, for which of them that is known and not stale).

        An engine that doesn't report one of the two is judged by the other.
        """
        after = self.parameters.metrics_staleness_threshold
        queue = cycle.read(WAITING_QUEUE_SIZE, rows, after)
        usage = cycle.read(KV_CACHE_USAGE, rows, after)
        fullness: Floats = np.fmax(
            queue.values / self.parameters.queue_depth_threshold, usage.values / self.parameters.kv_cache_util_threshold
        )
        stale = _gone_stale(queue) | _gone_stale(usage)
        return fullness, ~(stale | np.isnan(fullness))


def _gone_stale(samples: Samples) -> Mask:
    """Which endpoints had the attribute, but not of late."""
    stale: Mask = ~np.isnan(samples.values)
    if samples.fresh is not None:
        stale &= ~samples.fresh
    return stale
