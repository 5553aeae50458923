"""Which running requests make room for a higher band, and how many: plain functions of what runs."""

from collections.abc import Callable, Iterable
from math import ceil, isfinite

from services.picker.flow_control.interfaces import EvictionFilterPolicy, Running

MAX_VICTIMS = 2
"""Of one decision: the mean footprint that the count is made with may be wrong."""
MAX_LOOKS = 2000
"""Requests of one decision that are asked whether they take room: a few milliseconds."""
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
    ordered: Iterable[Running],
    most: int,
    below: int,
    accepts: EvictionFilterPolicy,
    takes_room: Callable[[Running], bool],
) -> list[Running] | None:
    """Up to `most` of the running requests, which come in the order in which they go: those that the filter accepts,
    that take room and whose priority is below that of the band which needs it. The first that isn't below ends the
    list. None if `MAX_LOOKS` don't decide it: to be called again without those that take no room."""
    chosen = list[Running]()
    for looks, request in enumerate(filter(accepts.accepts, ordered)):
        if len(chosen) == most:
            break
        if looks == MAX_LOOKS:
            return None
        if takes_room(request):
            if request.priority >= below:
                break
            chosen.append(request)
    return chosen
