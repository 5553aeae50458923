"""Metric queries: the value of a metric, or the rate, mean or quantile of a counter or histogram over a window.

With Δ for the increase over the window, counter resets excluded:

    rate      Σ Δseries / seconds
    mean      Σ Δname_sum / Σ Δname_count
    quantile  PromQL's histogram_quantile of Σ Δname_bucket per le

`services.collector.page.evaluator` evaluates them.
"""

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from services.collector.page.spec import MetricSpec
from shared.attributes import ANY, Bounds
from shared.quantities import PositiveDuration, format_duration

DEFAULT_WINDOW = 10.0
"""Seconds."""
HISTOGRAM_SUFFIXES = ("_sum", "_count", "_bucket")


class Function(StrEnum):
    """What a query computes from the series."""

    VALUE = "value"
    RATE = "rate"
    """A counter's increase per second."""
    MEAN = "mean"
    """The mean observation of a histogram or summary."""
    QUANTILE = "quantile"
    """A quantile of the observations of a histogram."""


class Aggregation(StrEnum):
    """How a query combines the series that match."""

    NEWEST = "newest"
    """The series with the newest timestamp. A missing timestamp counts as 0. Ties keep the first."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"


AGGREGATIONS: Mapping[Function, tuple[Aggregation, ...]] = {
    Function.VALUE: (Aggregation.NEWEST, Aggregation.SUM, Aggregation.MAX, Aggregation.MIN, Aggregation.MEAN),
    # Not newest: a rate needs the same series on every page.
    Function.RATE: (Aggregation.SUM, Aggregation.MAX, Aggregation.MIN, Aggregation.MEAN),
    # The sum pools the observations. A mean of means would ignore how many observations a series has.
    Function.MEAN: (Aggregation.SUM,),
    Function.QUANTILE: (Aggregation.SUM,),
}
"""The aggregations of each function; the first is the default."""


class MetricQuery(Struct, frozen=True):
    """A query with all defaults filled in."""

    spec: MetricSpec
    """The series; for `mean` and `quantile` the name of the histogram."""
    function: Function = Function.VALUE
    aggregation: Aggregation = Aggregation.NEWEST
    window: float = DEFAULT_WINDOW
    """Seconds that `rate`, `mean` and `quantile` look back. A value also ages this long after its series disappear,
    before `empty_value` applies."""
    quantile: float = 0.0
    empty_value: float | None = None
    """The value when the window has no observations."""
    bounds: Bounds = ANY
    """Values outside are refused."""

    @property
    def concern(self) -> str:
        """Why it is a bad signal to choose endpoints by; empty if it isn't."""
        if self.function not in (Function.MEAN, Function.QUANTILE) or self.empty_value is not None:
            return ""
        return (
            f"an endpoint that observes nothing for {format_duration(self.window)} has no fresh {self.function.value}, "
            "is scored as dataLayer.staleMetrics.policy says (by default as the worst), and may so never observe "
            "anything again; give emptyValue, the value without observations"
        )

    def __str__(self) -> str:
        if self.function is Function.VALUE:
            plain = self.aggregation is Aggregation.NEWEST
            return str(self.spec) if plain else f"{self.aggregation}({self.spec})"
        of = f"{self.quantile:g}, {self.spec}" if self.function is Function.QUANTILE else str(self.spec)
        text = f"{self.function}({of}, {self.window:g}s)"
        return text if self.aggregation is Aggregation.SUM else f"{self.aggregation}({text})"


class QueryParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of plugin parameters that define a query.

    Raises ValueError on creation, with the field's name, when they contradict each other. A subclass with a
    `__post_init__` has to call this one.
    """

    function: Function = Function.VALUE
    aggregation: Aggregation | None = None
    """By default the first of `AGGREGATIONS`."""
    window: PositiveDuration | None = None
    quantile: Annotated[float, Meta(ge=0, le=1)] | None = None
    empty_value: float | None = None
    min_value: float | None = None
    max_value: float | None = None

    def __post_init__(self) -> None:
        wrong: list[str] = []
        allowed = AGGREGATIONS[self.function]
        if self.aggregation is not None and self.aggregation not in allowed:
            wrong.append(
                f"aggregation: {self.aggregation.value!r} isn't supported by function {self.function.value!r}; "
                f"{' or '.join(repr(each.value) for each in allowed)} does"
            )
        if self.window is not None and self.function is Function.VALUE:
            wrong.append("window: function 'value' has none; use function 'rate', 'mean' or 'quantile'")
        if self.quantile is not None and self.function is not Function.QUANTILE:
            wrong.append(f"quantile: function {self.function.value!r} has none; use function 'quantile'")
        if self.quantile is None and self.function is Function.QUANTILE:
            wrong.append("quantile: required by function 'quantile', a number from 0 to 1 such as 0.95")
        if self.empty_value is not None and not math.isfinite(self.empty_value):
            wrong.append(f"emptyValue: {self.empty_value!r} is not a finite number")
        elif self.empty_value is not None and self.empty_value not in self.bounds:
            wrong.append(f"emptyValue: {self.empty_value!r} is outside of the accepted values, {self.bounds}")
        if not self.bounds.minimum <= self.bounds.maximum:
            wrong.append(f"minValue, maxValue: no value is within {self.bounds}")
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def bounds(self) -> Bounds:
        """The accepted values."""
        minimum = ANY.minimum if self.min_value is None else self.min_value
        maximum = ANY.maximum if self.max_value is None else self.max_value
        return Bounds(max(minimum, ANY.minimum), min(maximum, ANY.maximum))

    def query(self, spec: MetricSpec, field: str) -> MetricQuery:
        """The query of these series. `field` is the parameter with their name, for errors.

        Raises ValueError when the function can't read them.
        """
        if self.function in (Function.MEAN, Function.QUANTILE):
            for suffix in HISTOGRAM_SUFFIXES:
                if spec.name.endswith(suffix):
                    raise ValueError(
                        f"{field}: {spec.name!r} is a series of a histogram; function {self.function.value!r} "
                        f"needs the histogram's name, {spec.name.removesuffix(suffix)!r}"
                    )
        if self.function is Function.QUANTILE and any(label == "le" for label, _ in spec.labels):
            raise ValueError(f"{field}: function 'quantile' reads all buckets; leave the label 'le' out")
        return MetricQuery(
            spec=spec,
            function=self.function,
            aggregation=self.aggregation or AGGREGATIONS[self.function][0],
            window=self.window or DEFAULT_WINDOW,
            quantile=self.quantile or 0.0,
            empty_value=self.empty_value,
            bounds=self.bounds,
        )
