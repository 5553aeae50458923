"""Which running requests make room for a higher band, and how many: plain functions of what runs."""

from collections.abc import Iterable
from heapq import nsmallest
from math import ceil, isfinite

from services.picker.flow_control.interfaces import EvictionFilterPolicy, EvictionOrderPolicy, Running

MAX_VICTIMS = 2
"""Of one decision: the mean footprint that the count is made with may be wrong."""
_ROUNDING = 1e-9


def count(saturation: float, ceiling: float, in_flight: float, pending: float = 0.0) -> int:
    """Requests to evict so that the saturation falls below the ceiling, if each weighs as much as the mean of those in
    flight. `pending` is the saturation that evictions under way will still release. At least one, unless that
    suffices; at most `MAX_VICTIMS`."""
    if in_flight <= 0 or not (isfinite(saturation) and saturation > 0):
        return 0
    wanted = saturation - ceiling - pending
    if wanted < 0 or (wanted == 0 and pending > 0):
        return 0
    return min(max(1, ceil(wanted / (saturation / in_flight) - _ROUNDING)), MAX_VICTIMS)


def victims(
    running: Iterable[Running], most: int, below: int, accepts: EvictionFilterPolicy, order: EvictionOrderPolicy
) -> list[Running]:
    """Up to `most` of the running requests, in the order in which they go: those that the filter accepts and whose
    priority is below that of the band which needs room. The first that isn't below ends the list."""
    chosen = nsmallest(most, (request for request in running if accepts.accepts(request)), key=order.key)
    for at, request in enumerate(chosen):
        if request.priority >= below:
            return chosen[:at]
    return chosen
