"""Time in which this process stood still, for bounds that a busy machine must not break."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

TICK = 0.01


class Stopwatch:
    """Seconds since it began, less those in which this process didn't run though it had something to do."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._stood = 0.0

    async def run(self) -> None:
        """Find out when the process stands still, until cancelled."""
        while True:
            at = time.monotonic()
            await asyncio.sleep(TICK)
            self._stood += max(0.0, time.monotonic() - at - 2 * TICK)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began - self._stood


class Patience:
    """Waiting, step by step, for something that has `seconds` to come about: those in which this process stood still
    don't count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.waited = 0.0

    @property
    def over(self) -> bool:
        return self.waited >= self._seconds

    async def pause(self, step: float) -> None:
        began = time.monotonic()
        await asyncio.sleep(step)
        self.waited += min(time.monotonic() - began, step + 2 * TICK)


@asynccontextmanager
async def stopwatch() -> AsyncIterator[Stopwatch]:
    """One that runs from now on."""
    watch = Stopwatch()
    task = asyncio.create_task(watch.run())
    try:
        yield watch
    finally:
        task.cancel()
        await asyncio.wait({task})
