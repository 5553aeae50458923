"""A real nats-server for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nats import NatsServer, nats_server


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats") as server:
        yield server
