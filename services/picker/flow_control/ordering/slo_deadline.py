"""`slo-deadline-ordering-policy`: the request whose first token is due first leaves first.

When it is due is what the client says in `x-llm-d-slo-ttft-ms`, counted from when the request was received. A request
that doesn't say leaves last. Of equal ones, the one that was received first leaves first.
"""

from services.picker.flow_control.interfaces import OrderingPolicy
from services.picker.flow_control.waiting import Waiting


class SloDeadlineOrderingPolicy(OrderingPolicy):
    """By the deadline for the first token, then by the time of receipt."""

    TYPE = "slo-deadline-ordering-policy"
    BY_RECEIPT = True

    def key(self, item: Waiting) -> float:
        return item.slo_deadline
