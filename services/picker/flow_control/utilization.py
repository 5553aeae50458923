"""`utilization-detector`: saturation from queues and KV caches; as a filter, keeps the endpoints below both limits.

An endpoint whose metrics are stale counts as the configured policy says: full, not at all, or by its last values (full
when it never had any). When no endpoint's metrics are fresh it is the collectors that
failed, not the servers: then the requests in flight decide, so that losing the metrics alone sheds nothing.

Metrics don't show what was dispatched since they were sampled. So requests in flight count against the room that the
last sample showed, and what it makes of a sample holds until the next one comes.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, Cycle, Samples
from services.picker.scheduling.formulas import mean_fullness
from services.picker.scheduling.interfaces import Filter, SaturationDetector
from services.picker.state.layout import Floats, Mask, Rows
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.plugin import Input, Role
from shared.quantities import PositiveDuration

MIN_SHARE = 1e-9
"""Of the KV cache: below it, nothing is known of what a request takes."""
_QUEUE = WAITING_QUEUE_SIZE.wire
MAX_READINGS = 8
"""Sets of endpoints whose last reading is kept: the pool, and its stages."""


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


class _Full(Struct, frozen=True):
    """When endpoints reach a ceiling."""

    ceiling: float
    fits: Floats
    """The requests that fit on each beyond those that the metrics show."""
    at_sample: Floats
    """The requests that they show."""
    requests: Floats
    """The sum: in flight when it is full."""
    ones: Floats
    """The product with them is a sum, in a third of the time of `add.reduce`."""


class _Reading(Struct):
    """What metrics of some endpoints say. It holds until the next ones come, or one of the fresh ones gets stale."""

    rows: Rows
    source: tuple[Floats, Floats]
    """The columns that they are from."""
    queue: Samples
    usage: Samples
    fullness: Floats
    """Shares of the limits that endpoints have reached. An engine that doesn't report one of the two is judged by the
    other."""
    fresh: Mask
    """For which of them that is known and not stale."""
    oldest: float
    """The oldest sample time of those."""
    saturation: float | None
    """None when no endpoint's metrics are fresh."""
    kept: Rows
    """Those that the filter keeps."""
    at_sample: Floats
    """What `InFlight` had under this name when the metrics were last compared. New metrics bring another array."""
    full: _Full | None = None
    """For the last ceiling that was asked for."""


