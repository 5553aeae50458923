"""One leader at a time over a real server, whatever happens to it."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from shared.bus import Bus, Lease
from shared.bus import jetstream as js
from tests.nats import NatsServer
from tests.protocol.bus.conftest import Connect
from tests.protocol.bus.helpers import SUBJECTS, until
from tests.stalls import stopwatch

pytestmark = pytest.mark.serial


@asynccontextmanager
async def candidate(bus: Bus, owner: str, **times: float) -> AsyncIterator[Lease]:
    lease = Lease(bus, SUBJECTS, "watcher", owner, **times)  # type: ignore[arg-type]
    try:
        yield lease
    finally:
        await lease.release()


async def test_one_of_two_has_it_and_keeps_it(connect: Connect) -> None:
    async with candidate(await connect(), "w1") as first, candidate(await connect(), "w2") as second:
        await asyncio.wait_for(first.acquire(), 2.0)
        assert first.held
        waiting = asyncio.create_task(second.acquire())
        for _ in range(60):
            assert first.held
            assert not second.held
            await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not first.lost.is_set()
        waiting.cancel()


async def test_a_lease_that_is_given_back_is_taken_at_once(connect: Connect) -> None:
    long = {"ttl": 60.0, "hold": 50.0}
    async with candidate(await connect(), "w1", **long) as first, candidate(await connect(), "w2", **long) as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.6)
        async with stopwatch() as watch:
            await first.release()
            assert not first.held
            assert first.lost.is_set()
            await asyncio.wait_for(waiting, 10.0)
            assert second.held
            assert watch.seconds < 1.0


async def test_a_holder_that_dies_is_followed_when_the_lease_has_expired_and_never_before(connect: Connect) -> None:
    """Take-over is due within 3 s; the server's two, and the interval of the standby's attempts."""
    loop = asyncio.get_running_loop()
    holder = await connect()
    async with candidate(holder, "w1") as first, candidate(await connect(), "w2") as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.6)
        await holder.close()
        cut = loop.time()
        overlap = False
        while not waiting.done():
            overlap = overlap or (first.held and second.held)
            await asyncio.sleep(0.01)
            assert loop.time() - cut < 3.0
        assert not overlap
        assert not first.held
        assert first.lost.is_set()
        assert loop.time() - cut > 1.0


async def test_a_holder_stops_by_its_own_clock_when_the_server_hangs(server: NatsServer, connect: Connect) -> None:
    async with candidate(await connect(), "w1") as lease:
        await lease.acquire()
        server.pause()
        async with stopwatch() as watch:
            await asyncio.wait_for(lease.lost.wait(), 10.0)
            assert "not held" in repr(lease)
            assert watch.seconds < 1.9
        server.resume()
        await asyncio.wait_for(lease.acquire(), 5.0)
        assert lease.held
        assert lease.acquisitions == 2


async def test_a_holder_that_stood_still_takes_its_own_lease_back_before_it_expires(connect: Connect) -> None:
    async with candidate(await connect(), "w1", ttl=60.0, hold=1.0) as lease:
        await lease.acquire()
        time.sleep(1.1)  # noqa: ASYNC251 - this process stands still
        await asyncio.wait_for(lease.lost.wait(), 5.0)
        await asyncio.wait_for(lease.acquire(), 5.0)
        assert lease.held
        assert lease.acquisitions == 2


async def test_a_short_stall_of_the_server_costs_nobody_the_lease(server: NatsServer, connect: Connect) -> None:
    async with candidate(await connect(), "w1") as lease:
        await lease.acquire()
        for _ in range(3):
            server.pause()
            await asyncio.sleep(0.7)
            server.resume()
            await asyncio.sleep(0.7)
        assert lease.held
        assert not lease.lost.is_set()


async def test_a_restart_of_the_server_that_takes_less_than_the_lease_does_not_change_the_leader(
    server: NatsServer, connect: Connect
) -> None:
    """The bucket is in memory: it is gone, and the holder is the first to make it again or loses it cleanly."""
    async with candidate(await connect(), "w1", ttl=5.0, hold=4.0) as lease:
        await lease.acquire()
        await asyncio.sleep(0.2)
        server.kill()
        server.wipe()
        await server.start()
        await asyncio.sleep(4.5)
        assert lease.held
        assert not lease.lost.is_set()


async def test_after_a_wipe_with_a_standby_there_is_still_only_one(server: NatsServer, connect: Connect) -> None:
    async with candidate(await connect(), "w1") as first, candidate(await connect(), "w2") as second:
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.3)
        server.kill()
        server.wipe()
        await server.start()
        await until(lambda: first.held != second.held, 4.0, lambda: (first, second))
        await asyncio.sleep(2.0)
        assert first.held != second.held, (first, second)
        waiting.cancel()


async def test_the_bucket_is_as_designed(connect: Connect) -> None:
    bus = await connect()
    async with candidate(bus, "w1") as lease:
        await lease.acquire()
        config = (await js.api(bus, "STREAM.INFO.KV_leases", {})).config
        assert config["max_age"] == 2_000_000_000
        assert "subject_delete_marker_ttl" not in config
        (stored,) = await js.snapshot(bus, "leases", "$KV.leases.>")
        assert stored.subject == "$KV.leases.watcher"
        assert repr(lease) == "<Lease 'watcher' of 'w1' held>"
        await lease.release()
        assert await js.snapshot(bus, "leases", "$KV.leases.>") == [], "no marker is left"
