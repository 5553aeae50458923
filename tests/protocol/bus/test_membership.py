"""Members that come, leave, die and are cut off, over a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus import Bus, Membership
from tests.nats import NatsServer
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import POOL, SUBJECTS, until


@asynccontextmanager
async def member(bus: Bus, id: str | None) -> AsyncIterator[tuple[Membership, list[tuple[str, ...]]]]:
    changes: list[tuple[str, ...]] = []
    membership = Membership(bus, SUBJECTS, POOL, "collector", id, changes.append)
    await membership.start()
    await bus.request("$JS.API.INFO")  # a round trip: the subscription is known to the server
    try:
        yield membership, changes
    finally:
        await membership.close()


async def test_members_see_each_other_and_themselves(connect: Connect) -> None:
    async with (
        member(await connect(), "c1") as (first, changes),
        member(await connect(), "c2") as (second, _),
        member(await connect(), None) as (onlooker, _),
    ):
        assert changes[0] == ("c1",)
        await until(lambda: first.ids == second.ids == onlooker.ids == ("c1", "c2"))
        assert changes[-1] == ("c1", "c2")
        assert repr(second) == "<Membership 'c2' of 'collector', live: c1, c2>"


async def test_a_member_that_stops_cleanly_is_gone_at_once(connect: Connect) -> None:
    async with member(await connect(), "c1") as (first, _):
        async with member(await connect(), "c2"):
            await until(lambda: first.ids == ("c1", "c2"))
        await until(lambda: first.ids == ("c1",), 0.5)


async def test_a_member_that_dies_is_gone_within_two_seconds(connect: Connect) -> None:
    dying = await connect()
    async with member(await connect(), "c1") as (first, changes), member(dying, "c2"):
        await until(lambda: first.ids == ("c1", "c2"))
        await dying.close()
        await until(lambda: first.ids == ("c1",), 2.0)
        assert changes == [("c1",), ("c1", "c2"), ("c1",)]


async def test_while_nats_is_away_nobody_takes_the_others_for_dead(server: NatsServer, connect: Connect) -> None:
    async with member(await connect(), "c1") as (first, changes), member(await connect(), "c2") as (second, _):
        await until(lambda: first.ids == second.ids == ("c1", "c2"))
        server.kill()
        await asyncio.sleep(2.0)
        assert first.ids == second.ids == ("c1", "c2")
        await server.start()
        await asyncio.sleep(2.0)
        assert first.ids == second.ids == ("c1", "c2")
        assert len(changes) == 2


async def test_two_members_with_one_id_hear_of_each_other(connect: Connect) -> None:
    async with (
        member(await connect(), "c1") as (first, changes),
        member(await connect(), "c2") as (other, _),
        member(await connect(), "c1") as (second, _),
    ):
        await until(lambda: first.taken() and second.taken(), 10.0)
        assert first.taken() == "another collector has the id 'c1' too; each needs an --id of its own"
        assert first.namesake.messages >= 3
        assert other.taken() is None
        assert changes[-1] == ("c1", "c2")


async def test_a_heartbeat_that_cannot_be_decoded_is_counted(connect: Connect) -> None:
    bus = await connect()
    async with member(await connect(), "c1") as (first, changes):
        await bus.publish(SUBJECTS.member(POOL, "collector", "bad"), b"garbage")
        await until(lambda: first.malformed.total == 1)
        assert changes == [("c1",)]
