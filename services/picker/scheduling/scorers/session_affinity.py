"""`session-affinity-scorer`: prefers the endpoint of the request's session."""

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.session import SessionAffinity
from services.picker.state.layout import Floats, Rows
from shared.plugin import Role


class SessionAffinityScorer(SessionAffinity, Scorer):
    """1 for the session's endpoint, 0 for the others."""

    TYPE = "session-affinity-scorer"
    ROLES = frozenset({Role.SCORER, Role.PRE_REQUEST, Role.RESPONSE_HEADERS})
    BOUNDED = True

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        row = self.bound(cycle, rows)
        return np.zeros(len(rows)) if row is None else (rows == row).astype(np.float64)
