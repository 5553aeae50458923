"""Drives the engine with the event loop's clock: one timer for its next event, however many requests there are."""

import asyncio
import time
from collections.abc import Callable

from services.simulator.engine import SECOND, Engine, EngineState
from services.simulator.sequence import Progress, Work


class Ticket:
    """A request's place in the engine: await `next` until it says that the request is finished."""

    __slots__ = ("_latest", "_waiter", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self._latest: Progress | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Progress:
        """How far the request is, as soon as that is news. Tokens that came together are reported together."""
        while self._latest is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        progress, self._latest = self._latest, None
        return progress

    async def end(self) -> Progress:
        """The last progress."""
        while not (progress := await self.next()).finished:
            pass
        return progress

    def notify(self, progress: Progress) -> None:
        self._latest = progress
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Ticket {self.id}, latest {self._latest}>"


class Driver:
    """The engine in real time."""

    def __init__(self, engine: Engine, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.engine = engine
        self._clock = clock
        self._tickets: dict[str, Ticket] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None

    def submit(self, work: Work) -> Ticket:
        """Begin a request. Raises the engine's errors."""
        self.engine.submit(work, self._clock())
        ticket = self._tickets[work.id] = Ticket(work.id)
        self._turn()
        return ticket

    def withdraw(self, ticket: Ticket) -> None:
        """The request is over, or nobody waits for it any more: whatever it still holds in the engine is freed."""
        if self._tickets.pop(ticket.id, None) is not None:
            self.engine.cancel(ticket.id, self._clock())
            self._turn()

    def slow_down(self, factor: float) -> None:
        self.engine.slow_down(factor, self._clock())
        self._turn()

    def state(self) -> EngineState:
        """The engine's gauges now."""
        self._turn()
        return self.engine.state()

    def close(self) -> None:
        """No further events."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self) -> None:
        for progress in self.engine.advance(self._clock()):
            if ticket := self._tickets.get(progress.id):
                ticket.notify(progress)
        due = self.engine.next_event()
        if due == self._due:
            return
        self._due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0, due - self._clock()) / SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._due = None
        self._turn()

    def __repr__(self) -> str:
        return f"<Driver {len(self._tickets)} requests, {self.engine!r}>"
