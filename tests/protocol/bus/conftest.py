"""A real nats-server for each test, buses on it, facts to publish, a reader's view of them, a publisher that runs."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeAlias

import pytest

from shared.bus.connection import Bus
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.publisher import FactPublisher
from shared.bus.replica import Replica
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint, Fact
from tests.nats import NatsServer
from tests.waiting import TIMEOUT

POOL = pool_token("default", "llama")
SUBJECTS = Subjects()


def endpoints(*names: str, port: int = 8000) -> dict[str, Fact]:
    """Facts by key: an endpoint for each name."""
    made = [Endpoint(id=f"default/{name}", name=name, address="10.0.0.1", port=port) for name in names]
    return {fact_key(POOL, endpoint): endpoint for endpoint in made}


def numbered(count: int) -> dict[str, Fact]:
    return endpoints(*(f"vllm-{number}" for number in range(count)))


class View:
    """A consumer of a replica: knows only what the events told it."""

    def __init__(self) -> None:
        self.facts: dict[str, Fact] = {}
        self.events: list[Event] = []
        self.seen: set[str] = set()
        """Every key that was ever in it."""

    def clear(self) -> None:
        """Forget the events, not the facts."""
        self.events.clear()
        self.seen = set(self.facts)

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        match event:
            case Reset(facts):
                self.facts = dict(facts)
            case Upsert(key, fact):
                self.facts[key] = fact
            case Delete(key):
                del self.facts[key]
        self.seen |= self.facts.keys()


@asynccontextmanager
async def reading(bus: Bus, pool: str = POOL, subjects: Subjects = SUBJECTS) -> AsyncIterator[tuple[Replica, View]]:
    view = View()
    replica = Replica(bus, subjects, pool, view)
    await replica.start()
    try:
        yield replica, view
    finally:
        await replica.close()


@asynccontextmanager
async def leading(publisher: FactPublisher) -> AsyncIterator["asyncio.Task[None]"]:
    """Run a publisher; its end doesn't matter to the test unless it looks at the task."""
    task: asyncio.Task[None] = asyncio.create_task(publisher.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


class Stranger:
    """Writes NATS' protocol by hand."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def publish(self, subject: bytes, data: bytes = b"", headers: bytes = b"") -> None:
        if headers:
            self._writer.write(b"HPUB %b %d %d\r\n" % (subject, len(headers), len(headers) + len(data)))
        else:
            self._writer.write(b"PUB %b %d\r\n" % (subject, len(data)))
        self._writer.write(headers + data + b"\r\n")
        await self._writer.drain()


@asynccontextmanager
async def stranger(server: NatsServer) -> AsyncIterator[Stranger]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
    reading = asyncio.create_task(reader.read())  # what the server sends, up to the end
    try:
        yield Stranger(writer)
    finally:
        writer.close()
        await asyncio.wait([reading])


Connect: TypeAlias = Callable[..., Awaitable[Bus]]


@pytest.fixture
def server(nats: NatsServer) -> NatsServer:
    return nats


@pytest.fixture
async def connect(server: NatsServer) -> AsyncIterator[Connect]:
    """Makes buses that are connected to the server; they are closed at the end, before the server stops."""
    async with AsyncExitStack() as stack:

        async def connected(name: str = "test", **options: Any) -> Bus:
            bus = Bus(server.url, name=name, **options)
            await bus.start()
            await bus.wait_connected(TIMEOUT)
            assert bus.connected, bus.readiness()
            stack.push_async_callback(bus.close)
            return bus

        yield connected


@pytest.fixture
async def bus(connect: Connect) -> Bus:
    return await connect()
