"""`max-score-picker`: the best total wins; of equal ones the endpoint with the fewest requests in flight, then chance.

Chance alone puts 15 or more of 100 simultaneous requests on one of ten equal endpoints in six cases of ten. The load in
flight spreads them evenly, also those of several pickers: each spreads its own.
"""

from math import inf

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
        count = min(self.parameters.count, len(rows))
        if count > FEW:
            load = cycle.view.in_flight.expected_requests(rows)
            order = np.lexsort((cycle.random.random(len(rows)), load, -totals))
            return [int(row) for row in rows[order[:count]]]
        best = self._best_of_few if len(rows) <= FEW else self._best_of_many
        return [rows.item(at) for at in best(cycle, rows, totals, count)]

    def _best_of_few(self, cycle: Cycle, rows: Rows, totals: Floats, count: int) -> list[int]:
        """The places of the best, one by one: plain Python is faster for a few."""
        values, load = totals.tolist(), None
        picked: list[int] = []
        while len(picked) < count:
            most = max(values)
            best = values.index(most)
            if values.count(most) > 1:
                load = load or cycle.view.in_flight.expected_requests(rows).tolist()
                least = min(requests for requests, value in zip(load, values, strict=True) if value == most)
                equal = [at for at, value in enumerate(values) if value == most and load[at] == least]
                best = equal[int(cycle.random.random() * len(equal))] if len(equal) > 1 else equal[0]
            picked.append(best)
            values[best] = -inf
        return picked

    def _best_of_many(self, cycle: Cycle, rows: Rows, totals: Floats, count: int) -> list[int]:
        """The same with arrays."""
        load: Floats | None = None
        picked: list[int] = []
        totals = totals.copy() if count > 1 else totals
        while True:
            best = (totals == totals[totals.argmax()]).nonzero()[0]  # maximum.reduce costs three times argmax
            if len(best) > 1:
                load = cycle.view.in_flight.expected_requests(rows) if load is None else load
                among = load.take(best)
                best = best[among == among[among.argmin()]]
            picked.append(best.item(int(cycle.random.random() * len(best)) if len(best) > 1 else 0))
            if len(picked) == count:
                return picked
            totals[picked[-1]] = -inf
