"""`session-affinity-filter`: keeps the endpoint of the request's session, or all where it has none."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.session import SessionAffinity
from services.picker.state.layout import Rows
from shared.plugin import Role


class SessionAffinityFilter(SessionAffinity, Filter):
    """The session's endpoint if it is a candidate, else all."""

    TYPE = "session-affinity-filter"
    BOUNDED = True
    ROLES = frozenset({Role.FILTER, Role.PRE_REQUEST, Role.RESPONSE_HEADERS})

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        row = self.bound(cycle, rows)
        kept: Rows = rows if row is None else rows[rows == row]
        return kept
