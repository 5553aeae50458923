"""`always-disagg-pd-decider`: every request is prefilled elsewhere."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Decider


class AlwaysDisaggPdDecider(Decider):
    """Always."""

    TYPE = "always-disagg-pd-decider"

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        return True
