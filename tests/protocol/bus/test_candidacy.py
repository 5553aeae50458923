"""Candidates for a lease hear of each other over a real server: the fittest leads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shared.bus import Bus
from shared.bus.candidacy import Candidacy, Fitness
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import SUBJECTS
from tests.waiting import eventually


class Standing:
    """A candidate and what it says of itself."""

    def __init__(self, bus: Bus, owner: str, fitness: Fitness) -> None:
        self.fitness = fitness
        self.candidacy = Candidacy(
            bus, SUBJECTS, "watcher", owner, lambda: self.fitness, interval=0.05, expiry=0.3, patience=0.2
        )


@asynccontextmanager
async def standing(bus: Bus, owner: str, *fitness: int) -> AsyncIterator[Standing]:
    one = Standing(bus, owner, fitness)
    await one.candidacy.start()
    try:
        yield one
    finally:
        await one.candidacy.close()


async def test_who_is_outdone_doesnt_try_and_gives_way_when_that_lasts(connect: Connect) -> None:
    async with (
        standing(await connect(), "w1", 1, 1) as first,
        standing(await connect(), "w2", 1, 1) as second,
    ):
        assert first.candidacy.may_lead()
        outdone = asyncio.create_task(first.candidacy.outdone())
        await asyncio.sleep(0.4)
        assert not outdone.done(), "equals don't give way to each other"
        first.fitness = (1, 0)
        async with asyncio.timeout(60):
            assert await outdone == "w2"
        await eventually(lambda: not first.candidacy.may_lead())
        assert second.candidacy.may_lead()
        await second.candidacy.close()
        await eventually(first.candidacy.may_lead)
