"""Time that passes only when somebody sleeps."""

import asyncio
from collections.abc import Callable
from random import Random

from services.watcher.kubernetes.backoff import Timing


class FakeTime:
    """A clock that sleeping moves on; `sleeps` has every sleep's length."""

    def __init__(self, seed: int = 1) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []
        self.timing = Timing(clock=self._clock, sleep=self.sleep, random=Random(seed).random)

    def _clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool], turns: int = 10_000) -> None:
    """Let others run until the condition holds; fails after so many turns of the event loop."""
    for _ in range(turns):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("others have run long enough, and what was waited for isn't so")
