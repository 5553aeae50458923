"""Replicated buckets on a cluster of three real servers: any one of them may die."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.publisher import FactPublisher
from tests.nats import NatsServer, nats_cluster
from tests.protocol.bus.conftest import POOL, SUBJECTS, endpoints, leading, numbered, reading
from tests.waiting import TIMEOUT, eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[list[NatsServer]]:
    async with nats_cluster(tmp_path) as servers:
        yield servers


async def connected(stack: AsyncExitStack, servers: list[NatsServer], name: str) -> Bus:
    bus = await stack.enter_async_context(Bus([server.url for server in servers], name=name))
    await bus.wait_connected(TIMEOUT)
    return bus


async def leader_of(bus: Bus, servers: list[NatsServer], bucket: str) -> NatsServer:
    async def found() -> NatsServer | None:
        try:
            info = await bus.request(f"$JS.API.STREAM.INFO.KV_{bucket}", b"{}")
        except BusError:
            return None
        leading = (server for number, server in enumerate(servers) if f'"leader":"n{number}"'.encode() in info.data)
        return next(leading, None)

    leader = await eventually(found, "a leader", step=0.1)
    assert leader is not None
    return leader


async def test_the_leading_server_dies_and_the_view_follows_the_owner_all_the_same(cluster: list[NatsServer]) -> None:
    async with AsyncExitStack() as stack:
        watcher, picker = await connected(stack, cluster, "watcher"), await connected(stack, cluster, "picker")
        publisher = FactPublisher(watcher, SUBJECTS, "w1", replicas=3)
        await stack.enter_async_context(leading(publisher))
        replica, view = await stack.enter_async_context(reading(picker))
        publisher.update(numbered(60), [POOL])
        await eventually(lambda: view.facts == numbered(60), lambda: (publisher, replica))
        assert (await js.api(picker, "STREAM.INFO.KV_endpoints", {})).config["num_replicas"] == 3

        (await leader_of(picker, cluster, "endpoints")).kill()
        changed = numbered(30) | endpoints("newer")
        publisher.update(changed, [POOL])
        await eventually(lambda: view.facts == changed, lambda: (watcher, picker, publisher, replica))
        await eventually(lambda: replica.age() < 0.6, lambda: (publisher, replica))

        fresh = await connected(stack, [server for server in cluster if server.running], "late")
        late, late_view = await stack.enter_async_context(reading(fresh))
        await eventually(lambda: late_view.facts == changed, what=lambda: late)


async def test_a_former_leader_is_refused_on_a_replicated_bucket_too(cluster: list[NatsServer]) -> None:
    async with AsyncExitStack() as stack:
        first = FactPublisher(await connected(stack, cluster, "w1"), SUBJECTS, "w1", replicas=3)
        second = FactPublisher(await connected(stack, cluster, "w2"), SUBJECTS, "w2", replicas=3)
        replica, view = await stack.enter_async_context(reading(await connected(stack, cluster, "picker")))
        former = await stack.enter_async_context(leading(first))
        first.update(numbered(20), [POOL])
        await eventually(lambda: view.facts == numbered(20), lambda: (first, replica))
        await stack.enter_async_context(leading(second))
        second.update(numbered(10), [POOL])
        await eventually(lambda: view.facts == numbered(10), lambda: (second, replica))
        first.update(numbered(20) | endpoints("ghost"), [POOL])
        await asyncio.wait([former], timeout=TIMEOUT)
        assert former.done()
        await asyncio.sleep(0.2)
        assert view.facts == numbered(10)
