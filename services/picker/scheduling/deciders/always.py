"""`always-disagg-pd-decider` and `always-disagg-multimodal-decider`: decide alike for all endpoints."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Decider


class AlwaysDisaggPdDecider(Decider):
    """Every request is prefilled elsewhere."""

    TYPE = "always-disagg-pd-decider"

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        return True


class AlwaysDisaggMultimodalDecider(Decider):
    """Requests with pictures, sounds or videos have them encoded elsewhere."""

    TYPE = "always-disagg-multimodal-decider"

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        return cycle.request.content.multimodal
