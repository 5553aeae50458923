"""A JetStream store that is full: what the owner does, and what readers see, until there is room again."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.errors import JetStreamError, NoRoom
from shared.bus.facts import EPOCH_HEADER
from shared.bus.frame_bucket import FrameBucket
from shared.bus.lease import Lease
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import fact_key
from shared.model import Endpoint, Fact
from tests.nats import NatsServer, nats_server
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, leading, reading, stranger
from tests.waiting import TIMEOUT, eventually


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Room for about 140 of the facts below."""
    async with nats_server(tmp_path / "nats", jetstream="max_file_store: 200KB, max_memory_store: 40MB") as running:
        yield running


def facts(count: int) -> dict[str, Fact]:
    """Endpoints of about a kilobyte each."""
    names = [f"vllm-{number}" for number in range(count)]
    made = [
        Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=8000, labels={"a": "x" * 1000})
        for name in names
    ]
    return {fact_key(POOL, endpoint): endpoint for endpoint in made}


def made(bus: Bus, owner: str = "w1") -> FactPublisher:
    return FactPublisher(bus, SUBJECTS, owner, synced_interval=0.05)


async def test_what_is_removed_makes_room_for_what_comes(connect: Connect) -> None:
    publisher = made(await connect("watcher"))
    async with leading(publisher), reading(await connect("picker")) as (_, view):
        publisher.update(facts(100), [POOL])
        await eventually(lambda: view.facts == facts(100), lambda: publisher)
        publisher.update(facts(300), [POOL])
        await eventually(lambda: "JetStream has no room" in (publisher.readiness() or ""), lambda: publisher)
        assert "facts wait to be written: default_llama.endpoint." in (publisher.readiness() or "")
        assert view.facts.keys() >= facts(100).keys()
        publisher.update(facts(120), [POOL])
        await eventually(lambda: view.facts == facts(120), lambda: publisher)
        await eventually(lambda: publisher.readiness() is None, lambda: publisher)


async def test_an_owner_that_finds_the_store_full_recovers(connect: Connect) -> None:
    first = made(await connect("watcher"))
    async with leading(first):
        first.update(facts(300), [POOL])
        await eventually(lambda: "JetStream has no room" in (first.readiness() or ""), lambda: first)
    second = made(await connect("another watcher"), "w2")
    async with leading(second), reading(await connect("picker")) as (_, view):
        second.update(facts(10), [POOL])
        await eventually(lambda: view.facts == facts(10), lambda: second)
        await eventually(lambda: second.readiness() is None, lambda: second)


@pytest.mark.parametrize(
    ("end", "headers"),
    [
        (b"", b""),
        (b"\xff", b""),
        (b"", b"NATS/1.0\r\nKV-Operation: PURGE\r\n%b: 1\r\n\r\n" % EPOCH_HEADER.encode()),
    ],
    ids=["text", "no text", "markers of deletes"],
)
async def test_an_owner_whose_store_is_full_of_what_others_wrote_recovers(
    server: NatsServer, connect: Connect, end: bytes, headers: bytes
) -> None:
    publisher = made(bus := await connect("watcher"))
    async with leading(publisher):
        publisher.update(facts(1), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)

        async def full() -> bool:
            async with stranger(server) as sender:
                for number in range(100):
                    await sender.publish(b"$KV.endpoints.junk%d%bx" % (number, end), b"x" * 2000, headers)
            return "JetStream has no room" in (publisher.readiness() or "")

        await eventually(full, lambda: publisher)
        publisher.update(facts(20), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)

        async def alone() -> bool:
            return (await js.extent(bus, "endpoints")).messages == 22

        await eventually(alone, "what others wrote is gone")


async def test_frames_that_fill_their_bucket_leave_room_for_the_lease(connect: Connect) -> None:
    bucket = FrameBucket(watcher := await connect("watcher"), SUBJECTS, ttl=10 * TIMEOUT)
    collector = await connect("collector")

    async def there() -> bool:
        try:
            await js.extent(collector, "attributes")
        except JetStreamError:
            return False
        return True

    async def fill() -> None:
        for number in range(60):
            await js.put(collector, SUBJECTS.frame(POOL, "c1", number), b"x" * 1_000_000, timeout=TIMEOUT)

    await bucket.start()
    try:
        await eventually(there, lambda: bucket)
        with pytest.raises(NoRoom):
            await fill()
        lease = Lease(watcher, SUBJECTS, "watcher", "w1")
        async with asyncio.timeout(TIMEOUT):
            await lease.acquire()
        await lease.release()
    finally:
        await bucket.close()


async def test_writes_that_nobody_acknowledges_are_told_from_a_server_that_is_gone(connect: Connect) -> None:
    """As after a failed write to the disk, which a nats-server remembers until it is restarted."""
    publisher = made(bus := await connect("watcher"))
    async with leading(publisher), reading(await connect("picker")) as (_, view):
        publisher.update(facts(1), [POOL])
        await eventually(lambda: publisher.published, lambda: publisher)

        async def acknowledge(yes: bool) -> None:
            known = json.loads((await bus.request("$JS.API.STREAM.INFO.KV_endpoints", b"", timeout=TIMEOUT)).data)
            config = json.dumps({**known["config"], "no_ack": not yes}).encode()
            answer = await bus.request("$JS.API.STREAM.UPDATE.KV_endpoints", config, timeout=TIMEOUT)
            assert "error" not in json.loads(answer.data), answer.data

        await acknowledge(False)
        publisher.update(facts(2), [POOL])
        await eventually(lambda: "restart that server" in (publisher.readiness() or ""), lambda: publisher)
        await acknowledge(True)
        publisher.update(facts(3), [POOL])
        await eventually(lambda: view.facts == facts(3), lambda: publisher)
