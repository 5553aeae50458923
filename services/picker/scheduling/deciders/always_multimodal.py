"""`always-disagg-multimodal-decider`: requests with pictures, sounds or videos have them encoded elsewhere."""

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Decider


class AlwaysDisaggMultimodalDecider(Decider):
    """If the prompt has more than text."""

    TYPE = "always-disagg-multimodal-decider"

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        return cycle.request.content.multimodal
