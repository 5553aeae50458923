"""Lets requests wait for room in the pool: between the request path and the controller of the configuration.

The controller has no clock and starts nothing. This module gives it the time: it calls `run` after every event that can
make room, and when a deadline is due. `wake` requests such a call.
"""

from collections import defaultdict
from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np
from msgspec.structs import replace

from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.eviction.evictor import Evictor
from services.picker.flow_control.eviction.reclamation import PROMPT_GRACE, SCRAPE_GRACE
from services.picker.flow_control.pool_gauge import PoolGauge
from services.picker.flow_control.settings import FlowControlSettings
from services.picker.flow_control.ticket import Gate, Owner, Ticket
from services.picker.flow_control.waiting import (
    DEFAULT_FLOW,
    DISPATCHED,
    Outcome,
    Waiting,
    flow_id,
    slo_deadline,
)
from services.picker.metadata import FAIRNESS_HEADERS, SLO_TTFT_HEADERS
from services.picker.request import Headers, Request, prompt_tokens
from services.picker.scheduling.cycle import OnPluginFailure
from services.picker.scheduling.interfaces import PreAdmissionProcessor, SaturationDetector
from services.picker.state.view import View
from shared.bus.messages import MAX_BANDS, Load, QueueTable
from shared.config.schema import StaleMetrics
from shared.plugin import Plugin

ARRIVAL, RELEASE, FRAME, ENDPOINTS, PEER, DUE = (
    "its arrival",
    "the end of another request",
    "fresh metrics",
    "a change of endpoints",
    "a peer's queue table",
    "time",
)
"""What may let a request go, as explanations say it."""

OnOutcome = Callable[[Waiting, Outcome, float], None]
"""Hears how a wait ends, and when."""


