"""`prefill-filter`: keeps the endpoints that compute prompts for others."""

from typing import Any

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import PREFILL, role_is
from services.picker.state.layout import Rows


class PrefillFilter(Filter):
    """By the label `llm-d.ai/role`."""

    TYPE = "prefill-filter"
    BOUNDED = True

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._condition = role_is(*PREFILL)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)
