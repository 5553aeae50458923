"""A flow: the requests of one fairness id in one band, those that wait and those that run."""

from itertools import islice
from typing import Literal, TypeAlias

from services.picker.flow_control.lazy_heap import LazyHeap
from services.picker.flow_control.waiting import Waiting
from shared.bus.columns import flow_hash

Size: TypeAlias = Literal["requests", "bytes"]
"""What limits bound, by the name of the attribute that counts it."""


class Flow:
    """Counts and queue of a flow."""

    __slots__ = (
        "arrived",
        "bytes",
        "dispatched",
        "finished",
        "hash",
        "id",
        "idle_since",
        "place",
        "queue",
        "requests",
        "served",
        "tokens",
        "weight",
    )

    def __init__(self, id: str, weight: float = 1.0) -> None:
        self.id = id
        self.hash = flow_hash(id)
        self.weight = weight
        self.queue = LazyHeap()
        self.arrived: dict[Waiting, None] = {}
        """Those that wait, in the order in which they were queued."""
        self.requests = 0
        """That wait."""
        self.bytes = self.tokens = 0
        """Of those that wait."""
        self.dispatched = self.finished = 0
        """All that ever were, since the flow was last forgotten."""
        self.served = 0
        """Tokens of all that finished, completion tokens counted twice."""
        self.place = 0.0
        """The round of its next turn, for a round robin."""
        self.idle_since = 0.0

    @property
    def running(self) -> int:
        """Dispatched and not finished."""
        return self.dispatched - self.finished

    @property
    def idle(self) -> bool:
        """Whether nothing of it waits or runs."""
        return not self.requests and self.dispatched == self.finished

    @property
    def newest(self) -> Waiting:
        """The request that was queued last. One must wait."""
        return next(reversed(self.arrived))

    def freed_by_newest(self, what: Size, missing: int, most: int) -> int:
        """What the flow frees by the newest requests that free so much, of at most `most` requests."""
        if what == "requests":
            return min(missing, len(self.arrived), most)
        freed = 0
        for item in islice(reversed(self.arrived), most):
            freed += item.bytes
            if freed >= missing:
                break
        return freed

    def head_since(self) -> float | None:
        """When its first request was queued."""
        head = self.queue.peek()
        return None if head is None else head.enqueued_at

    def __repr__(self) -> str:
        return f"<Flow {self.id!r}: {self.requests} waiting, {self.running} running>"
