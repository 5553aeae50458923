"""What a request waits for before it is scheduled: producers that prepare something, then room in the pool.

However the wait ends, it ends once, and gives back what it holds: memory, the producers' work, the place in the queue.
"""

import asyncio
from collections.abc import Callable
from math import inf
from typing import Protocol

from services.picker.director import Prepared
from services.picker.extproc.conversation import Conversation
from services.picker.extproc.refusals import no_room
from services.picker.flow_control.ticket import Ticket
from services.picker.flow_control.waiting import DISPATCHED, Outcome
from services.picker.request_handler import RequestHandler
from services.picker.responses.usage import Usage
from services.picker.scheduling.checks import refusal_without
from shared.plugin import Role

HANDED_BACK = "this picker stops; another one takes the request"
"""The status message of a stream that a proxy should retry at another picker."""
MARGIN = 0.5
"""Seconds by which a wait ends before the proxy's patience does."""
BYTES = 4
"""Of a prompt for each token that it is estimated at: it has no more tokens than bytes."""
PLAUSIBLE = 4096
"""Tokens that a prompt or a completion may have without that many bytes: pictures behind links, hidden reasoning."""


class Stream(Protocol):
    """The stream of the request."""

    @property
    def wake(self) -> Callable[[], None]:
        """Called when the request needn't wait any longer, or has an answer to send."""

    def evict(self) -> None:
        """End the request while it runs."""


