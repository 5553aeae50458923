"""`static-usage-limit-policy`: one ceiling for every band."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from services.picker.flow_control.interfaces import UsageLimitPolicy


class StaticUsageLimitParameters(Struct, frozen=True, rename="camel"):
    """The ceiling."""

    threshold: Annotated[float, Meta(gt=0, le=1)] = 1.0


class StaticUsageLimitPolicy(UsageLimitPolicy):
    """`threshold`, whatever the saturation and the priority."""

    TYPE = "static-usage-limit-policy"
    PURE = True
    Parameters = StaticUsageLimitParameters
    parameters: StaticUsageLimitParameters

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        return [self.parameters.threshold] * len(priorities)
