"""`utilization-detector`: saturation from queues and KV caches; as a filter, keeps the endpoints below both limits.

An endpoint whose metrics are stale counts as full. When every endpoint's are stale it is the collectors that failed,
not the servers: then the requests in flight decide, so that losing the metrics alone sheds nothing.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.admission.detector import SaturationDetector
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Floats, Mask, Rows
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.plugin import Role
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
    """Requests in flight that fill an endpoint, while the metrics of all endpoints are stale."""


class UtilizationDetector(SaturationDetector, Filter):
    """Mean over endpoints of `max(queue / limit, usage / limit)`."""

    TYPE = "utilization-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR, Role.FILTER})
    Parameters = UtilizationParameters
    REQUIRES = (WAITING_QUEUE_SIZE, KV_CACHE_USAGE)
    parameters: UtilizationParameters

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        if not len(rows):
            return 1.0
        queue, usage, fresh = self._read(cycle, rows)
        if not fresh.any():
            return float(cycle.view.in_flight.requests[rows].mean() / self.parameters.max_concurrency)
        fullness = np.maximum(
            queue / self.parameters.queue_depth_threshold, usage / self.parameters.kv_cache_util_threshold
        )
        return float(np.where(fresh, fullness, 1.0).mean())

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        """The fresh endpoints below both limits; all of them when there is none."""
        queue, usage, fresh = self._read(cycle, rows)
        room = 1.0 + self.parameters.headroom
        kept: Rows = rows[
            fresh
            & (queue < self.parameters.queue_depth_threshold * room)
            & (usage < self.parameters.kv_cache_util_threshold * room)
        ]
        return kept if len(kept) else rows

    def _read(self, cycle: Cycle, rows: Rows) -> tuple[Floats, Floats, Mask]:
        after = self.parameters.metrics_staleness_threshold or cycle.stale.after
        queue = cycle.view.columns.numbers(WAITING_QUEUE_SIZE.wire)
        usage = cycle.view.columns.numbers(KV_CACHE_USAGE.wire)
        oldest = cycle.now - after
        fresh: Mask = (queue.at[rows] >= oldest) & (usage.at[rows] >= oldest)
        return queue.values[rows], usage.values[rows], fresh
