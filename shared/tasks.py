"""Small things that asyncio lacks."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")
Step = Callable[[], bool]
"""Does a part of some work; whether more is left. It doesn't raise."""
TURN = 0.005
"""Seconds that a long piece of work may take in one go, after which others have their turn."""


async def in_turns(
    items: Iterable[T], turn: float = TURN, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[T]:
    """The items. Whenever they and what is done with them have taken `turn` seconds, others run."""
    until = clock() + turn
    for item in items:
        yield item
        if clock() >= until:
            await asyncio.sleep(0)
            until = clock() + turn


async def exhaust(items: Iterable[object]) -> None:
    """Take all of the items, in turns with others."""
    async for _ in in_turns(items):
        pass


class Turns:
    """The work of many streams or connections. Light work, such as the answers to requests that have waited, gets a
    share of each turn; of heavy work a turn does one step, and one piece of it at a time: what a piece is, its owner
    says."""

    def __init__(self, seconds: float = TURN) -> None:
        """`seconds` of a turn are for light work."""
        self._seconds = seconds
        self._light: deque[Step] = deque()
        self._heavy: deque[Step] = deque()
        self._scheduled = False

    def add(self, step: Step, *, heavy: bool = False) -> None:
        """Do this from the next turn on."""
        (self._heavy if heavy else self._light).append(step)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        light, heavy = self._light, self._heavy
        end = perf_counter() + self._seconds
        try:
            for _ in range(len(light)):
                step = light.popleft()
                if step():
                    light.append(step)
                if perf_counter() >= end:
                    break
            if heavy:
                step = heavy.popleft()
                if step():
                    heavy.appendleft(step)
        finally:
            self._scheduled = bool(light or heavy)
            if self._scheduled:
                asyncio.get_running_loop().call_soon(self._run)

    def __repr__(self) -> str:
        return f"<Turns {len(self._light)} light, {len(self._heavy)} heavy>"


SECONDS_AT_ONCE = 0.005
"""Seconds for which connections together do at once what comes, before the others wait for their turn."""
LONG_TURN = 0.001
"""Seconds of a long turn."""


class Pace:
    """What is left of the time in which a group of connections does at once what comes, and the turns in which the rest
    is done. Nobody knows when a round of the event loop begins, so the time isn't a round's: it is renewed in the next
    one after a long turn, or when it has been used up."""

    __slots__ = ("_renewing", "left", "turns")

    def __init__(self) -> None:
        self.left = SECONDS_AT_ONCE
        self._renewing = False
        self.turns = Turns()

    def spend(self, seconds: float) -> bool:
        """Whether that was a long turn, or the last one for now."""
        self.left -= seconds
        if seconds <= LONG_TURN and self.left > 0.0:
            return False
        if not self._renewing:
            self._renewing = True
            asyncio.get_running_loop().call_soon(self._renew)
        return True

    def _renew(self) -> None:
        self._renewing = False
        self.left = SECONDS_AT_ONCE

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.left:.4f} s left>"


async def set_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until the event is set, at most so many seconds (None: for ever). Returns whether it is set."""
    try:
        async with asyncio.timeout(None if seconds is None else max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return False
    return True


async def cancel(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
