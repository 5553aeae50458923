"""`decode-filter`: keeps the endpoints that generate tokens."""

from typing import Any

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import DECODE, role_is
from services.picker.state.layout import Rows


class DecodeFilter(Filter):
    """By the label `llm-d.ai/role`; those without it generate, too."""

    TYPE = "decode-filter"
    BOUNDED = True

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._condition = role_is(*DECODE, or_none=True)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
