"""Candidates for a lease, and members, hear of each other over a real server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus import membership
from shared.bus.candidacy import Candidacy, Fitness
from shared.bus.connection import Bus
from shared.bus.errors import NoResponders
from shared.bus.membership import Membership
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, SUBJECTS, Connect
from tests.waiting import TIMEOUT, eventually


class Standing:
    """A candidate and what it says of itself."""

    def __init__(self, bus: Bus, owner: str, fitness: Fitness) -> None:
        self.fitness = fitness
        self.candidacy = Candidacy(
            bus, SUBJECTS, "watcher", owner, lambda: self.fitness, interval=0.05, expiry=0.3, patience=0.2
        )


@asynccontextmanager
async def standing(bus: Bus, owner: str, *fitness: int) -> AsyncIterator[Standing]:
    standing = Standing(bus, owner, fitness)
    await standing.candidacy.start()
    try:
        yield standing
    finally:
        await standing.candidacy.close()


async def test_who_is_outdone_doesnt_try_and_gives_way_when_that_lasts(connect: Connect) -> None:
    async with standing(await connect(), "w1", 1, 1) as first, standing(await connect(), "w2", 1, 1) as second:
        assert first.candidacy.may_lead()
        outdone = asyncio.create_task(first.candidacy.wait_for_preferred())
        await asyncio.sleep(0.4)
        assert not outdone.done(), "equals don't give way to each other"
        first.fitness = (1, 0)
        async with asyncio.timeout(60):
            assert await outdone == "w2"
        await eventually(lambda: not first.candidacy.may_lead())
        assert second.candidacy.may_lead()
        await second.candidacy.close()
        await eventually(first.candidacy.may_lead)


async def test_who_is_fit_for_nothing_listens_before_it_tries(server: NatsServer, connect: Connect) -> None:
    async with standing(await connect(), "w1", 0, 0) as unfit:
        await eventually(unfit.candidacy.may_lead)
        server.kill()
        await eventually(lambda: not unfit.candidacy.may_lead())
        await server.start()
        await eventually(unfit.candidacy.may_lead)


async def test_while_nats_is_away_nobody_takes_the_others_for_dead(server: NatsServer, connect: Connect) -> None:
    """The clock moves only while there is no connection, so that no delay of the machine makes a member expire."""
    now = 0.0
    buses, changes = [await connect(), await connect()], list[tuple[str, ...]]()
    first, second = (
        Membership(bus, SUBJECTS, POOL, "collector", id, changed, expiry=0.3, clock=lambda: now)
        for bus, id, changed in zip(buses, ("c1", "c2"), (changes.append, lambda _: None), strict=True)
    )
    for standing in (first, second):
        await standing.start()
    await eventually(lambda: first.ids == ("c1", "c2"))
    server.kill()
    await eventually(lambda: not any(bus.connected for bus in buses), "both have lost the connection")
    now = 10.0
    await asyncio.sleep(0.6)
    await server.start()
    await eventually(lambda: all(bus.connected for bus in buses), "both are connected again")
    await asyncio.sleep(0.6)
    assert changes == [("c1",), ("c1", "c2")]
    await second.close()
    await eventually(lambda: first.ids == ("c1",), "who leaves says so: the clock stands still")
    await first.close()


async def test_who_comes_hears_from_the_others_before_their_next_heartbeat(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take their share until then. Here, each sends only its first heartbeat."""
    monkeypatch.setattr(membership, "INTERVAL", 1e6)
    buses = [await connect() for _ in range(3)]
    observer, first, second = (
        Membership(bus, SUBJECTS, POOL, "collector", id, lambda _: None)
        for bus, id in zip(buses, (None, "c1", "c2"), strict=True)
    )
    await observer.start()
    with pytest.raises(NoResponders):  # the server has the subscription
        await buses[0].request("nobody", b"", timeout=TIMEOUT)
    await first.start()
    await eventually(lambda: observer.ids == ("c1",), "the first one's heartbeat is over")
    await second.start()
    await eventually(lambda: second.ids == ("c1", "c2"))
    for standing in (second, first, observer):
        await standing.close()


async def test_members_that_leave_one_right_after_the_other(connect: Connect) -> None:
    """The clock stands still: nobody's expiry makes up for a change that was overlooked."""
    buses, changes = [await connect() for _ in range(3)], list[tuple[str, ...]]()
    leaving: list[asyncio.Task[None]] = []

    def changed(ids: tuple[str, ...]) -> None:
        changes.append(ids)
        if changes[-2:] == [("c1", "c2", "c3"), ("c1", "c3")]:
            leaving.append(asyncio.create_task(third.close()))

    first, second, third = (
        Membership(bus, SUBJECTS, POOL, "collector", id, on_change, clock=lambda: 0.0)
        for bus, id, on_change in zip(buses, ("c1", "c2", "c3"), (changed, lambda _: None, lambda _: None), strict=True)
    )
    for standing in (first, second, third):
        await standing.start()
    await eventually(lambda: changes[-1] == ("c1", "c2", "c3"))
    await second.close()
    await eventually(lambda: changes[-2:] == [("c1", "c3"), ("c1",)], lambda: changes)
    await asyncio.gather(*leaving)
    await first.close()
