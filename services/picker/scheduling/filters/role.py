"""`decode-filter`, `prefill-filter`, `encode-filter`: keep the endpoints of one role in disaggregated serving."""

from typing import Any, ClassVar

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.labels import DECODE, ENCODE, PREFILL, role_is
from services.picker.state.layout import Rows


class RoleFilter(Filter):
    """What the filters share: they judge by the label `llm-d.ai/role`."""

    ALLOWED: ClassVar[tuple[str, ...]]
    """Values of the label with which an endpoint stays."""
    OR_NONE: ClassVar[bool] = False
    """Whether endpoints without the label stay, too."""

    def __init__(self, name: str, parameters: Any = None) -> None:
        super().__init__(name, parameters)
        self._condition = role_is(*self.ALLOWED, or_none=self.OR_NONE)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        return self._condition.keep(cycle.layout, rows)


class DecodeFilter(RoleFilter):
    """Endpoints that generate tokens; those without the label do, too."""

    TYPE = "decode-filter"
    BOUNDED = True
    ALLOWED = DECODE
    OR_NONE = True


class PrefillFilter(RoleFilter):
    """Endpoints that compute prompts for others."""

    TYPE = "prefill-filter"
    BOUNDED = True
    ALLOWED = PREFILL


class EncodeFilter(RoleFilter):
    """Endpoints that encode images, audio and video."""

    TYPE = "encode-filter"
    BOUNDED = True
    ALLOWED = ENCODE
