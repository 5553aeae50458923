"""What may happen to a collector: every endpoint's metrics are fresh again within two seconds, and at no time does a
value go back to an older one, or pass for younger than it is."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.collector import assignment
from tests.faults.collector.conftest import COUNT
from tests.faults.collector.picker import PickerView, Servers
from tests.meddler import LATE, Meddler
from tests.nats import NatsServer
from tests.protocol.collector.harness import CollectorProcess, collector
from tests.proxy import Proxy
from tests.soak.promises import (
    COLLECTOR_CUT_OFF,
    COLLECTOR_KILLED,
    COLLECTOR_STOPPED,
    FRAMES_MEDDLED,
    Promise,
    measured,
    soaking,
)
from tests.waiting import eventually

pytestmark = pytest.mark.soak

HOUR = 3600.0
AFTERWARDS = 2.0 if soaking() else 0.5
"""Seconds for which is looked whether what follows a fault brings trouble."""
MEDDLED = 20.0 if soaking() else 3.0
"""Seconds for which messages come as they shouldn't."""

Start = Callable[..., CollectorProcess]


@pytest.fixture
async def start(nats: NatsServer, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts collectors, which are gone at the end."""
    started: list[CollectorProcess] = []

    def starting(id: str, *, url: str = "", clock: float = 0.0) -> CollectorProcess:
        log = tmp_path / f"{id}-{len(started)}.log"
        started.append(CollectorProcess(url or nats.url, id, log, "--interval=100ms", clock=clock))
        return started[-1]

    yield starting
    for process in started:
        process.kill()


async def both_at_work(picker: PickerView, *collectors: CollectorProcess) -> None:
    """Until all are ready, each has a share, and all values are fresh."""
    for process in collectors:
        await process.ready()

    async def divided() -> bool:
        shares = [(await process.state())["endpoints"]["assigned"] for process in collectors]
        return all(shares) and sum(map(len, shares)) == COUNT

    await eventually(divided, "divided", step=0.05)
    await fresh(picker)


async def fresh(picker: PickerView) -> None:
    await eventually(lambda: picker.fresh(COUNT), lambda: f"fresh values: {picker.ages()}")


async def taken_over(picker: PickerView, since: float, promise: Promise) -> None:
    """Values age, and then all are fresh again."""
    await eventually(lambda: not picker.fresh(COUNT), "age")
    await fresh(picker)
    measured(promise, time.monotonic() - since)


def assert_sound(picker: PickerView) -> None:
    assert not picker.went_back, picker.went_back[:5]
    assert not picker.too_young(), picker.too_young()


async def quiet(picker: PickerView, seconds: float = AFTERWARDS) -> None:
    """What follows a fault brings no trouble either."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert_sound(picker)
        await asyncio.sleep(0.02)
    await fresh(picker)


async def test_a_collector_is_killed_and_comes_back_with_another_clock(
    servers: Servers, picker: PickerView, start: Start
) -> None:
    """One is an hour ahead of the picker's clock and one an hour behind; one is killed, and comes back under its name
    with the other's clock."""
    ahead, behind = start("ahead", clock=HOUR), start("behind", clock=-HOUR)
    await both_at_work(picker, ahead, behind)
    await quiet(picker)
    since = time.monotonic()
    ahead.kill()
    await taken_over(picker, since, COLLECTOR_KILLED)
    again = start("ahead", clock=-HOUR)
    await both_at_work(picker, again, behind)
    await quiet(picker)


@pytest.mark.parametrize("fault", ["stopped", "cut off from NATS"])
async def test_a_collector_is_away_for_five_seconds(
    nats: NatsServer, servers: Servers, picker: PickerView, start: Start, fault: str
) -> None:
    """The other one takes over. What the former one says when it goes on, and what was held on its way, is as old as it
    is."""
    async with Proxy(nats.port) as proxy:
        away, other = start("away", url=proxy.url("nats")), start("stays")
        await both_at_work(picker, away, other)
        since = time.monotonic()
        if fault == "stopped":
            away.pause()
        else:
            proxy.hold()
        await taken_over(picker, since, COLLECTOR_STOPPED if fault == "stopped" else COLLECTOR_CUT_OFF)
        await quiet(picker, since + 5.0 - time.monotonic())
        away.resume()
        proxy.release()
        await both_at_work(picker, away, other)
        await quiet(picker)
        away.kill()


async def test_frames_come_twice_late_and_in_another_order(nats: NatsServer, servers: Servers, start: Start) -> None:
    meddler = Meddler()
    async with Proxy(nats.port, answers=meddler) as proxy, PickerView(proxy.url("nats")) as picker:
        await both_at_work(picker, start("one"), start("two"))
        meddler.with_references = True
        await quiet(picker, MEDDLED)
        meddler.with_references = False
        ended = time.monotonic()
        await fresh(picker)
        measured(FRAMES_MEDDLED, time.monotonic() - ended)
        await quiet(picker, LATE + AFTERWARDS)
        assert meddler.late


async def test_the_only_collector_is_stopped_for_five_seconds(
    servers: Servers, picker: PickerView, start: Start
) -> None:
    stopped = start("stopped")
    await both_at_work(picker, stopped)
    stopped.pause()
    await eventually(lambda: min(picker.ages().values()) > 5.0, "age")
    stopped.resume()
    await fresh(picker)
    await quiet(picker)


async def test_two_processes_have_one_name(servers: Servers, picker: PickerView, start: Start) -> None:
    """An operator's mistake, or a pod that lingers: both scrape the same endpoints, and no value suffers from it."""
    one, same = start("one"), start("one")
    await one.ready()
    await same.ready()
    await fresh(picker)
    await quiet(picker)


async def test_a_collector_that_joins_and_dies_moves_only_its_share(
    nats: NatsServer, servers: Servers, picker: PickerView, start: Start
) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(collector(nats.url, id=id)) for id in ("one", "two")]
        await eventually(
            lambda: (
                one.members.ids == two.members.ids == ("one", "two")
                and len(one.scraper.endpoints) + len(two.scraper.endpoints) == COUNT
            ),
            "a division",
        )
        first, second = set(one.scraper.endpoints), set(two.scraper.endpoints)
        share = set(assignment.assigned(dict.fromkeys(first | second), "three", ["one", "two", "three"]))
        assert 0 < len(share) < COUNT

        moved: set[str] = set()
        """Of one of the two, to the other."""

        def scraped(by_one: set[str], by_two: set[str]) -> bool:
            moved.update(set(one.scraper.endpoints) - first, set(two.scraper.endpoints) - second)
            return set(one.scraper.endpoints) == by_one and set(two.scraper.endpoints) == by_two

        joining = start("three")
        await joining.ready()
        await eventually(lambda: scraped(first - share, second - share), "its share")

        async def assigned() -> bool:
            return set((await joining.state())["endpoints"]["assigned"]) == share

        await eventually(assigned, "its share")
        await fresh(picker)
        joining.kill()
        await eventually(lambda: scraped(first, second), "the end of its share")
        assert not moved
        await fresh(picker)
        await quiet(picker)
