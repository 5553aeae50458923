"""`priority-then-time-eviction-order-policy`: the lowest priority goes first, and of that the newest request."""

from services.picker.flow_control.interfaces import EvictionOrderPolicy, Running
from shared.plugin import Stability


class PriorityThenTimeEvictionOrderPolicy(EvictionOrderPolicy):
    """The newest has the least of its KV cache filled, so the least is lost."""

    TYPE = "priority-then-time-eviction-order-policy"
    STABILITY = Stability.ALPHA

    def key(self, running: Running) -> tuple[float, float]:
        return running.priority, -running.dispatched_at
