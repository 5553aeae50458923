"""Small things that asyncio lacks."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
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
