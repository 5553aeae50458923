"""`max-score-picker`: the best total wins; ties are broken by chance."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Picker, PickerParameters
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
        picked = [self._best(cycle, totals)]
        if wanted > 1:
            totals = totals.copy()
            while len(picked) < wanted:
                totals[picked[-1]] = -np.inf
                picked.append(self._best(cycle, totals))
        return [rows.item(at) for at in picked]

    def _best(self, cycle: Cycle, totals: Floats) -> int:
        """The place of the highest total; of several alike, one by chance."""
        if len(totals) <= FEW:
            values = totals.tolist()
            most = max(values)
            best = [at for at, value in enumerate(values) if value == most]
        else:
            best = (totals == totals[totals.argmax()]).nonzero()[0].tolist()  # maximum.reduce costs three times argmax
        return best[int(cycle.random.random() * len(best))] if len(best) > 1 else best[0]
