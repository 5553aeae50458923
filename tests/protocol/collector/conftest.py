"""A reader of the frames that collectors send."""

from collections.abc import AsyncIterator

import pytest

from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames


@pytest.fixture
async def frames(nats: NatsServer) -> AsyncIterator[Frames]:
    made = Frames(nats.url)
    await made.start()
    yield made
    await made.close()
