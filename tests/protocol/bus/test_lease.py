"""One leader at a time over a real server, whatever happens to it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from shared.bus import jetstream as js
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.lease import Lease
from tests.nats import NatsServer
from tests.protocol.bus.conftest import SUBJECTS, Connect
from tests.waiting import TIMEOUT, eventually

LONG = {"ttl": 600.0, "hold": 500.0}
"""Times of a lease that nothing in a test lets expire."""


@asynccontextmanager
async def candidate(bus: Bus, owner: str, **times: float) -> AsyncIterator[Lease]:
    lease = Lease(bus, SUBJECTS, "watcher", owner, **times)  # type: ignore[arg-type]
    try:
        yield lease
    finally:
        await lease.release()


async def stored(bus: Bus) -> list[js.Stored]:
    return await js.snapshot(bus, "leases", "$KV.leases.>")


async def test_one_of_two_has_it_and_the_other_one_gets_it_when_it_is_given_back(connect: Connect) -> None:
    async with candidate(await connect(), "w1", **LONG) as first, candidate(await connect(), "w2", **LONG) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.6)  # two attempts
        assert (first.held, second.held, first.lost.is_set()) == (True, False, False)
        await first.release()
        assert (first.held, first.lost.is_set()) == (False, True)
        await asyncio.wait_for(waiting, TIMEOUT)
        assert second.held


async def test_a_holder_that_dies_is_followed_when_it_would_have_stopped_and_never_before(connect: Connect) -> None:
    """The server would keep the lease for ten minutes."""
    holder, times = await connect(), {"ttl": 600.0, "hold": 1.5}
    async with candidate(holder, "w1", **times) as first, candidate(await connect(), "w2", **times) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.3)
        await holder.close()
        overlap = False
        while not waiting.done():
            overlap = overlap or (first.held and second.held)
            await asyncio.sleep(0.01)
        assert not overlap
        await eventually(first.lost.is_set)


@pytest.mark.parametrize("junk", [b"", b"junk"])
async def test_a_holder_replaces_what_names_no_holder_and_keeps_the_lease(connect: Connect, junk: bytes) -> None:
    stranger = await connect("stranger")
    async with candidate(await connect(), "w1", **LONG) as first, candidate(await connect(), "w2", **LONG) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        for _ in range(3):
            sequence = await js.put(stranger, SUBJECTS.lease("watcher"), junk, timeout=TIMEOUT)

            async def replaced(before: int = sequence) -> bool:
                return [message.sequence > before for message in await stored(stranger)] == [True]

            await eventually(replaced, lambda: first)
        assert (first.held, first.acquisitions, second.acquisitions) == (True, 1, 0)
        await first.release()
        await asyncio.wait_for(waiting, TIMEOUT)


async def test_what_names_no_holder_keeps_nobody_from_a_lease_that_never_expires(connect: Connect) -> None:
    """As somebody makes it who writes the key again and again."""
    stranger = await connect("stranger")
    async with candidate(await connect(), "w1", ttl=600.0, hold=0.6) as lease:
        await js.ensure_bucket(
            stranger, js.Bucket(name="leases", storage="memory", ttl=600.0, deletable=True), timeout=TIMEOUT
        )
        await js.put(stranger, SUBJECTS.lease("watcher"), b"junk", timeout=TIMEOUT)
        began = time.monotonic()
        await asyncio.wait_for(lease.acquire(), TIMEOUT)
        assert time.monotonic() - began >= 0.6, "a holder may still believe that it holds it"


async def test_a_holder_stops_by_its_own_clock_when_the_server_hangs(server: NatsServer, connect: Connect) -> None:
    async with candidate(await connect(), "w1") as lease:
        await lease.acquire()
        server.pause()
        await asyncio.wait_for(lease.lost.wait(), TIMEOUT)
        server.resume()
        await asyncio.wait_for(lease.acquire(), TIMEOUT)
        assert lease.acquisitions >= 2


async def test_a_holder_that_stood_still_takes_its_own_lease_back_before_it_expires(connect: Connect) -> None:
    async with candidate(await connect(), "w1", ttl=600.0, hold=0.6) as lease:
        await lease.acquire()
        time.sleep(0.7)  # noqa: ASYNC251 - this process stands still
        await asyncio.wait_for(lease.lost.wait(), TIMEOUT)
        await asyncio.wait_for(lease.acquire(), TIMEOUT)
        assert lease.acquisitions >= 2


async def test_one_standby_of_several_follows_a_holder_that_dies(connect: Connect) -> None:
    holder = await connect()
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(candidate(holder, "w1"))
        await first.acquire()
        others = [await stack.enter_async_context(candidate(await connect(), f"w{number}")) for number in range(2, 6)]
        waiting = [asyncio.create_task(other.acquire()) for other in others]
        await asyncio.sleep(0.3)
        await holder.close()
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT)
        await asyncio.sleep(0.6)  # two attempts of the others
        assert sum(other.held for other in others) == 1
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


async def test_a_lease_is_followed_only_by_who_is_to_have_it(connect: Connect) -> None:
    """Who isn't to have it notices the holder's end, too, so that it has the lease at once when it may."""
    holder, may = await connect(), asyncio.Event()
    async with candidate(holder, "w1") as first, candidate(await connect(), "w2", ttl=600.0) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire(may.is_set))
        await asyncio.sleep(0.3)
        await holder.close()
        await eventually(first.lost.is_set)
        await asyncio.sleep(0.5)
        assert not second.held
        may.set()
        await asyncio.wait_for(waiting, TIMEOUT)
        assert second.held


async def test_a_restart_of_the_server_that_takes_less_than_the_lease_does_not_change_the_leader(
    server: NatsServer, connect: Connect
) -> None:
    """The bucket is in memory: it is gone, and the holder makes it again."""
    bus = await connect()
    async with candidate(bus, "w1", **LONG) as lease:
        await lease.acquire()
        server.kill()
        server.wipe()
        await server.start()

        async def renewed() -> bool:
            try:
                return bool(await stored(bus))
            except BusError:
                return False

        await eventually(renewed)
        assert (lease.held, lease.lost.is_set(), lease.acquisitions) == (True, False, 1)


async def test_after_a_wipe_with_a_standby_there_is_still_only_one(server: NatsServer, connect: Connect) -> None:
    async with candidate(await connect(), "w1", **LONG) as first, candidate(await connect(), "w2", **LONG) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.3)
        server.kill()
        server.wipe()
        await server.start()
        bus = await connect()

        async def renewed() -> bool:
            try:
                return sum(message.sequence > 1 for message in await stored(bus)) > 0
            except BusError:
                return False

        await eventually(renewed)
        await eventually(lambda: first.held != second.held, lambda: (first, second))
        waiting.cancel()


async def test_the_bucket_is_as_designed_and_a_lease_that_is_given_back_leaves_no_marker(connect: Connect) -> None:
    bus = await connect()
    async with candidate(bus, "w1") as lease:
        await lease.acquire()
        config = (await js.api(bus, "STREAM.INFO.KV_leases", {})).config
        assert config["max_age"] == 2_000_000_000
        assert "subject_delete_marker_ttl" not in config
        await lease.release()
        assert await stored(bus) == []


async def test_a_lease_may_have_another_time_than_the_one_before(connect: Connect) -> None:
    """JetStream's window for duplicates is no longer than the time to live, and is kept with the bucket."""
    bus = await connect()
    for ttl in (2.0, 0.5, 60.0):
        async with candidate(bus, f"w{ttl}", ttl=ttl, hold=ttl / 2, renew=ttl / 4, attempt=ttl / 8) as lease:
            await asyncio.wait_for(lease.acquire(), TIMEOUT)
