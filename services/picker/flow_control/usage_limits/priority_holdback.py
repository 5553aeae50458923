"""`priority-holdback-policy`: the lower the priority, the lower the ceiling, so that room is held back for the others.

A band that is alone isn't held back: it has the highest ceiling.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from services.picker.flow_control.interfaces import UsageLimitPolicy
from shared.plugin import Stability


class PriorityHoldbackParameters(Struct, frozen=True, rename="camel"):
    """The ceilings of the lowest and of the highest band, and how those between are placed."""

    min_ceiling: Annotated[float, Meta(ge=0, lt=1)]
    max_ceiling: Annotated[float, Meta(gt=0, le=1)] = 1.0
    domain: Literal["rank", "value"] = "rank"
    """`rank` spaces the bands evenly, `value` by their priorities."""
    shape: Literal["linear"] = "linear"

    def __post_init__(self) -> None:
        if self.min_ceiling >= self.max_ceiling:
            raise ValueError(f"minCeiling: {self.min_ceiling:g} is not below maxCeiling, {self.max_ceiling:g}")


class PriorityHoldbackPolicy(UsageLimitPolicy):
    """`min + share · (max − min)`; the share is 1 for the highest band and 0 for the lowest."""

    TYPE = "priority-holdback-policy"
    STABILITY = Stability.ALPHA
    PURE = True
    Parameters = PriorityHoldbackParameters
    parameters: PriorityHoldbackParameters

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        least, most = self.parameters.min_ceiling, self.parameters.max_ceiling
        last = len(priorities) - 1
        if last < 1:
            return [most] * len(priorities)
        if self.parameters.domain == "rank":
            return [most - rank * (most - least) / last for rank in range(last + 1)]
        top, bottom = priorities[0], priorities[-1]
        return [least + (priority - bottom) / (top - bottom) * (most - least) for priority in priorities]