class RequestWait:
    """The wait of one request, and its place with flow control until its end. It knows the stream only while it may
    have to call it, so a request that needn't wait leaves no circle of references."""

    def __init__(self, handler: RequestHandler, conversation: Conversation) -> None:
        self.prepared: Prepared | None = None
        """The request while it waits."""
        self._held: int | None = None
        """Bytes of it that count in the budget, once it has to wait."""
        self.ticket: Ticket | None = None
        """From its admission to its end."""
        self.handed_back = ""
        """Why the proxy is to ask another picker; nothing has been answered."""
        self._handler, self._conversation = handler, conversation
        self._stream: Stream | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._wait_deadline = inf
        """When the wait is to end, because the proxy's does."""
        self._since: float | None = None
        """When it began to wait for room."""

    @property
    def over(self) -> bool:
        """Whether there is a request, and it has waited enough."""
        if self.prepared is None or self._preparing is not None or self.handed_back:
            return False
        return self.ticket is None or self.ticket.outcome is not None

    def begin(self, prepared: Prepared, now: float, stream: Stream) -> bool:
        """Whether the request has to wait. One that has to, but may not, is refused."""
        flow = self._handler.flow
        if prepared.refusal is not None or not (prepared.producers or (flow is not None and flow.controller)):
            return False
        self._stream, self.prepared = stream, prepared
        if not prepared.producers:
            waits = self._queues(prepared, now)
        elif waits := self.may_wait():
            self._preparing = asyncio.ensure_future(_prepare(prepared))
            self._preparing.add_done_callback(self._resume)
        if not waits:
            self._release()
        return waits

    def may_wait(self) -> bool:
        """Whether there is room for what was read of the request's body, which counts as the body does while the
        request waits. Without room, it is refused."""
        if self.prepared is None or self._held is not None:
            return True
        held, budget = self.prepared.request.content.held(), self._handler.budget
        if not budget.has_room(held):
            self.prepared.refusal = no_room(budget.limit)
            return False
        budget.used += held
        self._held = held
        return True

    def take(self) -> Prepared | None:
        """Take the request, to schedule it now."""
        prepared = self.prepared
        self._release()
        return prepared

    def stop(self, now: float, usage: Usage | None = None, received: int = 0) -> None:
        """The request is over, whether it waits, runs or was refused; or the proxy has answered it by itself. Without
        its `usage`, its prompt isn't known to have been computed. So many bytes of a response were `received`: a server
        that reports far more tokens than they have doesn't keep others of the flow waiting for its number."""
        if self._stream is None:
            return
        if self.prepared is not None:
            self._release()
        ticket, self.ticket, self._stream = self.ticket, None, None
        if ticket is None:
            return
        if ticket.outcome is None:
            ticket.cancel(now)
        elif usage is None:
            ticket.finished(now)
        else:
            prompt = ticket.tokens if usage.prompt is None else usage.prompt
            prompt = min(prompt, max(PLAUSIBLE, BYTES * ticket.tokens))
            ticket.finished(now, prompt, min(usage.completion or 0, max(PLAUSIBLE, received)))

    def moved(self) -> None:
        """Another endpoint serves the request than was picked."""
        if self.ticket is not None:
            self.ticket.moved()

    def reserve(self) -> None:
        """The request isn't charged at once: until then, it takes room."""
        if self.ticket is not None and self.ticket.outcome is DISPATCHED:
            self.ticket.reserve()

    def evict(self) -> None:
        """The running request ends for one of a higher priority."""
        if self._stream is not None:
            self._stream.evict()

    def _wake(self) -> None:
        if self._stream is not None:
            self._stream.wake()

    def requeue(self) -> None:
        """Queue the request with the current configuration."""
        prepared, now = self.prepared, self._handler.clock()
        if prepared is None:
            return
        waits = prepared.refusal is None and self._queues(prepared, now)
        self.reserve()
        if not waits or self.handed_back or self._conversation.has_answers:
            self._wake()

    def wait_deadline(self, now: float) -> float:
        """When a wait that begins now has to end, because the proxy gives up."""
        flow, most = self._handler.flow, self._handler.max_message_timeout
        shorter = flow is not None and 0 < most < flow.longest_wait
        if shorter and self._wait_deadline == inf and self._conversation.timed:
            return now + _shortened(most)
        return self._wait_deadline

    def released(self) -> None:
        """The wait for room is over."""
        if self.prepared is None or self.ticket is None:
            return
        self._note_outcome(self.prepared, self.ticket, self._handler.clock())
        self._wake()

    def _queues(self, prepared: Prepared, now: float) -> bool:
        """Whether the request has to wait for room in the pool. One that isn't admitted is refused, or handed back."""
        flow = self._handler.flow
        if flow is None:
            return False
        ticket = flow.admit(prepared.request, prepared.priority, self, now, self._since)
        prepared.ticket = self.ticket = ticket
        if ticket is None or ticket.outcome is DISPATCHED:
            return False
        if ticket.outcome is None:
            self._since = ticket.enqueued_at
            patience = min(self._handler.max_message_timeout, flow.longest_wait)
            if patience and self._wait_deadline == inf and self._conversation.timed:
                self._conversation.wait(patience)
                self._wait_deadline = now + _shortened(patience)
            return True
        self._note_outcome(prepared, ticket, now)
        return self.handed_back != ""

    def _note_outcome(self, prepared: Prepared, ticket: Ticket, now: float) -> None:
        if ticket.outcome is Outcome.SHUT_DOWN and self._conversation.unanswered:
            self.handed_back = HANDED_BACK
        prepared.refusal = ticket.refusal(now)

    def _resume(self, _: object) -> None:
        """The request is prepared."""
        self._preparing = None
        self.requeue()

    def _release(self) -> None:
        if self.prepared is not None:
            self._handler.budget.used -= self._held or 0
            self.prepared = self._held = None
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None


def _shortened(patience: float) -> float:
    """Seconds that a request may wait at a proxy that waits so long."""
    return max(patience - MARGIN, patience / 2)


async def _prepare(prepared: Prepared) -> None:
    """Runs the producers in their order, each within its own budget. One that fails costs only its own products, or has
    the request refused."""
    for producer in prepared.producers:
        error: Exception
        try:
            if (awaited := producer.prepare(prepared.request)) is not None:
                async with asyncio.timeout(producer.BUDGET):
                    prepared.results[producer] = await awaited
            continue
        except TimeoutError:
            error = TimeoutError(f"it wasn't ready within {producer.BUDGET:g} s")
        except Exception as raised:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            error = raised
        prepared.failures.append((producer, error))
        if producer.ON_FAILURE == "refuse":
            prepared.refusal = refusal_without(producer, Role.DATA_PRODUCER)
            return
