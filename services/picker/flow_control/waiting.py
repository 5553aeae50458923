"""A request that waits, and how its wait ends."""

from enum import StrEnum
from math import inf
from typing import Any

from shared.bus.columns import flow_digest

DEFAULT_FLOW = "default-flow"
"""The flow of requests without a fairness id."""
OTHER_FLOWS = "other-flows"
"""The flow that requests share whose own flow would be one too many."""
LONGEST_ID = 256
"""Characters of a fairness id that are kept; a longer one is cut, and told from others by a digest."""


class Outcome(StrEnum):
    """How a wait ends. The values are those of the Go original's metrics."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    """The queue was full."""
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    """The queue was full, and the pool empty."""
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


class Waiting:
    """A request in a queue. Times are monotonic seconds; the controller sets what isn't an argument."""

    __slots__ = (
        "ahead",
        "bytes",
        "deadline",
        "dispatched_at",
        "enqueued_at",
        "flow",
        "owner",
        "priority",
        "queued",
        "received_at",
        "released_by",
        "since",
        "slo_deadline",
        "state",
        "tokens",
        "ttl",
        "within",
    )

    def __init__(
        self,
        flow: str,
        priority: int,
        received_at: float,
        bytes: int = 0,
        tokens: int = 1,
        slo_deadline: float = inf,
        deadline: float = inf,
        since: float | None = None,
        owner: Any = None,
    ) -> None:
        self.flow = flow
        """Its fairness id, as `flow_id` makes it."""
        self.priority = priority
        """The band it asks for. The controller sets the one it waits in."""
        self.bytes = bytes
        self.tokens = tokens
        self.received_at = received_at
        self.slo_deadline = slo_deadline
        """When the first token is due; infinite where the client doesn't say."""
        self.deadline = deadline
        """When the client gives up (`grpc-timeout`), or the proxy."""
        self.since = since
        """When it began to wait, if it was queued before; else None."""
        self.owner = owner
        """What the caller wants to find here again."""
        self.state = NEW
        self.queued = False
        """Whether the entries of it in queues still stand for it."""
        self.within: Any = None
        """The flow that counts it."""
        self.enqueued_at = received_at
        self.ttl = 0.0
        """Seconds it may wait while the pool has endpoints; 0 is for ever."""
        self.ahead = 0
        """Requests that waited in its band when it came."""
        self.dispatched_at = 0.0
        self.released_by = ""
        """The event on which it left the queue, in the caller's words."""

    def __repr__(self) -> str:
        return f"<Waiting {self.flow!r} priority={self.priority} {self.state}>"


def flow_id(header: str) -> str:
    """The id of a flow, from the header's value: never longer than `LONGEST_ID`, whatever a client sends."""
    if not header:
        return DEFAULT_FLOW
    if len(header) <= LONGEST_ID:
        return header
    digest = flow_digest(header).hex()
    return f"{header[: LONGEST_ID - len(digest) - 1]}~{digest}"


def slo_deadline(received_at: float, milliseconds: str) -> float:
    """When the first token is due, from a header with whole milliseconds; infinite for what is no such number."""
    text = milliseconds.strip()
    digits = text.removeprefix("+")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        return inf
    value = int(digits)
    return received_at + value / 1000 if value <= _MOST_MILLISECONDS else inf


_MOST_MILLISECONDS = (2**63 - 1) // 10**6
"""What the original's nanoseconds hold; beyond it a deadline is as far as none."""
