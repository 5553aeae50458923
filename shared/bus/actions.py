"""Actions: changes that a person requests over the bus from the owner of a pool's facts.

Only watchers with `--allow-actions` listen, and only the one that leads acts: it changes its source, as `pointsman
drain` does, so what was done outlives every process.
"""

from shared.bus.action_messages import ActionResult, Drain
from shared.bus.codec import decode, encode
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects

TIMEOUT = 10.0
"""Seconds for which an action is waited for: the API server of a cluster may be slow."""


async def drain(bus: Bus, subjects: Subjects, pool: str, endpoint: str, *, drain: bool, by: str) -> ActionResult:
    """Let the endpoint of this id drain, or take requests again. `by` says in the watcher's log who wants it.

    Raises NoResponders if no watcher allows it, RequestTimeout if none of those leads, NotConnected, Malformed."""
    asked = encode(Drain(endpoint=endpoint, drain=drain, by=by))
    return decode(ActionResult, (await bus.request(subjects.actions(pool), asked, timeout=TIMEOUT)).data)
