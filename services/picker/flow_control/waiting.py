"""A request that waits, and how its wait ends."""

from enum import StrEnum
from math import inf
from typing import Any

from msgspec import Struct

from shared.bus.columns import flow_digest

DEFAULT_FLOW = "default-flow"
"""The flow of requests without a fairness id."""
OTHER_FLOWS = "other-flows"
"""The flow that requests share whose own flow would be one too many."""
MAX_ID = 256
"""Characters of a fairness id that are kept; a longer one is cut, and told from others by a digest."""


class Outcome(StrEnum):
    """How a wait ends. The values are those of the Go original's metrics, except EvictedCapacity."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    """The queue was full, and the pool empty."""
    DISPLACED = "EvictedCapacity"
    """The queue is full, and another request has taken its place."""
    EXPIRED = "EvictedTTL"
    EXPIRED_NO_ENDPOINTS = "EvictedNoEndpoints"
    CANCELLED = "EvictedContextCancelled"
    SHUT_DOWN = "EvictedOther"


class State(StrEnum):
    """Where a request is. It only ever moves down this list."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"


# A member through its enum costs eight times as much as a name of the module in Python 3.11.
DISPATCHED = Outcome.DISPATCHED
NEW, QUEUED, RUNNING, DONE = State


class Waiting(Struct, eq=False):
    """A request in a queue. Times are monotonic seconds; the controller sets what comes after `owner`."""

    flow: str
    """Its fairness id, as `flow_id` makes it."""
    priority: int
    """The band it asks for. The controller sets the one it waits in."""
    received_at: float
    bytes: int = 0
    tokens: int = 1
    slo_deadline: float = inf
    """When the first token is due; infinite where the client doesn't say."""
    deadline: float = inf
    """When the client gives up (`grpc-timeout`), or the proxy."""
    since: float | None = None
    """When it began to wait, if it was queued before; else None."""
    owner: Any = None
    """What the caller wants to find here again."""
    state: State = State.NEW
    queued: bool = False
    """Whether the entries of it in queues still stand for it."""
    within: Any = None
    """The flow that counts it."""
    enqueued_at: float = 0.0
    """When its wait began; of one that is refused or needn't wait, when it came."""
    ttl: float = 0.0
    """Seconds it may wait while the pool has endpoints; 0 is for ever."""
    ahead: int = 0
    """Requests that waited in its band when it came."""
    released_by: str = ""
    """The event on which it left the queue, in the caller's words."""

    def __repr__(self) -> str:
        return f"<Waiting {self.flow!r} priority={self.priority} {self.state}>"


def flow_id(header: str) -> str:
    """The id of a flow, from the header's value: never longer than `MAX_ID`, whatever a client sends."""
    if not header:
        return DEFAULT_FLOW
    if len(header) <= MAX_ID:
        return header
    digest = flow_digest(header).hex()
    return f"{header[: MAX_ID - len(digest) - 1]}~{digest}"


def slo_deadline(received_at: float, milliseconds: str) -> float:
    """When the first token is due, from a header with whole milliseconds; infinite for what is no such number."""
    text = milliseconds.strip()
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        return inf
    value = int(digits)
    return received_at + value / 1000 if value <= _MAX_MILLISECONDS else inf


_MAX_MILLISECONDS = (2**63 - 1) // 10**6
"""What the original's nanoseconds hold; beyond it a deadline is as far as none."""
