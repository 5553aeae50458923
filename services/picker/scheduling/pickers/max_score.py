"""`max-score-picker`: the best total wins; of equal ones the endpoint with the fewest requests in flight, then chance.

Chance alone puts 15 or more of 100 simultaneous requests on one of ten equal endpoints in six cases of ten. The load in
flight spreads them evenly, also those of several pickers: each spreads its own.
"""

import numpy as np

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, Cycle
from services.picker.scheduling.interfaces import Picker, PickerParameters
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

FEW = 8
"""Up to so many are found one by one; beyond, sorting all is cheaper."""


class MaxScorePicker(Picker):
    """Endpoints by total, highest first."""

    TYPE = "max-score-picker"
    CONSUMES = (Input(IN_FLIGHT_LOAD, optional=True),)
    Parameters = PickerParameters
    parameters: PickerParameters

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        wanted = min(self.parameters.wanted, len(rows))
        if wanted > FEW:
            load = cycle.view.in_flight.expected_requests(rows)
            order = np.lexsort((cycle.random.random(len(rows)), load, -totals))
            return [int(row) for row in rows[order[:wanted]]]
        picked = [self._best(cycle, rows, totals)]
        if wanted > 1:
            totals = totals.copy()
            while len(picked) < wanted:
                totals[picked[-1]] = -np.inf
                picked.append(self._best(cycle, rows, totals))
        return [rows.item(at) for at in picked]

    def _best(self, cycle: Cycle, rows: Rows, totals: Floats) -> int:
        """The place of the highest total."""
        if len(totals) <= FEW:
            values = totals.tolist()
            most = max(values)
            first = values.index(most)
            if values.count(most) == 1:
                return int(first)
        best = (totals == totals[totals.argmax()]).nonzero()[0]  # maximum.reduce costs three times argmax
        if len(best) > 1:
            load = cycle.view.in_flight.expected_requests(rows.take(best))
            best = best[load == load[load.argmin()]]
        place: int = best.item(int(cycle.random.random() * len(best)) if len(best) > 1 else 0)
        return place
