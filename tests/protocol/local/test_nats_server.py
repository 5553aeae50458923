"""The real nats-server as a process: JetStream, restarts that keep the store, and wipes that don't."""

from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from pointsman.local.nats import NatsServer
from pointsman.local.ports import Ports
from pointsman.local.process import ProcessError


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as held:
        yield held


async def keys(server: NatsServer) -> list[str]:
    client = await nats.connect(server.url)
    try:
        bucket = await client.jetstream().create_key_value(bucket="b")
        await bucket.put(f"run-{server.starts}", b"x")
        return sorted(await bucket.keys())
    finally:
        await client.close()


async def test_the_store_outlives_restarts_and_kills_until_it_is_wiped(tmp_path: Path, ports: Ports) -> None:
    async with NatsServer(tmp_path, ports.take("NATS")) as server:
        assert await keys(server) == ["run-1"]
        await server.restart()
        assert await keys(server) == ["run-1", "run-2"]
        with pytest.raises(ProcessError, match="runs, and its store can't be removed"):
            server.wipe()
        await server.kill()
        server.wipe()
        await server.start()
        assert await keys(server) == ["run-3"]


async def test_a_taken_port_is_reported_with_nats_s_own_words(tmp_path: Path, ports: Ports) -> None:
    port = ports.take("NATS")
    async with NatsServer(tmp_path, port):
        with pytest.raises(ProcessError, match=r"second ended with exit code 1(.|\n)*address already in use"):
            await NatsServer(tmp_path, port, name="second").start()
