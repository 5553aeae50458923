"""What a number is made of: a metric's value as it stands, or how a counter or histogram has moved of late.

A counter's standing says little to a scheduler; how fast it rises does. So beside `value` there are `rate` (of a
counter), and `mean` and `quantile` (of a histogram), each over the last `window`. With Δ for the increase over the
window, resets left out:

    rate      Σ Δseries / seconds
    mean      Σ Δname_sum / Σ Δname_count
    quantile  from Σ Δname_bucket per le, linear within a bucket, as PromQL's histogram_quantile does it

`services.collector.page.meter` computes them.
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
PARTS = ("_sum", "_count", "_bucket")
"""How the names of a histogram's series end."""


class Function(StrEnum):
    """What is made of the series."""

    VALUE = "value"
    RATE = "rate"
    """A counter's increase per second."""
    MEAN = "mean"
    """What a histogram or summary has observed, on average."""
    QUANTILE = "quantile"
    """What a share of a histogram's observations was at or below."""


class Aggregation(StrEnum):
    """What several series that match come to."""

    NEWEST = "newest"
    """That with the greatest timestamp; none counts as 0, ties keep the first on the page."""
    SUM = "sum"
    MAX = "max"
    MIN = "min"
    MEAN = "mean"


AGGREGATIONS: Mapping[Function, tuple[Aggregation, ...]] = {
    Function.VALUE: (Aggregation.NEWEST, Aggregation.SUM, Aggregation.MAX, Aggregation.MIN, Aggregation.MEAN),
    # A rate needs the same series on every page; which one is the newest may change from page to page.
    Function.RATE: (Aggregation.SUM, Aggregation.MAX, Aggregation.MIN, Aggregation.MEAN),
    # The series' observations are pooled: a mean of means would weigh a series of few as one of many.
    Function.MEAN: (Aggregation.SUM,),
    Function.QUANTILE: (Aggregation.SUM,),
}
"""What each function can be aggregated by; the first is the default."""


class Measure(Struct, frozen=True):
    """A measure, all defaults filled in."""

    spec: MetricSpec
    """The series; for `mean` and `quantile` under the histogram's own name."""
    function: Function = Function.VALUE
    aggregation: Aggregation = Aggregation.NEWEST
    window: float = DEFAULT_WINDOW
    """Seconds that `rate`, `mean` and `quantile` look back; also how long series may be missing from the pages before
    what was observed on them no longer counts."""
    quantile: float = 0.0
    empty_value: float | None = None
    """What holds where nothing has been observed within the window."""
    bounds: Bounds = ANY
    """What is beyond them isn't taken."""

    @property
    def concern(self) -> str:
        """What is amiss with it as a signal to choose servers by; empty where nothing is."""
        if self.function not in (Function.MEAN, Function.QUANTILE) or self.empty_value is not None:
            return ""
        return (
            f"an endpoint that observes nothing for {format_duration(self.window)} has no fresh {self.function.value}, "
            "is scored as dataLayer.staleMetrics.policy says (by default as the worst), and may so never observe "
            "anything again; give emptyValue, the value to take for it then"
        )

    def __str__(self) -> str:
        if self.function is Function.VALUE:
            plain = self.aggregation is Aggregation.NEWEST
            return str(self.spec) if plain else f"{self.aggregation}({self.spec})"
        of = f"{self.quantile:g}, {self.spec}" if self.function is Function.QUANTILE else str(self.spec)
        text = f"{self.function}({of}, {self.window:g}s)"
        return text if self.aggregation is Aggregation.SUM else f"{self.aggregation}({text})"


class MeasureParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """The parameters of a measure, to be inherited by those of what has one.

    Raises ValueError on creation, naming the field, when they don't fit together. A subclass that has a
    `__post_init__` calls this one's.
    """

    function: Function = Function.VALUE
    aggregation: Aggregation | None = None
    """The function's default where it isn't given: `newest` of values, the `sum` of all that moves."""
    window: PositiveDuration | None = None
    quantile: Annotated[float, Meta(ge=0, le=1)] | None = None
    empty_value: float | None = None
    min_value: float | None = None
    """What is below isn't taken."""
    max_value: float | None = None
    """What is above isn't taken."""

    def __post_init__(self) -> None:
        wrong: list[str] = []
        fitting = AGGREGATIONS[self.function]
        if self.aggregation is not None and self.aggregation not in fitting:
            wrong.append(
                f"aggregation: {self.aggregation.value!r} doesn't go with function {self.function.value!r}; "
                f"{' or '.join(repr(one.value) for one in fitting)} does"
            )
        if self.window is not None and self.function is Function.VALUE:
            wrong.append("window: a value as it stands has none; function 'rate', 'mean' or 'quantile' has")
        if self.quantile is not None and self.function is not Function.QUANTILE:
            wrong.append(f"quantile: function {self.function.value!r} has none; write function 'quantile'")
        if self.quantile is None and self.function is Function.QUANTILE:
            wrong.append("quantile: required by function 'quantile', a number from 0 to 1 such as 0.95")
        if self.empty_value is not None and not math.isfinite(self.empty_value):
            wrong.append(f"emptyValue: {self.empty_value!r} is no finite number")
        elif self.empty_value is not None and self.empty_value not in self.bounds:
            wrong.append(f"emptyValue: {self.empty_value!r} isn't among the values that are taken, {self.bounds}")
        if not self.bounds.least <= self.bounds.most:
            wrong.append(f"minValue, maxValue: no value is within {self.bounds}")
        if wrong:
            raise ValueError("; ".join(wrong))

    @property
    def bounds(self) -> Bounds:
        """From the least to the greatest value that is taken."""
        least = ANY.least if self.min_value is None else self.min_value
        most = ANY.most if self.max_value is None else self.max_value
        return Bounds(max(least, ANY.least), min(most, ANY.most))

    def measure(self, spec: MetricSpec, field: str) -> Measure:
        """The measure of these series. `field` is the parameter that names them, for errors.

        Raises ValueError when they can't be what the function reads.
        """
        if self.function in (Function.MEAN, Function.QUANTILE):
            for part in PARTS:
                if spec.name.endswith(part):
                    raise ValueError(
                        f"{field}: {spec.name!r} is one of a histogram's series; function {self.function.value!r} "
                        f"takes the histogram's own name, {spec.name.removesuffix(part)!r}"
                    )
        if self.function is Function.QUANTILE and any(label == "le" for label, _ in spec.labels):
            raise ValueError(f"{field}: function 'quantile' reads all buckets; leave the label 'le' out")
        return Measure(
            spec=spec,
            function=self.function,
            aggregation=self.aggregation or AGGREGATIONS[self.function][0],
            window=self.window or DEFAULT_WINDOW,
            quantile=self.quantile or 0.0,
            empty_value=self.empty_value,
            bounds=self.bounds,
        )
