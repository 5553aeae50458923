"""Services in the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from shared.service import Service
from shared.service.readiness import Phase

S = TypeVar("S", bound=Service)

STEP = 0.01
"""Seconds between two looks whether a service has started."""


@asynccontextmanager
async def serving(service: S) -> AsyncIterator[S]:
    """The service, started; stopped at the end, and the test fails unless it ends well."""
    life = asyncio.create_task(service.serve())
    while service.readiness.phase is Phase.STARTING and not life.done():
        await asyncio.wait({life}, timeout=STEP)
    if life.done():
        life.result()
    try:
        yield service
    finally:
        service.stop()
        assert await life == 0
