"""`encode-filter`: keeps the endpoints that encode images, audio and video."""

from typing import Any

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import ENCODE, role_is
from services.picker.state.layout import Rows


class EncodeFilter(Filter):
    """By the label `llm-d.ai/role`."""

    TYPE = "encode-filter"
    BOUNDED = True

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._condition = role_is(*ENCODE)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