class FlowAdmission:
    """Flow control of one picker, while its configuration has any."""

    def __init__(
        self,
        view: View,
        *,
        id: str,
        clock: Callable[[], float],
        random: np.random.Generator,
        wake: Callable[[float], None] = lambda _: None,
        failed: OnPluginFailure = lambda *_: None,
        on_outcome: OnOutcome = lambda *_: None,
        max_bytes: float = inf,
    ) -> None:
        """`id` is the picker's, by which its peers know it. `wake` has `run` called at that monotonic time. Bodies of
        `max_bytes` may wait, whatever the configuration says."""
        self.controller: FlowController | None = None
        self.evictor: Evictor | None = None
        """None while running requests stay."""
        self.longest_wait = 0.0
        """Seconds after which every wait is over; infinite if it may last, 0 without flow control."""
        self.gauge: PoolGauge
        self.passed: defaultdict[int, int] = defaultdict(int)
        """Requests that needn't wait, by priority. `on_outcome` doesn't hear of them."""
        self._gate: Gate | None = None
        self._view, self._id, self._clock, self._random = view, id, clock, random
        self.wake, self._failed, self._on_outcome = wake, failed, on_outcome
        self._max_bytes = max_bytes
        self._processors: tuple[PreAdmissionProcessor, ...] = ()
        self._evictor: Evictor | None = None
        """The only one that there ever is: it knows what has run since before the last configuration."""
        self._former: list[FlowController] = []
        """Controllers of former configurations that still have requests."""
        self._priorities: frozenset[int] | None = None
        self._cause = DUE
        self._stopping = False

    def configure(
        self, settings: FlowControlSettings | None, detector: SaturationDetector, stale: StaleMetrics
    ) -> None:
        """Use another configuration. Waiting requests are queued again; without settings they stop waiting. Raises what
        the policies raise, and then changes nothing."""
        former, controller, evictor = self.controller, None, None
        if settings is not None:  # policies may raise: nothing has changed until they are at work
            if self._max_bytes < (settings.max_bytes or inf):
                settings = replace(settings, max_bytes=int(self._max_bytes))
            peers = None if former is None else former.peers
            controller = FlowController(settings, self._ended, id=self._id, failed=self._policy_failed, peers=peers)
            if settings.eviction is not None:
                grace = PROMPT_GRACE if detector.PROMPT else stale.after + SCRAPE_GRACE
                policies = settings.eviction.filter, settings.eviction.order, grace
                if self._evictor is None:
                    self._evictor = Evictor(*policies, self._policy_failed)
                else:
                    self._evictor.use(*policies)
                evictor = self._evictor
        self.controller, self.evictor, self._priorities = controller, evictor, None
        self.longest_wait = 0.0 if settings is None else settings.longest_wait
        self._processors = () if settings is None else settings.processors
        self.gauge = PoolGauge(self._view, detector, stale, self._random, self._failed)
        self._gate = None if controller is None else Gate(controller, evictor, self.gauge, self._released)
        self._view.in_flight.on_release = None
        if former is not None and former.requests:
            self._former.append(former)
        if self._former:
            self.wake(0.0)

    # ---- requests --------------------------------------------------------------------------------------------------

    def admit(
        self,
        request: Request,
        priority: int,
        owner: Owner,
        now: float,
        since: float | None = None,
    ) -> Ticket | None:
        """The request's ticket, which says whether it waits; None without flow control, and for one that may not wait
        but would have to. One that needn't wait is charged next, or has to `reserve` its room. `since` is when it began
        to wait, if that was before."""
        gate = self._gate
        if gate is None:
            return None
        controller = gate.controller
        if priority:
            self._ensure_bands(controller)
        headers, tokens, received = request.headers, prompt_tokens(request), request.received_at
        flow = headers.first_of(FAIRNESS_HEADERS) or (self._flow(headers) if self._processors else "")
        ticket = Ticket(
            flow_id(flow) if flow else DEFAULT_FLOW,
            priority,
            received,
            request.body_size,
            tokens,
            since=since,
            owner=owner,
            enqueued_at=now if since is None else since,
            gate=gate,
        )
        if controller.passes(ticket, now, gate.gauge.expect(tokens, now)):
            if since is None:
                ticket.outcome = DISPATCHED
                self.passed[ticket.priority] += 1
            else:
                self._record_outcome(ticket, DISPATCHED, now)
            return ticket
        if not owner.may_wait():
            return None
        if slo := headers.first_of(SLO_TTFT_HEADERS):
            ticket.slo_deadline = slo_deadline(received, slo)
        ticket.deadline = min(owner.wait_deadline(now), received + grpc_timeout(headers.get("grpc-timeout")))
        outcome = controller.enqueue(ticket, now)
        if outcome is None:
            self._view.in_flight.on_release = self._released
            self.notify(ARRIVAL)
        else:
            self._record_outcome(ticket, outcome, now)
        return ticket

    def _ensure_bands(self, controller: FlowController) -> None:
        """Have bands for the priorities that requests may have; band 0 is always there."""
        priorities = self._view.priorities
        if priorities is not self._priorities:
            self._priorities = priorities
            controller.ensure_bands(priorities)

    def _ended(self, ticket: Waiting, outcome: Outcome) -> None:
        """A wait is over."""
        assert isinstance(ticket, Ticket)
        if outcome is Outcome.SHUT_DOWN and not self._stopping:
            ticket.owner.requeue()
            return
        self._record_outcome(ticket, outcome, self._clock())
        ticket.owner.released()

    def _record_outcome(self, ticket: Ticket, outcome: Outcome, now: float) -> None:
        ticket.ends(outcome, now)
        self._on_outcome(ticket, outcome, now)

    # ---- what makes room -------------------------------------------------------------------------------------------

    def notify(self, cause: str) -> None:
        """Something has happened that can make room for a waiting request."""
        controller = self.controller
        if controller is not None and controller.requests:
            self._cause = cause
            self.wake(0.0)

    def maintain(self) -> None:
        """Handle changes without an event: peers that expire, and metrics that become stale. Call it a few times a
        second."""
        if self.controller is not None:
            self._ensure_bands(self.controller)
            self.controller.maintain(self._clock())
            self.notify(DUE)

    def _released(self) -> None:
        """Something has ended: called while requests wait."""
        if self.controller is not None and self.controller.requests:
            self.notify(RELEASE)
        else:
            self._view.in_flight.on_release = None

    def run(self) -> None:
        """Dispatch requests while there is room, and end the waits that are over."""
        now = self._clock()
        self._hand_over(now)
        controller, cause, self._cause = self.controller, self._cause, DUE
        if controller is None or not controller.requests:
            return
        gauge = self.gauge
        was_empty = gauge.empty
        gauge.invalidate()
        pool = gauge.at(now)
        if was_empty and not pool.empty:
            cause = ENDPOINTS
        controller.expire(now, pool.empty)
        controller.dispatch(now, pool, cause)
        wake = min(controller.next_wake(), gauge.settled_at)
        if self.evictor is not None:
            self.evictor.make_room(controller.blocked(), gauge.fullest, now)
            wake = min(wake, self.evictor.next_look())
        if wake < inf:
            self.wake(wake)

    def _hand_over(self, now: float) -> None:
        """Queues some requests of a former configuration anew."""
        if self._former:
            self._former[0].shut_down(now)
            if not self._former[0].requests:
                del self._former[0]
            if self._former:
                self.wake(0.0)

    def stop(self) -> bool:
        """End the waits because the picker stops, some at a time; False when none is left."""
        self._stopping = True
        now = self._clock()
        for controller in self._controllers():
            controller.shut_down(now)
        return self.waiting > 0

    # ---- peers -----------------------------------------------------------------------------------------------------

    def apply(self, load: Load, now: float) -> None:
        """A peer's load has come."""
        controller = self.controller
        if controller is None:
            return
        if load.leaving or load.queue is None:
            controller.forget(load.sender)
        else:
            controller.apply(load.sender, load.run, load.sent, load.queue, now)
        self.notify(PEER)

    def table(self, now: float) -> QueueTable | None:
        """The table for peers; None without flow control."""
        return None if self.controller is None else self.controller.table(now)

    @property
    def changes(self) -> tuple[int, int]:
        """Differs from before if the table for peers has changed."""
        controller = self.controller
        return (0, 0) if controller is None else (id(controller), controller.changes)

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(controller.requests for controller in self._controllers())

    def _controllers(self) -> list[FlowController]:
        """Of all configurations that have requests."""
        return [*self._former, *([] if self.controller is None else [self.controller])]

    def note(self) -> str | None:
        """What `/readyz` mentions: priorities without a band of their own; None when there are none."""
        without = 0 if self.controller is None else self.controller.without_band
        if not without:
            return None
        return f"{without} priorities of objectives share the next lower band: there are more than {MAX_BANDS}"

    def state(self) -> dict[str, Any] | None:
        """What `/debug/state` shows; None without flow control."""
        controller = self.controller
        if controller is None:
            return None
        gauge = self.gauge.at(self._clock())
        return {
            "saturation": gauge.saturation,
            "stages": gauge.stages,
            "pending": gauge.pending,
            "bands": [
                {
                    "priority": band.priority,
                    "requests": band.requests,
                    "bytes": band.bytes,
                    "tokens": band.tokens,
                    "running": band.running,
                    "flows": len(band.flows),
                    "requests_at_peers": controller.peers.waiting.get(band.priority, 0),
                }
                for band in controller.bands()
            ],
        }

    def _flow(self, headers: Headers) -> str:
        """What the first plugin that knows says of the flow; empty if none does."""
        for processor in self._processors:
            try:
                if flow := processor.fairness_id(headers):
                    return str(flow)
            except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and costs only the plugin's part
                self._policy_failed(processor, error)
        return ""

    def _policy_failed(self, policy: Plugin, error: Exception) -> None:
        self._failed(policy.name, error, "")

    def __repr__(self) -> str:
        return f"<FlowAdmission {self.controller!r}>"


_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}


def grpc_timeout(value: str) -> float:
    """Seconds of a `grpc-timeout` header, at most eight digits and a unit; infinite for what is none."""
    digits, unit = value[:-1], _UNITS.get(value[-1:])
    if unit is None or not (digits.isascii() and digits.isdigit() and len(digits) <= 8):
        return inf
    return int(digits) * unit
