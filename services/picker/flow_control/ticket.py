"""One request's place with flow control, from its arrival to its end, and the answers to those that don't run."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.eviction.evictor import Evictor
from services.picker.flow_control.pool_gauge import PoolGauge
from services.picker.flow_control.waiting import DISPATCHED, Outcome, Waiting
from services.picker.metadata import (
    EVICTED,
    REJECTED_CANCELLED,
    REJECTED_EXPIRED,
    REJECTED_NO_ENDPOINTS,
    REJECTED_SATURATED,
    REJECTED_SHUTTING_DOWN,
)
from services.picker.request import RETRY_AFTER, Refusal
from services.picker.state.inflight import MAX_TOKENS, Charge


class Owner(Protocol):
    """The owner of a waiting request."""

    def may_wait(self) -> bool:
        """Whether the request may wait. One that may not has been refused."""

    def wait_deadline(self, now: float) -> float:
        """When a wait that begins now has to end, because the proxy gives up; infinite if it doesn't."""

    def released(self) -> None:
        """The wait is over; the ticket says how. One that was dispatched takes room until the ticket is `charged`."""

    def requeue(self) -> None:
        """The configuration has changed: queue the request again."""

    def evict(self) -> None:
        """End the running request."""


class Wait(Struct, frozen=True, gc=False):
    """The record of a request's wait."""

    flow: str
    band: int
    ahead: int
    """Requests that waited in the band when it came."""
    seconds: float
    released_by: str
    """The event on which it left; empty if it didn't wait, or left without a dispatch."""


class Gate(Struct, frozen=True):
    """What the tickets of one configuration share."""

    controller: FlowController
    evictor: Evictor | None
    gauge: PoolGauge
    finished: Callable[[], None]
    """Called when a request is over, which makes room for those that wait."""


class Ticket(Waiting, eq=False, kw_only=True):
    """One request's place with a controller, from its arrival to its end. Its owner is an `Owner`."""

    gate: Gate
    outcome: Outcome | None = None
    """None while it waits."""
    ended_at: float = 0.0
    """When its wait ended."""
    pending: bool = False
    """Whether the gauge counts it until its endpoint is charged."""
    evictable: str = ""
    """What the evictor knows it by, if it may be evicted."""

    def ends(self, outcome: Outcome, now: float) -> None:
        """Its wait is over. If it is dispatched, it takes room until its endpoint is charged."""
        self.outcome, self.ended_at = outcome, now
        if outcome is DISPATCHED:
            self.reserve()

    def reserve(self) -> None:
        """The gauge counts it, because other requests may come before its endpoint is charged."""
        if not self.pending:
            self.pending = True
            gauge = self.gate.gauge
            gauge.pending += 1
            gauge.pending_tokens += min(self.tokens, MAX_TOKENS)

    def charged(self) -> None:
        """Its endpoint is charged, or it was refused: the gauge stops counting it."""
        if self.pending:
            self.pending = False
            gauge = self.gate.gauge
            gauge.pending -= 1
            gauge.pending_tokens -= min(self.tokens, MAX_TOKENS)

    def runs(self, evictor: Evictor, charge: Charge, now: float) -> bool:
        """An endpoint serves the request. Returns whether it may be evicted."""
        self.evictable = evictor.track(self.priority, now, charge, self.owner.evict)
        return bool(self.evictable)

    def moved(self) -> None:
        """Another endpoint serves the request."""
        if self.evictable and self.gate.evictor is not None:
            self.gate.evictor.moved()

    def cancel(self, now: float) -> None:
        """The client no longer waits for the request. Does nothing after its dispatch."""
        self.gate.controller.cancel(self, now)

    def finished(self, now: float, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """The request is over, whatever its outcome."""
        gate = self.gate
        if self.pending:
            self.charged()
        controller = gate.controller
        controller.finished(self, now, prompt_tokens, completion_tokens)
        if self.evictable and gate.evictor is not None:
            gate.evictor.ended(self.evictable, now)
        if controller.requests:
            gate.finished()

    def refusal(self, now: float) -> Refusal | None:
        """The answer to a request whose wait has ended without a dispatch; None while it waits, and when it runs."""
        if self.outcome is None or self.outcome is DISPATCHED:
            return None
        refusal = _REFUSALS[self.outcome]
        if self.outcome in _FULL:
            return replace(refusal, retry_after=self.gate.controller.retry_after(now))
        return refusal

    def wait(self) -> Wait:
        """The record of the wait."""
        seconds = self.ended_at - self.enqueued_at
        return Wait(self.flow, self.priority, self.ahead, seconds if seconds > 0.0 else 0.0, self.released_by)


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
    Outcome.DISPLACED: _refusal(
        429, "request displaced from the queue, which is at capacity; try again later", REJECTED_SATURATED
    ),
    Outcome.EXPIRED: _refusal(429, "request timed out in queue: the pool was saturated for too long", REJECTED_EXPIRED),
    Outcome.EXPIRED_NO_ENDPOINTS: _refusal(
        503, "request timed out in queue and no endpoints are available", REJECTED_NO_ENDPOINTS
    ),
    Outcome.CANCELLED: _refusal(503, "client disconnected while the request waited", REJECTED_CANCELLED, None),
    Outcome.SHUT_DOWN: _refusal(503, "flow controller shutting down: this picker stops", REJECTED_SHUTTING_DOWN),
}
_FULL = (Outcome.REJECTED_CAPACITY, Outcome.DISPLACED, Outcome.EXPIRED)
"""Those for which the drain rate says when to try again."""
EVICTION = _refusal(429, "request evicted by flow control: one of a higher priority needs its place", EVICTED)
