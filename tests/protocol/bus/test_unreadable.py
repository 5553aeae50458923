"""Messages that nats-py can't read, that look like a server's own words, or that can't be written again: each costs
itself, whoever sent or stored it."""

import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.facts import Delete
from shared.bus.publisher import FactPublisher
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect, endpoints, leading, reading, stranger
from tests.waiting import eventually


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


FACTS = f"{POOL}.endpoint.".encode()
CANT_BE_NAMED = {
    "too long": FACTS.ljust(4000, b"x"),
    "refused by the client": b"a\rb",
    "ends in white space": FACTS + b"a\v",
    "no text": FACTS + b"\xff",
    "matches facts": FACTS + b"*",
    "matches all of a pool": f"{POOL}.>".encode(),
    "matches everything": b">",
}


async def messages(bus: Bus) -> int:
    return (await js.extent(bus, "endpoints")).messages


@pytest.mark.parametrize("key", CANT_BE_NAMED.values(), ids=CANT_BE_NAMED)
async def test_a_key_that_no_delete_can_name_is_removed_and_nothing_else(
    server: NatsServer, connect: Connect, key: bytes
) -> None:
    owner = FactPublisher(bus := await connect(), SUBJECTS, "w1", check_interval=0.1)
    async with reading(await connect()) as (_, view), leading(owner), stranger(server) as sender:
        owner.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b"), lambda: owner)
        before = await messages(bus)
        await sender.publish(b"$KV.endpoints." + key, b"junk")
        await eventually(lambda: owner.deleted, lambda: owner)
        assert await messages(bus) == before
        owner.update(endpoints("a", "b", "c"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b", "c"), lambda: owner)
        assert not any(isinstance(event, Delete) for event in view.events)
        assert owner.failures == 0
        assert bus.connections == 1


@pytest.mark.parametrize("key", CANT_BE_NAMED.values(), ids=CANT_BE_NAMED)
async def test_in_a_bucket_that_denies_deletes_such_a_key_hinders_nobody(
    server: NatsServer, connect: Connect, key: bytes
) -> None:
    """As `nats kv add` makes it. What stands for nothing else is purged by its name."""
    bucket = js.Bucket(name="endpoints", storage="file", republish=SUBJECTS.republished(">"), message_ttl=True)
    await js.ensure_bucket(bus := await connect(), bucket)
    async with stranger(server) as sender:
        await sender.publish(b"$KV.endpoints." + key, b"junk")

        async def stored() -> bool:
            return await messages(bus) == 1

        await eventually(stored)
    async with leading(owner := FactPublisher(bus, SUBJECTS, "w1")), reading(await connect()) as (_, view):
        owner.update(endpoints("a"), [POOL])
        await eventually(lambda: view.facts == endpoints("a"), lambda: owner)
        await eventually(lambda: owner.published, lambda: owner)
        if key in (CANT_BE_NAMED["too long"], CANT_BE_NAMED["refused by the client"]):
            await eventually(lambda: owner.deleted == 1, lambda: owner)
        assert owner.failures == 0
