"""What may happen to a collector: every endpoint's metrics are fresh again within two seconds, and at no time does a
value go back to an older one, or pass for younger than it is."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from services.collector.assignment import owner as owner_of
from tests.faults.collector.conftest import COUNT
from tests.faults.collector.picker import PickerView, Servers
from tests.faults.collector.proxy import Proxy
from tests.nats import NatsServer
from tests.protocol.collector.harness import CollectorProcess, collector, eventually

pytestmark = pytest.mark.serial

WITHIN = 2.0
"""Seconds from a fault to fresh values of all endpoints, its own duration aside."""
BUSY = 0.5
"""Seconds more that a machine takes which is busy with other tests."""
HOUR = 3600.0

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
    for one in started:
        one.kill()


async def both_at_work(picker: PickerView, *collectors: CollectorProcess) -> None:
    """Until all are ready, each has a share, and all values are fresh."""
    for one in collectors:
        await one.ready()

    async def divided() -> bool:
        shares = [(await one.state())["endpoints"]["assigned"] for one in collectors]
        return all(shares) and sum(map(len, shares)) == COUNT

    until = time.monotonic() + 10
    while not await divided():
        assert time.monotonic() < until, "not divided"
        await asyncio.sleep(0.05)
    await eventually(lambda: picker.fresh(COUNT), "fresh values")


async def fresh_again(picker: PickerView, since: float) -> None:
    """Until all values are fresh, which has to be soon after the fault, or its end."""
    before = time.monotonic() - since
    assert before + await eventually(lambda: picker.fresh(COUNT), "fresh values") <= WITHIN + BUSY


def assert_sound(picker: PickerView) -> None:
    assert not picker.went_back, picker.went_back[:5]
    assert not picker.too_young(), picker.too_young()


async def quiet(picker: PickerView, seconds: float = 1.0) -> None:
    """What follows a fault brings no trouble either."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert_sound(picker)
        await asyncio.sleep(0.02)
    await eventually(lambda: picker.fresh(COUNT), "fresh values")


async def test_a_collector_is_killed(servers: Servers, picker: PickerView, start: Start) -> None:
    killed = start("killed")
    await both_at_work(picker, killed, start("stays"))
    since = time.monotonic()
    killed.kill()
    await eventually(lambda: not picker.fresh(COUNT), "age")
    await fresh_again(picker, since)
    await quiet(picker)


async def test_a_collector_is_stopped_for_five_seconds(servers: Servers, picker: PickerView, start: Start) -> None:
    """The other one takes over. What the stopped one says when it goes on is as old as it is."""
    stopped = start("stopped")
    await both_at_work(picker, stopped, start("stays"))
    since = time.monotonic()
    stopped.pause()
    await eventually(lambda: not picker.fresh(COUNT), "age")
    await fresh_again(picker, since)
    while time.monotonic() < since + 5.0:
        assert_sound(picker)
        await asyncio.sleep(0.02)
    stopped.resume()
    await quiet(picker, WITHIN)


async def test_the_only_collector_is_stopped_for_five_seconds(
    servers: Servers, picker: PickerView, start: Start
) -> None:
    stopped = start("stopped")
    await both_at_work(picker, stopped)
    stopped.pause()
    await asyncio.sleep(5.0)
    assert min(picker.ages().values()) > 4.0
    stopped.resume()
    await fresh_again(picker, time.monotonic())
    await quiet(picker)


async def test_a_collector_is_cut_off_from_nats_and_comes_back(
    nats: NatsServer, servers: Servers, picker: PickerView, start: Start
) -> None:
    """Both scrape its share meanwhile. What was held on its way arrives with the age that it has."""
    async with Proxy(nats.port) as proxy:
        cut = start("cut", url=proxy.url)
        other = start("stays")
        await both_at_work(picker, cut, other)
        since = time.monotonic()
        proxy.stop()
        await eventually(lambda: not picker.fresh(COUNT), "age")
        await fresh_again(picker, since)
        await asyncio.sleep(since + 5.0 - time.monotonic())
        proxy.go_on()
        await quiet(picker)
        await both_at_work(picker, cut, other)
        await quiet(picker)
        cut.kill()


async def test_a_collector_is_started_again_under_its_name(servers: Servers, picker: PickerView, start: Start) -> None:
    former = start("one")
    await both_at_work(picker, former, start("two"))
    former.kill()
    again = start("one")
    await again.ready()
    await fresh_again(picker, time.monotonic())
    await quiet(picker, WITHIN)


async def test_two_processes_have_one_name(servers: Servers, picker: PickerView, start: Start) -> None:
    """An operator's mistake, or a pod that lingers: both scrape the same endpoints, and no value suffers from it."""
    one, same = start("one"), start("one")
    await one.ready()
    await same.ready()
    await eventually(lambda: picker.fresh(COUNT), "fresh values")
    await quiet(picker, WITHIN)


async def test_the_clocks_of_two_collectors_are_two_hours_apart(
    servers: Servers, picker: PickerView, start: Start
) -> None:
    """One is an hour ahead of the picker's clock and one an hour behind; one is killed, and comes back with the other's
    clock."""
    ahead = start("ahead", clock=HOUR)
    await both_at_work(picker, ahead, start("behind", clock=-HOUR))
    await quiet(picker)
    since = time.monotonic()
    ahead.kill()
    await eventually(lambda: not picker.fresh(COUNT), "age")
    await fresh_again(picker, since)
    again = start("ahead", clock=-HOUR)
    await again.ready()
    await quiet(picker, WITHIN)


async def test_a_collector_that_joins_and_dies_moves_only_its_share(
    nats: NatsServer, servers: Servers, picker: PickerView, start: Start
) -> None:
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(collector(nats.url, id=id)) for id in ("one", "two")]
        await eventually(
            lambda: (
                one.members.ids == two.members.ids == ("one", "two")
                and len(one.scraper.watched) + len(two.scraper.watched) == COUNT
            ),
            "a division",
        )
        first, second = set(one.scraper.watched), set(two.scraper.watched)
        share = {id for id in first | second if owner_of(id, ["one", "two", "three"]) == "three"}
        assert 0 < len(share) < COUNT

        def scraped(by_one: set[str], by_two: set[str]) -> bool:
            assert set(one.scraper.watched) <= first, "what was the other one's has moved"
            assert set(two.scraper.watched) <= second, "what was the other one's has moved"
            return set(one.scraper.watched) == by_one and set(two.scraper.watched) == by_two

        joining = start("three")
        await joining.ready()
        await eventually(lambda: scraped(first - share, second - share), "its share", WITHIN)
        until = time.monotonic() + WITHIN
        while set((await joining.state())["endpoints"]["assigned"]) != share:
            assert time.monotonic() < until, "it has another share"
            await asyncio.sleep(0.05)
        await eventually(lambda: picker.fresh(COUNT), "fresh values")
        since = time.monotonic()
        joining.kill()
        await eventually(lambda: scraped(first, second), "the end of its share", WITHIN)
        await fresh_again(picker, since)
        await quiet(picker)
