"""`edf-ordering-policy`: the request whose time to live ends first leaves first; one without an end leaves last."""

from math import inf

from services.picker.flow_control.interfaces import OrderingPolicy
from services.picker.flow_control.waiting import Waiting


class EdfOrderingPolicy(OrderingPolicy):
    """By the time of queueing plus `ttl`, of which the client's own deadline is the other bound."""

    TYPE = "edf-ordering-policy"

    def key(self, item: Waiting) -> float:
        return item.enqueued_at + item.ttl if item.ttl > 0 else inf
