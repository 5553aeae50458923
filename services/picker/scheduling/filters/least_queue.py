"""`least-queue-filter`: keeps the endpoints whose queues are near the shortest."""

from math import floor

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.filters.least import least
from services.picker.scheduling.interfaces import Filter
from services.picker.state.layout import Rows
from shared.attributes import WAITING_QUEUE_SIZE


class LeastQueueFilter(Filter):
    """`q ≤ min + ⌊(max − min) / n⌋`."""

    TYPE = "least-queue-filter"
    BOUNDED = True
    CONSUMES = (WAITING_QUEUE_SIZE,)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return least(cycle, rows, WAITING_QUEUE_SIZE, floor)