class UtilizationDetector(SaturationDetector, Filter):
    """Mean over endpoints of `max(queue / limit, usage / limit)`, where none counts for more than `MOST_FULL` among
    others."""

    TYPE = "utilization-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR, Role.FILTER})
    Parameters = UtilizationParameters
    CONSUMES = (
        Input(WAITING_QUEUE_SIZE, optional=True),
        Input(KV_CACHE_USAGE, optional=True),
        Input(IN_FLIGHT_LOAD, optional=True),
    )
    parameters: UtilizationParameters

    def __init__(self, name: str, parameters: UtilizationParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._readings: dict[int, _Reading] = {}

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        if not len(rows):
            return 1.0
        saturation = self._reading(cycle, rows).saturation
        return self._by_requests(cycle, rows) if saturation is None else saturation

    def room(self, cycle: Cycle, rows: Rows, ceiling: float, tokens: float) -> float:
        """The sum over endpoints of what fits beyond the requests that the last sample shows, less what was dispatched
        since, plus what has finished. An endpoint below the ceiling fits at least one at first."""
        if not len(rows):
            return 0.0
        reading = self._reading(cycle, rows)
        if reading.saturation is None:
            left = ceiling - self._by_requests(cycle, rows)
            return max(left * self.parameters.max_concurrency * len(rows), 1.0) if left > 0 else 0.0
        if reading.saturation >= ceiling:
            return 0.0
        in_flight, full = cycle.view.in_flight, reading.full
        if full is None or full.ceiling != ceiling or full.at_sample is not in_flight.at_sample:
            full = reading.full = self._full(cycle, reading, ceiling)
        requests, count = in_flight.requests, in_flight.count
        if rows is not cycle.layout.all_rows:
            requests = requests.take(rows)
            count = float(requests.dot(full.ones))
        return float(np.maximum(full.requests, requests).dot(full.ones)) - count

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        """The fresh endpoints below both limits; all of them when there is none."""
        return self._reading(cycle, rows).kept

    def _by_requests(self, cycle: Cycle, rows: Rows) -> float:
        """The saturation when no endpoint's metrics are fresh."""
        requests = cycle.view.in_flight.requests[rows]
        cycle.note("InFlightRequests", rows, requests)
        return float(requests.mean() / self.parameters.max_concurrency)

    def _reading(self, cycle: Cycle, rows: Rows) -> _Reading:
        """What the metrics of these endpoints say."""
        known, at_sample = self._readings.get(id(rows)), cycle.view.in_flight.at_sample
        if known is not None and known.at_sample is at_sample and cycle.samples.get(_QUEUE) is known.queue:
            return known  # as this cycle has seen before
        after, columns = self.parameters.metrics_staleness_threshold, cycle.view.columns
        source = columns.numbers(WAITING_QUEUE_SIZE.wire).values, columns.numbers(KV_CACHE_USAGE.wire).values
        if (
            known is not None
            and known.source[0] is source[0]
            and known.source[1] is source[1]
            and known.oldest >= cycle.oldest(after)
        ):
            cycle.keep(WAITING_QUEUE_SIZE.wire, known.queue)
            cycle.keep(KV_CACHE_USAGE.wire, known.usage)
            known.at_sample = at_sample
            return known
        queue, usage = cycle.read(WAITING_QUEUE_SIZE, rows, after), cycle.read(KV_CACHE_USAGE, rows, after)
        fullness: Floats = np.fmax(
            queue.values / self.parameters.queue_depth_threshold, usage.values / self.parameters.kv_cache_util_threshold
        )
        fresh: Mask = _not_stale(queue) & _not_stale(usage) & (fullness == fullness)
        saturation = None
        if np.logical_or.reduce(fresh):
            counted = fullness[fresh] if cycle.stale.policy == "ignore" else np.where(fresh, fullness, 1.0)
            saturation = mean_fullness(counted)
        oldest = min(_oldest(queue, fresh), _oldest(usage, fresh))
        if len(self._readings) >= MAX_READINGS:
            self._readings.clear()
        kept: Rows = rows[fresh & (fullness < 1.0 + self.parameters.headroom)]
        kept.flags.writeable = False
        if len(kept) in (0, len(rows)):
            kept = rows
        reading = _Reading(rows, source, queue, usage, fullness, fresh, oldest, saturation, kept, at_sample)
        self._readings[id(rows)] = reading
        return reading

    def _full(self, cycle: Cycle, reading: _Reading, ceiling: float) -> _Full:
        """At this ceiling, with the load at the last sample as it is known now."""
        known, at_sample = reading.full, cycle.view.in_flight.at_sample
        fits = known.fits if known is not None and known.ceiling == ceiling else self._fits(cycle, reading, ceiling)
        return _Full(ceiling, fits, at_sample, fits + at_sample.take(reading.rows), np.ones(len(fits)))

    def _fits(self, cycle: Cycle, reading: _Reading, ceiling: float) -> Floats:
        """Requests that fit on each endpoint beyond those that its metrics show: as many as its queue may grow by, and
        its KV cache holds if each takes as much as those that run. One that has no queue has free slots, but nobody
        knows how many: it is taken to have as many as it uses, or as its queue may have. What is in flight and doesn't
        queue runs. Stale ones have no room."""
        limits = self.parameters
        queue, usage = np.fmax(reading.queue.values, 0.0), np.fmax(reading.usage.values, 0.0)  # 0 for NaN
        running = np.maximum(cycle.view.in_flight.at_sample.take(reading.rows) - queue, 0.0)
        taken = usage * running
        slots = np.where(queue > 0.0, 0.0, np.maximum(running, limits.queue_depth_threshold))
        by_queue = slots + ceiling * limits.queue_depth_threshold - queue
        free = ceiling * limits.kv_cache_util_threshold - usage
        by_cache = np.divide(free * running, usage, out=np.full(len(queue), np.inf), where=taken > MIN_SHARE)
        fits: Floats = np.minimum(by_queue, by_cache)
        fits = np.where(reading.fullness < ceiling, np.maximum(fits, 1.0), np.minimum(fits, 0.0))
        fits[~reading.fresh] = -np.inf
        return fits


def _not_stale(samples: Samples) -> Mask:
    """Which endpoints have a recent value of the attribute, or never had one."""
    unknown: Mask = samples.values != samples.values
    return unknown if samples.fresh is None else unknown | samples.fresh


def _oldest(samples: Samples, among: Mask) -> float:
    """The oldest sample time of these endpoints, of those that have the attribute."""
    if samples.at is None:
        return np.inf
    known = among & (samples.values == samples.values)
    return float(np.minimum.reduce(samples.at, where=known, initial=np.inf))
