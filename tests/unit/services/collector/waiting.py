"""Waiting for what other tasks do."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], within: float = 10.0) -> None:
    """Let other tasks work until the condition holds. Raises TimeoutError when it never does."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.001)
