"""One request's place with flow control, from its arrival to its end, and the answers to those that don't run."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.eviction.evictor import Evictor
from services.picker.flow_control.pool_gauge import PoolGauge
from services.picker.flow_control.waiting import Outcome, Waiting
from services.picker.metadata import (
    EVICTED,
    REJECTED_CANCELLED,
    REJECTED_EXPIRED,
    REJECTED_NO_ENDPOINTS,
    REJECTED_SATURATED,
    REJECTED_SHUTTING_DOWN,
)
from services.picker.request import RETRY_AFTER, Refusal


class Owner(Protocol):
    """Who waits with a request."""

    def released(self) -> None:
        """The wait is over; the ticket says how. One that was dispatched takes room until the ticket is `charged`."""

    def requeue(self) -> None:
        """Another configuration: queue anew."""

    def evict(self) -> None:
        """End the running request."""


class Wait(Struct, frozen=True):
    """What is kept of a request's wait."""

    flow: str
    band: int
    ahead: int
    """Requests that waited in the band when it came."""
    seconds: float
    released_by: str
    """The event on which it left; empty if it didn't wait, or left without a dispatch."""


class Ticket:
    """One request's place with a controller, from its arrival to its end."""

    __slots__ = (
        "_controller",
        "_evictable",
        "_evictor",
        "_finished",
        "_pending",
        "ended_at",
        "item",
        "outcome",
        "owner",
    )

    def __init__(
        self,
        controller: FlowController,
        evictor: Evictor | None,
        item: Waiting,
        owner: Owner,
        finished: Callable[[], None],
    ) -> None:
        """`finished` is called when the request is over, which makes room."""
        self.item = item
        self.owner = owner
        self.outcome: Outcome | None = None
        """None while it waits."""
        self.ended_at = 0.0
        """When its wait ended."""
        self._controller, self._evictor, self._finished = controller, evictor, finished
        self._pending: PoolGauge | None = None
        """That which counts it until its endpoint is charged."""
        self._evictable = ""

    def pend(self, gauge: PoolGauge) -> None:
        """It is dispatched, and no endpoint is charged yet: the gauge counts it."""
        self._pending = gauge
        gauge.pending += 1
        gauge.pending_tokens += self.item.tokens

    def charged(self) -> None:
        """Its endpoint is charged, or it was refused."""
        if self._pending is not None:
            self._pending.pending -= 1
            self._pending.pending_tokens -= self.item.tokens
            self._pending = None

    def runs(self, now: float) -> bool:
        """An endpoint works on it. Whether it may be evicted."""
        if self._evictor is None:
            return False
        self._evictable = self._evictor.track(self.item.priority, now, self.owner.evict)
        return bool(self._evictable)

    def cancel(self, now: float) -> None:
        """Nobody waits for it any longer. Does nothing once it was let go."""
        self._controller.cancel(self.item, now)

    def finished(self, now: float, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """It is over, whatever became of it."""
        self.charged()
        self._controller.finished(self.item, now, prompt_tokens, completion_tokens)
        if self._evictable and self._evictor is not None:
            self._evictor.ended(self._evictable, now)
        self._finished()

    def refusal(self, now: float) -> Refusal | None:
        """The answer to a request whose wait has ended without a dispatch; None while it waits, and when it runs."""
        if self.outcome is None or self.outcome is Outcome.DISPATCHED:
            return None
        refusal = _REFUSALS[self.outcome]
        if self.outcome in _FULL:
            return replace(refusal, retry_after=self._controller.retry_after(now))
        return refusal

    def wait(self) -> Wait:
        """What to keep of it."""
        item = self.item
        return Wait(
            flow=item.flow,
            band=item.priority,
            ahead=item.ahead,
            seconds=max(self.ended_at - item.enqueued_at, 0.0),
            released_by=item.released_by,
        )


def _refusal(status: int, message: str, reason: str, retry_after: int | None = RETRY_AFTER) -> Refusal:
    kind = "rate_limit_exceeded" if status == 429 else "service_unavailable"
    return Refusal(status=status, message=message, kind=kind, reason=reason, retry_after=retry_after)


_REFUSALS = {
    Outcome.REJECTED_CAPACITY: _refusal(
        429, "request rejected pre-queue: queue at capacity; try again later", REJECTED_SATURATED
    ),
    Outcome.REJECTED_NO_ENDPOINTS: _refusal(
        503, "no endpoints available: request rejected pre-queue: no model server is ready", REJECTED_NO_ENDPOINTS
    ),
    Outcome.EXPIRED: _refusal(429, "request timed out in queue: the pool was saturated for too long", REJECTED_EXPIRED),
    Outcome.EXPIRED_NO_ENDPOINTS: _refusal(
        503, "request timed out in queue and no endpoints are available", REJECTED_NO_ENDPOINTS
    ),
    Outcome.CANCELLED: _refusal(503, "client disconnected while the request waited", REJECTED_CANCELLED, None),
    Outcome.SHUT_DOWN: _refusal(503, "flow controller shutting down: this picker stops", REJECTED_SHUTTING_DOWN),
}
_FULL = (Outcome.REJECTED_CAPACITY, Outcome.EXPIRED)
"""Those for which the drain rate says when to try again."""
EVICTION = _refusal(429, "request evicted by flow control: one of a higher priority needs its place", EVICTED)
