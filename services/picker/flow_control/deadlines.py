"""When waits end without a dispatch: the budget of the regime that the pool is in, and the client's own deadline.

A pool with endpoints and an empty one are two regimes, each with its budget of seconds. A budget runs from when the
request was queued or from when the regime began, whichever is later; so the requests' order is that of queueing, and
the first of the queue says when the next budget ends.
"""

from collections import deque
from math import inf

from services.picker.flow_control.lazy_heap import LazyHeap
from services.picker.flow_control.waiting import Waiting

_SMALL = 64


class Deadlines:
    """The requests that wait, by when their wait ends."""

    def __init__(self, ttl: float, no_endpoint_ttl: float, longest: float) -> None:
        """`longest` ends a wait even if the regimes have changed all the time."""
        self.empty = False
        """Whether the pool has no endpoints."""
        self._since = -inf
        self._ttl, self._no_endpoint_ttl = ttl, no_endpoint_ttl
        self._longest = longest
        self._queued: deque[Waiting] = deque()
        self._dead = 0
        self._own = LazyHeap()
        """Those with a deadline of their own."""

    def observe(self, empty: bool, now: float) -> None:
        """Whether the pool has no endpoints at the moment."""
        if empty != self.empty:
            self.empty, self._since = empty, now

    def add(self, item: Waiting) -> None:
        """It is queued. Sets its `ttl`."""
        item.ttl = self._ttl
        if item.deadline < inf:
            left = max(item.deadline - item.enqueued_at, 0.0)
            item.ttl = min(left, self._ttl or inf)
            self._own.push(item.deadline, 0.0, item)
        self._queued.append(item)

    def discard(self, item: Waiting) -> None:
        """It isn't queued any more."""
        if item.deadline < inf:
            self._own.discard()
        queued = self._queued
        self._dead += 1
        if self._dead * 2 > len(queued) > _SMALL or self._dead == len(queued):
            self._queued = deque([item for item in queued if item.queued])
            self._dead = 0

    def due(self, now: float) -> Waiting | None:
        """A request whose wait is over."""
        item = self._own.peek()
        if item is not None and item.deadline <= now:
            return item
        item = self._first()
        return item if item is not None and self._ends(item) <= now else None

    def next(self) -> float:
        """When the next wait is over, as things are; infinite for never."""
        own, item = self._own.first_key(), self._first()
        return min(inf if own is None else own, inf if item is None else self._ends(item))

    def _first(self) -> Waiting | None:
        queued = self._queued
        while queued:
            if queued[0].queued:
                return queued[0]
            queued.popleft()
            self._dead -= 1
        return None

    def _ends(self, item: Waiting) -> float:
        budget = self._no_endpoint_ttl if self.empty else self._ttl
        ends = max(item.enqueued_at, self._since) + budget if budget else inf
        return min(ends, item.enqueued_at + self._longest)

    def __repr__(self) -> str:
        return f"<Deadlines of {len(self._queued) - self._dead} requests, {'empty' if self.empty else 'filled'} pool>"
