"""A real nats-server per test, and buses on it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeAlias

import pytest

from shared.bus import Bus
from tests.nats import NatsServer, nats_server
from tests.waiting import TIMEOUT

Connect: TypeAlias = Callable[..., Awaitable[Bus]]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats") as running:
        yield running


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    """Makes buses that are connected to the server; they are closed at the end, before the server stops."""
    async with AsyncExitStack() as stack:

        async def connected(name: str = "test", **options: float) -> Bus:
            bus = Bus(server.url, name=name, **options)  # type: ignore[arg-type]
            await bus.start(wait=TIMEOUT)
            assert bus.connected, bus.readiness()
            stack.push_async_callback(bus.close)
            return bus

        yield connected


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()
