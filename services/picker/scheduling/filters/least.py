"""The endpoints near the least value of an attribute, as the decision tree of GIE 0.1 to 0.5 takes them."""

from collections.abc import Callable

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.judged import judged
from services.picker.state.layout import Rows
from shared.attributes import AttributeKey


def exactly(step: float) -> float:
    """The step as it is."""
    return step


def least(cycle: Cycle, rows: Rows, key: AttributeKey[float], round_down: Callable[[float], float] = exactly) -> Rows:
    """The endpoints with a value up to `min + (max − min) / n`, n being the number of endpoints that are compared. At
    least one of them stays."""
    samples = cycle.read(key, rows)
    by_value, keep = judged(cycle, samples)
    values = samples.values[by_value]
    if len(values):
        low, high = float(values.min()), float(values.max())
        keep = keep | (by_value & (samples.values <= low + round_down((high - low) / len(values))))
    kept: Rows = rows[keep]
    return kept
