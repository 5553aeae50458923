"""Heartbeats: a process publishes periodically that it is alive, and counts as gone after some time without one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

import structlog

from shared.bus.errors import BusError

INTERVAL = 0.5
"""Seconds between two heartbeats."""
EXPIRY = 1.5
"""Seconds without one after which nobody is there any more: three of them."""


async def beat(
    send: Callable[[], Awaitable[None]], interval: float, clock: Callable[[], float], failed: str, **about: str
) -> NoReturn:
    """Send every `interval` seconds of `clock`, until cancelled. An exception of the bus is logged as `failed`."""
    # An absolute schedule: a busy moment doesn't shift the beats that follow.
    due = clock()
    while True:
        try:
            await send()
        except BusError:
            structlog.get_logger().exception(failed, **about)
        due = max(due + interval, clock())
        await asyncio.sleep(due - clock())
