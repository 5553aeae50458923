"""Members that come, leave and die, over a real server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from shared.bus import Bus, Membership
from tests.nats import NatsServer
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import POOL, SUBJECTS
from tests.waiting import eventually


@asynccontextmanager
async def member(
    bus: Bus,
    id: str | None,
    expiry: float = 600.0,
    changed: Callable[[tuple[str, ...]], None] = lambda _: None,
    **options: Any,
) -> AsyncIterator[Membership]:
    """A member, of which the server knows; by default it takes nobody for dead."""
    membership = Membership(bus, SUBJECTS, POOL, "collector", id, changed, expiry=expiry, **options)
    await membership.start()
    await bus.request("$JS.API.INFO")  # a round trip: the subscription is known to the server
    try:
        yield membership
    finally:
        await membership.close()


async def test_members_see_each_other_and_one_that_stops_cleanly_is_gone_without_an_expiry(connect: Connect) -> None:
    async with member(await connect(), "c1") as first, member(await connect(), None) as onlooker:
        async with member(await connect(), "c2") as second:
            await eventually(lambda: first.ids == second.ids == onlooker.ids == ("c1", "c2"))
        await eventually(lambda: first.ids == onlooker.ids == ("c1",))


async def test_a_member_that_dies_is_gone(connect: Connect) -> None:
    dying = await connect()
    async with member(await connect(), "c1", expiry=0.5) as first, member(dying, "c2"):
        await eventually(lambda: first.ids == ("c1", "c2"))
        await dying.close()
        await eventually(lambda: first.ids == ("c1",))


async def test_while_nats_is_away_nobody_takes_the_others_for_dead(server: NatsServer, connect: Connect) -> None:
    """The clock moves only while there is no connection, so that no delay of the machine makes a member expire."""
    now = 0.0
    buses, changes = [await connect(), await connect()], list[tuple[str, ...]]()
    options: dict[str, Any] = {"expiry": 0.3, "clock": lambda: now}
    async with member(buses[0], "c1", changed=changes.append, **options) as first, member(buses[1], "c2", **options):
        await eventually(lambda: first.ids == ("c1", "c2"))
        server.kill()
        await eventually(lambda: not any(bus.connected for bus in buses), "both have lost the connection")
        now = 10.0
        await asyncio.sleep(0.6)
        await server.start()
        await eventually(lambda: all(bus.connected for bus in buses), "both are connected again")
        await asyncio.sleep(0.6)
        assert changes == [("c1",), ("c1", "c2")]
