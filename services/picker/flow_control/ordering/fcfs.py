"""`fcfs-ordering-policy`: the request that was queued first leaves first."""

from services.picker.flow_control.interfaces import OrderingPolicy
from services.picker.flow_control.waiting import Waiting


class FcfsOrderingPolicy(OrderingPolicy):
    """By the time of queueing."""

    TYPE = "fcfs-ordering-policy"

    def key(self, item: Waiting) -> float:
        return item.enqueued_at
