"""A real nats-server, an owner of the facts, model servers, and a picker's view that notices what shouldn't be."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.collector.picker import PickerView, Servers
from tests.nats import NatsServer
from tests.protocol.collector.harness import Owner, endpoint
from tests.protocol.conftest import nats, owner

__all__ = ["nats", "owner"]

COUNT = 12


@pytest.fixture
async def servers(owner: Owner) -> AsyncIterator[Servers]:
    async with Servers(COUNT) as made:
        await owner.publish([endpoint(name, server.port) for name, server in made.by_name.items()])
        yield made


@pytest.fixture
async def picker(nats: NatsServer) -> AsyncIterator[PickerView]:
    async with PickerView(nats.url) as made:
        yield made
