"""Heartbeats: a process publishes periodically that it is alive, and counts as gone after some time without one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

INTERVAL = 0.5
"""Seconds between two heartbeats."""
EXPIRY = 1.5
"""Seconds without one after which nobody is there any more: three of them."""


async def beat(
    send: Callable[[], Awaitable[None]], interval: float, clock: Callable[[], float], failed: str, **about: str
) -> NoReturn:
    """Send every `interval` seconds of `clock`, until cancelled. An exception is logged as `failed`."""
    # An absolute schedule: a busy moment doesn't shift the beats that follow.
    due = clock()
    while True:
        try:
            await send()
        except Exception:  # noqa: BLE001 - without beats, the process counts as gone while it works
            structlog.get_logger().exception(failed, **about)
        due = max(due + interval, clock())
        await asyncio.sleep(due - clock())
