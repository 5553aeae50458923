"""Runs the engine in the event loop, with one timer for its next event."""

import asyncio
import time
from collections.abc import Callable

from services.simulator.engine import SECOND, Engine, EngineState
from services.simulator.sequence import EngineRequest, RequestOutput


class OutputQueue:
    """The outputs of an API call, which has an engine request for each of its choices."""

    def __init__(self, requests: list[EngineRequest]) -> None:
        self.engine_requests = requests
        self._outputs: dict[str, RequestOutput] = {}
        self._waiter: asyncio.Future[None] | None = None

    async def get(self) -> list[RequestOutput]:
        """Wait for new outputs: the latest one of each request that has any."""
        while not self._outputs:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        outputs, self._outputs = self._outputs, {}
        return list(outputs.values())

    async def ends(self) -> dict[str, RequestOutput]:
        """The last output of every request, by its id."""
        ended: dict[str, RequestOutput] = {}
        while len(ended) < len(self.engine_requests):
            ended.update((progress.id, progress) for progress in await self.get() if progress.finished)
        return ended

    def put(self, progress: RequestOutput) -> None:
        self._outputs[progress.id] = progress
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def __repr__(self) -> str:
        return f"<OutputQueue of {len(self.engine_requests)} requests, {len(self._outputs)} with new outputs>"


class Driver:
    """The engine in real time. `clock` returns nanoseconds."""

    def __init__(self, engine: Engine, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.engine = engine
        self._clock = clock
        self._queues: dict[str, OutputQueue] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due: int | None = None

    def submit(self, requests: list[EngineRequest]) -> OutputQueue:
        """Submit the requests of a call, all or none. Raises the errors of the engine."""
        now = self._clock()
        self._advance(now)
        self.engine.check(requests)
        queue = OutputQueue(requests)
        for request in requests:
            self.engine.submit(request, now)
            self._queues[request.id] = queue
        self._advance(now)
        return queue

    def withdraw(self, queue: OutputQueue) -> None:
        """Cancel what is left of a call, which has ended or whose client has left."""
        now = self._clock()
        for request in queue.engine_requests:
            if self._queues.pop(request.id, None) is not None:
                self.engine.cancel(request.id, now)
        self._advance(now)

    def slow_down(self, factor: float) -> None:
        """Multiply the duration of the engine's steps."""
        now = self._clock()
        self.engine.slow_down(factor, now)
        self._advance(now)

    def state(self) -> EngineState:
        """The engine's gauges now."""
        self._advance(self._clock())
        return self.engine.state()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _advance(self, now: int) -> None:
        for progress in self.engine.advance(now):
            if queue := self._queues.get(progress.id):
                if progress.finished:
                    del self._queues[progress.id]
                queue.put(progress)
        due = self.engine.next_event()
        if due == self._due:
            return
        self._due = due
        self.close()
        if due is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0, due - now) / SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._due = None
        self._advance(self._clock())

    def __repr__(self) -> str:
        return f"<Driver {len(self._queues)} requests, {self.engine!r}>"
