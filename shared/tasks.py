"""Small things that asyncio lacks."""

import asyncio
from typing import Any


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
