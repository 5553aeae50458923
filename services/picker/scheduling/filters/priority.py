"""`priority-filter`: keeps all endpoints for requests from a priority on, and none for others.

By itself it refuses requests. In a decision tree it is the question whether a request is critical.
"""

from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows

CRITICAL = 1
"""The priority of an InferenceModel's criticality `Critical`."""


class PriorityFilterParameters(Struct, frozen=True, rename="camel"):
    """The lowest priority that passes."""

    min_priority: int = CRITICAL


class PriorityFilter(Filter):
    """`priority ≥ minPriority`."""

    TYPE = "priority-filter"
    BOUNDED = True
    Parameters = PriorityFilterParameters
    parameters: PriorityFilterParameters

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return rows if cycle.priority >= self.parameters.min_priority else rows[:0]
