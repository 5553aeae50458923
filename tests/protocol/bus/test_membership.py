"""Members that come, leave and die, over a real server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus import Bus, Membership
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import POOL, SUBJECTS
from tests.waiting import eventually


@asynccontextmanager
async def member(bus: Bus, id: str | None, expiry: float = 600.0) -> AsyncIterator[Membership]:
    """A member, of which the server knows; by default it takes nobody for dead."""
    membership = Membership(bus, SUBJECTS, POOL, "collector", id, lambda _: None, expiry=expiry)
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
