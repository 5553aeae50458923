"""`metric-scorer`: scores endpoints by a metric of the user's choice, which a `prometheus-metric` extractor reads."""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import linear
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import check_range
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

UNBOUNDED = float(np.finfo(np.float64).max) / 4
"""A bound where none is given: differences of values within it are finite."""


class MetricParameters(Struct, frozen=True, rename="camel"):
    """Which metric, whether little or much of it is good, and how its values become scores."""

    metric_name: Annotated[str, Meta(min_length=1)]
    """The metric's name, or that of the extractor that reads it."""
    optimization_mode: Literal["Minimize", "Maximize"] = "Minimize"
    min: float | None = None
    max: float | None = None
    normalization_algo: Literal["Linear", "Softmax"] = "Linear"

    def __post_init__(self) -> None:
        if self.normalization_algo == "Linear" and self.max is None:
            raise ValueError("max: required, and missing; Linear places values between min and max")
        check_range(*self.range)

    @property
    def range(self) -> tuple[float, float]:
        """What values are clamped to. Linear begins at 0 unless told otherwise."""
        lowest = 0.0 if self.normalization_algo == "Linear" else -UNBOUNDED
        return lowest if self.min is None else self.min, UNBOUNDED if self.max is None else self.max


class MetricScorer(Scorer):
    """Linear: the place between min and max. Softmax: the share of `e^v` (Minimize: `e^−v`) in the candidates' sum."""

    TYPE = "metric-scorer"
    Parameters = MetricParameters
    parameters: MetricParameters

    def __init__(self, name: str, parameters: MetricParameters) -> None:
        super().__init__(name, parameters)
        self._low, self._high = parameters.range
        self._minimize = parameters.optimization_mode == "Minimize"
        if parameters.normalization_algo == "Linear":
            self._formula = linear(self._low, self._high, least=self._minimize)
        else:
            self._formula = self._softmax

    @classmethod
    def consumes(cls, parameters: MetricParameters) -> tuple[Input, ...]:
        advice = "add a prometheus-metric extractor that reads it"
        return (Input(parameter="metricName", name=parameters.metric_name, advice=advice),)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        return cycle.score_by(self.inputs["metricName"], rows, self._formula)

    def _softmax(self, values: Floats) -> Floats:
        if not len(values):
            return values
        clamped = np.minimum(np.maximum(values, self._low), self._high)
        # against the best, whose power is e^0, no power overflows
        best = np.minimum.reduce(clamped) if self._minimize else np.maximum.reduce(clamped)
        powers = np.exp(best - clamped if self._minimize else clamped - best)
        scores: Floats = powers / np.add.reduce(powers)
        return scores
