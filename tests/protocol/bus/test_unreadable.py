"""Messages that nats-py can't read, that look like a server's own words, or that can't be written again: each costs
itself, whoever sent or stored it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus.connection import Bus
from shared.bus.publisher import FactPublisher
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, endpoints, leading, reading
from tests.waiting import eventually


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


@pytest.mark.parametrize(
    ("subject", "headers"),
    [(b"t.\xff", b""), (b"t.a", b"NATS/1.0"), (b"t.a", b"NATS/1.0 \xff\xff\xff\r\n\r\n")],
    ids=["a subject that is no text", "headers without an end", "a status that is no text"],
)
async def test_a_message_that_cant_be_read_costs_itself_and_not_the_connection(
    server: NatsServer, bus: Bus, subject: bytes, headers: bytes
) -> None:
    heard: list[bytes] = []
    await bus.subscribe("t.*", lambda message: heard.append(message.data))
    async with stranger(server) as sender:

        async def spoken() -> bool:
            await sender.publish(b"t.b", b"there")
            return b"there" in heard

        await eventually(spoken)
        for _ in range(3):
            await sender.publish(subject, b"unreadable", headers)
            await sender.publish(b"t.b", b"behind it")
        await eventually(lambda: heard.count(b"behind it") == 3, lambda: heard)
    assert bus.connections == 1
    assert bus.handler_errors == 3


@pytest.mark.parametrize(
    "headers",
    [
        b"NATS/1.0\r\nStatus: 404\r\n\r\n",
        b"NATS/1.0\r\nStatus: 503\r\n\r\n",
        b"NATS/1.0 204 EOB\r\n\r\n",
        b"NATS/1.0\r\nNats-Sequence: x\r\nNats-Subject: y\r\n\r\n",
        b"NATS/1.0\r\nX",
    ],
)
async def test_what_somebody_stored_isnt_taken_for_the_servers_word(
    server: NatsServer, connect: Connect, headers: bytes
) -> None:
    """Owners and readers begin with a snapshot, in which it is."""
    async with leading(first := FactPublisher(await connect(), SUBJECTS, "w1")):
        first.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: first.published, lambda: first)
    async with stranger(server) as sender:
        await sender.publish(f"$KV.endpoints.{POOL}.endpoint.a1".encode(), headers=headers)
        async with reading(await connect()) as (replica, view):
            await eventually(lambda: view.facts == endpoints("a", "b"), lambda: replica)
            async with leading(second := FactPublisher(await connect(), SUBJECTS, "w2")):
                second.update(endpoints("a", "b", "c"), [POOL])
                await eventually(lambda: view.facts == endpoints("a", "b", "c"), lambda: second)


async def test_a_key_whose_delete_is_too_long_a_line_is_removed_all_the_same(
    server: NatsServer, connect: Connect
) -> None:
    owner = FactPublisher(bus := await connect(), SUBJECTS, "w1", check_interval=0.1)
    async with reading(await connect()) as (_, view), leading(owner), stranger(server) as sender:
        owner.update(endpoints("a"), [POOL])
        await eventually(lambda: view.facts == endpoints("a"), lambda: owner)
        subject = f"$KV.endpoints.{POOL}.endpoint.".encode()
        await sender.publish(subject.ljust(4060, b"x"), b"junk")
        await eventually(lambda: owner.repaired, lambda: owner)
        owner.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b"), lambda: owner)
        await eventually(lambda: owner.deleted, lambda: owner)
        assert bus.connections == 1
