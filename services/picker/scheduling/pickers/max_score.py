"""`max-score-picker`: the best total wins; ties are broken by chance."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Picker
from services.picker.scheduling.pickers.parameters import PickerParameters
from services.picker.state.layout import Floats, Rows

FEW = 8
"""Up to so many are found one by one; beyond, sorting all is cheaper."""


class MaxScorePicker(Picker):
    """Endpoints by total, highest first."""

    TYPE = "max-score-picker"
    Parameters = PickerParameters
    parameters: PickerParameters

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        wanted = min(self.parameters.wanted, len(rows))
        if wanted > FEW:
            order = np.lexsort((cycle.random.random(len(rows)), -totals))
            return [int(row) for row in rows[order[:wanted]]]
        left = totals
        picked: list[int] = []
        for _ in range(wanted):
            if picked:
                left = left.copy() if left is totals else left
                left[at] = -np.inf
            best = (left == np.maximum.reduce(left)).nonzero()[0]
            at = best[int(cycle.random.random() * len(best))] if len(best) > 1 else best[0]
            picked.append(int(rows[at]))
        return picked
