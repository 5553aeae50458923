"""`soft-reflective-ceiling-policy`: lower bands get fewer turns as the pool fills, and none once it is full.

A band below its ceiling is open. One that has reached it is open in one call of several; all such bands in the same
call, so that a higher one that is closed doesn't keep a lower one from its turn.
"""

from collections.abc import Sequence
from math import floor

from services.picker.flow_control.interfaces import UsageLimitPolicy
from shared.plugin import NoParameters, Stability


class SoftReflectiveCeilingPolicy(UsageLimitPolicy):
    """With rank `i` of `N` bands, 0 the highest, and the saturation `s`: the ceiling is `1 − i · s / (N − 1)`, and a
    band at its ceiling is open in one call of `max(1, round(s / (1 − s)))`."""

    TYPE = "soft-reflective-ceiling-policy"
    STABILITY = Stability.ALPHA
    RETRY = 0.001

    def __init__(self, name: str, parameters: NoParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._calls = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        last = len(priorities) - 1
        if last < 1:
            return [1.0] * len(priorities)
        turn = 0.0
        if 1.0 - saturation <= saturation < 1.0:  # the lowest band has reached its ceiling, if any has
            self._calls += 1
            # half away from zero, as the original rounds; the least part keeps it finite
            period = max(1, floor(saturation / (1.0 - saturation + 1e-9) + 0.5))
            turn = float(self._calls % period == 0)
        return [1.0 if not rank or saturation < 1.0 - rank * saturation / last else turn for rank in range(last + 1)]
