"""`random-picker` and `weighted-random-picker`: chance picks, with or without regard to the scores."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Picker, PickerParameters
from services.picker.state.layout import Floats, Rows

MIN_CHANCE = 1e-10
"""Stands in for a random number that is exactly 0, whose key would be 0 whatever the score."""


class RandomPicker(Picker):
    """Uniform choice without replacement: every candidate is as likely, whatever it scored."""

    TYPE = "random-picker"
    Parameters = PickerParameters
    parameters: PickerParameters

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        count = min(self.parameters.count, len(rows))
        if count == 1:
            return [int(rows[int(cycle.random.random() * len(rows))])]
        return [int(row) for row in cycle.random.permutation(rows)[:count]]


class WeightedRandomPicker(Picker):
    """Weighted choice without replacement (Efraimidis and Spirakis): the largest `U^(1/score)` win. An endpoint's
    chance is its share of the scores.

    An endpoint that scored 0 comes after all others; when all did, every one is as likely.
    """

    TYPE = "weighted-random-picker"
    Parameters = PickerParameters
    parameters: PickerParameters

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        count = min(self.parameters.count, len(rows))
        chance = np.maximum(cycle.random.random(len(rows)), MIN_CHANCE)
        scored = totals > 0
        # log U / score orders as U^(1/score) does and can't underflow; the unscored follow, by chance alone
        keys = np.where(scored, np.log(chance) / np.where(scored, totals, 1.0), -np.inf)
        order = np.lexsort((chance, keys))[::-1]
        return [int(row) for row in rows[order[:count]]]
