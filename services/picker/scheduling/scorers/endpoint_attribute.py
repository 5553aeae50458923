"""`endpoint-attribute-scorer`: scores endpoints by any attribute that is a number."""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import least_is_best, linear, most_is_best
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import check_range, named
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input


class FixedRange(Struct, frozen=True, rename="camel"):
    """Which value scores worst, and which best."""

    min: float
    max: float

    def __post_init__(self) -> None:
        check_range(self.min, self.max)


class AdaptiveRange(Struct, frozen=True):
    """From the candidates' smallest value to their largest."""


class Normalization(Struct, frozen=True, rename="camel"):
    """The range whose ends score 0 and 1; adaptive unless a fixed one is given."""

    fixed_range: FixedRange | None = None
    adaptive_range: AdaptiveRange | None = None

    def __post_init__(self) -> None:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("fixedRange and adaptiveRange are both given; give only one")


class ScoringAlgorithm(Struct, frozen=True, rename="camel"):
    """Whether little or much of it is good."""

    type: Literal["linear_lower_is_better", "linear_higher_is_better"]
    normalization: Normalization = Normalization()


class EndpointAttributeScorerParameters(Struct, frozen=True, rename="camel"):
    """Which attribute, and how its values become scores."""

    attribute_key: Annotated[str, Meta(min_length=1)]
    algorithm: ScoringAlgorithm
    producer: str | None = None
    """Name or type of the plugin that makes it; None is the core extractor, empty is any."""


class EndpointAttributeScorer(Scorer):
    """The place of the value between two bounds."""

    TYPE = "endpoint-attribute-scorer"
    Parameters = EndpointAttributeScorerParameters
    parameters: EndpointAttributeScorerParameters

    def __init__(self, name: str, parameters: EndpointAttributeScorerParameters) -> None:
        super().__init__(name, parameters)
        algorithm = parameters.algorithm
        lower = algorithm.type == "linear_lower_is_better"
        fixed = algorithm.normalization.fixed_range
        adaptive = least_is_best if lower else most_is_best
        self._formula = adaptive if fixed is None else linear(fixed.min, fixed.max, least=lower)

    @classmethod
    def consumes(cls, parameters: EndpointAttributeScorerParameters) -> tuple[Input, ...]:
        return (named("attributeKey", parameters.attribute_key, parameters.producer),)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        samples = cycle.read(self.inputs["attributeKey"], rows)
        values, fresh = samples.values, samples.fresh
        if fresh is None or np.logical_and.reduce(fresh):
            return self._formula(values)
        scores = cycle.fill(fresh, self._formula(values[fresh]))
        scores[np.isnan(values)] = 0.0  # as in the Go original; the policy is for values that went stale
        return scores
