"""`utilization-filter`: keeps the endpoints whose load is within every limit that is given.

What isn't known is not taken for idle. An engine that doesn't report one of the scraped metrics is judged by the
others; an endpoint with a value that went stale, or with none at all, doesn't pass unless the policy says otherwise.
When no candidate's metrics are fresh it is the collectors that failed, not the servers: then only the requests in
flight count, so that losing only the metrics refuses no request.
"""

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, Cycle
from services.picker.scheduling.formulas import at_most
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.named_attribute import in_flight_load
from services.picker.state.layout import Mask, Rows
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey
from shared.plugin import Input

IN_FLIGHT = "active-requests"
SCRAPED: dict[str, AttributeKey[float]] = {
    "running-requests": RUNNING_REQUESTS_SIZE,
    "waiting-queue": WAITING_QUEUE_SIZE,
    "kv-cache-utilization": KV_CACHE_USAGE,
}


class Condition(Struct, frozen=True, rename="camel"):
    """Holds up to `maxValue`, that value included."""

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: Annotated[float, Meta(ge=0)]

    def __post_init__(self) -> None:
        if self.metric == "kv-cache-utilization" and self.max_value > 1:
            raise ValueError(f"maxValue: {self.max_value:g} is above 1; kv-cache-utilization is a share")

    @property
    def reads(self) -> AttributeKey[Any]:
        return SCRAPED.get(self.metric, IN_FLIGHT_LOAD)


class UtilizationFilterParameters(Struct, frozen=True, rename="camel"):
    """The limits of one endpoint."""

    conditions: Annotated[tuple[Condition, ...], Meta(min_length=1)]
    fallback_on_empty: bool = False
    """Keep all of them where none is left."""
    in_flight_load_producer_name: str = ""


class UtilizationFilter(Filter):
    """`value ≤ maxValue` for every condition."""

    TYPE = "utilization-filter"
    BOUNDED = True
    Parameters = UtilizationFilterParameters
    parameters: UtilizationFilterParameters

    def __init__(self, name: str, parameters: UtilizationFilterParameters) -> None:
        super().__init__(name, parameters)
        limits = [(condition.metric, condition.max_value) for condition in parameters.conditions]
        self._in_flight = min((most for metric, most in limits if metric == IN_FLIGHT), default=None)
        self._scraped = [(SCRAPED[metric], at_most(most)) for metric, most in limits if metric != IN_FLIGHT]

    @classmethod
    def consumes(cls, parameters: UtilizationFilterParameters) -> tuple[Input, ...]:
        load = in_flight_load(parameters.in_flight_load_producer_name)
        keys = dict.fromkeys(condition.reads for condition in parameters.conditions)
        return tuple(load if key is IN_FLIGHT_LOAD else Input(key) for key in keys)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        kept: Rows = rows
        free: Mask | None = None
        if self._in_flight is not None:
            requests = cycle.view.in_flight.requests.take(rows)
            cycle.note("InFlightRequests", rows, requests)
            free = requests <= self._in_flight
            kept = rows[free]
        for key, passes in self._scraped:
            found = cycle.rows_by(key, kept, passes)
            if found is None:
                within = self._within(cycle, rows)
                kept = rows[within if free is None else within & free]
                break
            kept = found
        return kept if len(kept) or not self.parameters.fallback_on_empty else rows

    def _within(self, cycle: Cycle, rows: Rows) -> Mask:
        """Which endpoints are within the limits of scraped metrics, as far as these are known. Some aren't fresh."""
        within = np.ones(len(rows), np.bool_)
        known = np.zeros(len(rows), np.bool_)
        stale = np.zeros(len(rows), np.bool_)
        for key, passes in self._scraped:
            samples = cycle.read(key, rows)
            fresh = ~np.isnan(samples.values) if samples.fresh is None else samples.fresh
            within &= ~fresh | passes(samples.values)
            known |= fresh
            stale |= ~(fresh | np.isnan(samples.values))
        if cycle.stale.policy == "ignore" or not np.logical_or.reduce(known):
            return within
        return within & known & ~stale
