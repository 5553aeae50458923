"""`endpoint-attribute-filter`: keeps the endpoints one of whose attributes compares well with a threshold.

A stale value is treated as the policy says: `saturated` keeps no endpoint because of it, `ignore` takes it for missing,
`lastKnown` judges by it. When no candidate's value is fresh it is the collectors that failed, not the servers: then the
last values count, so that losing the metrics refuses no request that wasn't refused before.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.named_attribute import named
from services.picker.state.layout import Floats, Mask, Rows
from shared.plugin import Input

OPERATORS: dict[str, Callable[[Floats, float], Any]] = {
    "LessThan": np.less,
    "LessThanOrEqual": np.less_equal,
    "GreaterThan": np.greater,
    "GreaterThanOrEqual": np.greater_equal,
    "Equal": np.equal,
    "NotEqual": np.not_equal,
}
Operator = Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]


class Threshold(Struct, frozen=True, rename="camel"):
    """Holds where `value of the endpoint · operator · value` does."""

    operator: Operator
    value: float


class FilteringAlgorithm(Struct, frozen=True, rename="camel"):
    """How values are judged."""

    type: Literal["threshold"]
    threshold: Threshold


class EndpointAttributeFilterParameters(Struct, frozen=True, rename="camel"):
    """Which attribute, how it is judged, and what becomes of endpoints without it."""

    attribute: Annotated[str, Meta(min_length=1)]
    algorithm: FilteringAlgorithm
    producer: str | None = None
    """Name or type of the plugin that makes it; None is the core extractor, empty is any."""
    on_missing: Literal["Pass", "Fail"] = "Pass"
    fallback_on_empty: bool = False
    """Keep all of them where none is left."""


class EndpointAttributeFilter(Filter):
    """A comparison with a constant."""

    TYPE = "endpoint-attribute-filter"
    BOUNDED = True
    Parameters = EndpointAttributeFilterParameters
    parameters: EndpointAttributeFilterParameters

    def __init__(self, name: str, parameters: EndpointAttributeFilterParameters) -> None:
        super().__init__(name, parameters)
        self._holds = OPERATORS[parameters.algorithm.threshold.operator]
        self._missing_pass = parameters.on_missing == "Pass"

    @classmethod
    def consumes(cls, parameters: EndpointAttributeFilterParameters) -> tuple[Input, ...]:
        return (named("attribute", parameters.attribute, parameters.producer),)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        kept: Rows = rows[self._passes(cycle, rows)]
        return kept if len(kept) or not self.parameters.fallback_on_empty else rows

    def _passes(self, cycle: Cycle, rows: Rows) -> Mask:
        samples = cycle.read(self.inputs["attribute"], rows)
        values, fresh = samples.values, samples.fresh
        holds: Mask = self._holds(values, self.parameters.algorithm.threshold.value)
        if fresh is None or np.logical_and.reduce(fresh):
            return holds
        known = ~np.isnan(values)
        if not np.logical_or.reduce(fresh):
            fresh = known
        missing = ~fresh if cycle.stale.policy == "ignore" else ~known
        return (holds & fresh) | (missing & self._missing_pass)
