"""`low-queue-filter`: keeps the endpoints whose queues are short."""

from typing import Annotated

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.formulas import at_most
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.staleness import split_by_staleness
from services.picker.state.layout import Rows
from shared.attributes import WAITING_QUEUE_SIZE


class LowQueueParameters(Struct, frozen=True, rename="camel"):
    """The longest queue that is short."""

    threshold: Annotated[int, Meta(ge=0)] = 128


class LowQueueFilter(Filter):
    """`q ≤ threshold`."""

    TYPE = "low-queue-filter"
    BOUNDED = True
    CONSUMES = (WAITING_QUEUE_SIZE,)
    Parameters = LowQueueParameters
    parameters: LowQueueParameters

    def __init__(self, name: str, parameters: LowQueueParameters) -> None:
        super().__init__(name, parameters)
        self._short = at_most(parameters.threshold)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        within = cycle.rows_by(WAITING_QUEUE_SIZE, rows, self._short)
        if within is not None:
            return within
        samples = cycle.read(WAITING_QUEUE_SIZE, rows)
        by_value, passes = split_by_staleness(cycle, samples)
        kept: Rows = rows[passes | (by_value & (self._short(samples.values)))]
        return kept
