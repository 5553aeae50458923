"""Servers in the test's own event loop, and a client for them."""

from collections.abc import AsyncIterator

import httpx
import pytest

from services.simulator.app import Simulator
from services.simulator.settings import SimulatorSettings

FAST = SimulatorSettings(
    port=0,
    name="under-test",
    models=("base",),
    adapters=("tuned",),
    kv_blocks=2048,
    speed=50,
    output_tokens=10,
    drain_timeout=5,
)
"""A whole model server at fifty times its speed: a prompt token takes 4 µs, an output token 0.3 ms."""


@pytest.fixture
async def server() -> AsyncIterator[Simulator]:
    async with Simulator(FAST) as running:
        yield running


@pytest.fixture
async def client(server: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as each:
        yield each
