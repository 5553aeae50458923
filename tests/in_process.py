"""Services in the test's own process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from services.picker.app import PickerService
from services.picker.settings.picker import PickerSettings
from shared.plugin import Registry
from shared.service.process import Service
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


def picker(url: str, *, plugins: Registry | None = None, **settings: Any) -> PickerService:
    """A picker on free ports of this machine, not yet started."""
    common = {"admin_host": "127.0.0.1", "admin_port": 0, "grpc_host": "127.0.0.1", "grpc_port": 0}
    quick = {"grpc_health_port": 0, "secure_serving": False, "drain_delay": 0.0, "drain_timeout": 1.0}
    return PickerService(PickerSettings(nats_url=(url,), **{**common, **quick, **settings}), plugins)
