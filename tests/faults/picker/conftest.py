"""A real nats-server with little patience for slow readers, an owner of the facts, and pickers."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.faults.picker.pickers import Pickers, names
from tests.nats import NatsServer, nats_server
from tests.protocol.collector.harness import Owner
from tests.protocol.conftest import owner

__all__ = ["owner"]


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats", config="max_pending: 2MB") as server:
        yield server


@pytest.fixture
async def pickers(nats: NatsServer, owner: Owner) -> AsyncIterator[Pickers]:
    """None yet, for a pool of three endpoints."""
    async with AsyncExitStack() as stack:
        made = Pickers(nats, owner, stack)
        await made.publish(names(3))
        yield made
