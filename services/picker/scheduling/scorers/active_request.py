"""`active-request-scorer`: the fewer requests the pickers have in flight at an endpoint, the better."""

from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import in_flight_load
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input


class ActiveRequestParameters(Struct, frozen=True, rename="camel"):
    """What counts as idle, and the best score of an endpoint that isn't. Values out of range mean the default."""

    idle_threshold: int = 0
    max_busy_score: float = 1.0
    in_flight_load_producer_name: str = ""
    request_timeout: Any = None
    """Read by older generations; has no effect."""


class ActiveRequestScorer(Scorer):
    """1 for an idle endpoint, else `(cmax − c) / cmax · maxBusyScore`."""

    TYPE = "active-request-scorer"
    Parameters = ActiveRequestParameters
    parameters: ActiveRequestParameters

    @classmethod
    def consumes(cls, parameters: ActiveRequestParameters) -> tuple[Input, ...]:
        return (in_flight_load(parameters.in_flight_load_producer_name),)

    @classmethod
    def deprecations(cls, parameters: ActiveRequestParameters) -> list[str]:
        return [] if parameters.request_timeout is None else ["requestTimeout has no effect; leave it out"]

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        busy = self.parameters.max_busy_score
        if not 0.0 <= busy <= 1.0:
            busy = 1.0
        requests = cycle.view.in_flight.expected_requests(rows)
        cycle.note("InFlightRequests", rows, requests)
        most = requests.max(initial=0.0)
        if not most:
            return np.ones(len(rows))
        scores: Floats = (most - requests) / most * busy
        scores[requests <= max(self.parameters.idle_threshold, 0)] = 1.0
        return scores
