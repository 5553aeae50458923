"""Drives the engine with the event loop's clock: one timer for its next event, however many requests there are."""

import asyncio
import time
from collections.abc import Callable

from services.simulator.engine import SECOND, Engine, EngineState
from services.simulator.sequence import Progress, Work


class Inbox:
    """Where the progress of a call arrives: one request of the engine for each of its choices."""

    def __init__(self, works: list[Work]) -> None:
        self.works = works
        self._news: dict[str, Progress] = {}
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> list[Progress]:
        """How far the requests are, as soon as there is news. Tokens that came together are reported together."""
        while not self._news:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        news, self._news = self._news, {}
        return list(news.values())

    async def ends(self) -> dict[str, Progress]:
        """The last progress of every request, by its id."""
        ended: dict[str, Progress] = {}
        while len(ended) < len(self.works):
            ended.update((progress.id, progress) for progress in await self.next() if progress.finished)
        return ended

    def notify(self, progress: Progress) -> None:
        self._news[progress.id] = progress
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<Inbox of {len(self.works)} requests, {len(self._news)} with news>"


class Driver:
    """The engine in real time. `clock` gives nanoseconds."""

    def __init__(self, engine: Engine, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.engine = engine
        self._clock = clock
        self._inboxes: dict[str, Inbox] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None

    def submit(self, works: list[Work]) -> Inbox:
        """Begin the requests of a call, all of them or, when the engine raises one of its errors, none."""
        now = self._clock()
        self._turn(now)
        self.engine.check(works)
        inbox = Inbox(works)
        for work in works:
            self.engine.submit(work, now)
            self._inboxes[work.id] = inbox
        self._turn(now)
        return inbox

    def withdraw(self, inbox: Inbox) -> None:
        """The call is over, or nobody waits for it any more: what it still holds in the engine is free."""
        now = self._clock()
        for work in inbox.works:
            if self._inboxes.pop(work.id, None) is not None:
                self.engine.cancel(work.id, now)
        self._turn(now)

    def slow_down(self, factor: float) -> None:
        """Multiply the time of the engine's steps."""
        now = self._clock()
        self.engine.slow_down(factor, now)
        self._turn(now)

    def state(self) -> EngineState:
        """The engine's gauges now."""
        self._turn(self._clock())
        return self.engine.state()

    def close(self) -> None:
        """No further events."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _turn(self, now: int) -> None:
        for progress in self.engine.advance(now):
            if inbox := self._inboxes.get(progress.id):
                if progress.finished:
                    del self._inboxes[progress.id]
                inbox.notify(progress)
        due = self.engine.next_event()
        if due == self._due:
            return
        self._due = due
        self.close()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0, due - now) / SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._due = None
        self._turn(self._clock())

    def __repr__(self) -> str:
        return f"<Driver {len(self._inboxes)} requests, {self.engine!r}>"
