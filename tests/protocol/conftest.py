"""What several of these folders' tests start from: a real nats-server for each test, an owner of the
facts, and a reader of the frames."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.nats import NatsServer, nats_server
from tests.protocol.collector.harness import Frames, Owner


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def owner(nats: NatsServer) -> AsyncIterator[Owner]:
    made = Owner(nats.url)
    await made.start()
    yield made
    await made.close()


@pytest.fixture
async def frames(nats: NatsServer) -> AsyncIterator[Frames]:
    made = Frames(nats.url)
    await made.start()
    yield made
    await made.close()
