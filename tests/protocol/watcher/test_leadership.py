"""Several watchers, one of them active; NATS killed and wiped."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from services.watcher.app import WatcherService
from tests.nats import NatsServer
from tests.protocol.watcher.harness import WatcherProcess, endpoints_text, eventually, reader, replace, watcher
from tests.stalls import stopwatch

pytestmark = pytest.mark.serial

TAKE_OVER = 3.0
"""Seconds from the death of the active watcher to the first publication of another."""


@asynccontextmanager
async def pair(nats: NatsServer, directory: Path) -> AsyncIterator[tuple[WatcherProcess, WatcherProcess]]:
    """Two processes on the same file: the active one, and the one on standby."""
    flags = f"--endpoints-file={directory / 'endpoints.yaml'}"
    leader = WatcherProcess(nats.url, directory / "first.log", flags, "--id=first")
    standby: WatcherProcess | None = None
    try:
        await leader.ready()
        standby = WatcherProcess(nats.url, directory / "second.log", flags, "--id=second")
        await standby.ready()
        assert (await leader.leads(), await standby.leads()) == (True, False)
        yield leader, standby
    finally:
        leader.close()
        if standby is not None:
            standby.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "endpoints.yaml"
    file.write_text(endpoints_text("a", "b", "c"))
    return file


async def test_a_standby_takes_over_from_a_killed_leader_without_losing_or_resurrecting_endpoints(
    nats: NatsServer, tmp_path: Path, path: Path
) -> None:
    async with reader(nats.url) as seen, pair(nats, tmp_path) as (leader, standby):
        await seen.sees("a", "b", "c")
        events, epoch = len(seen.events), seen.replica.epoch
        leader.kill()
        async with stopwatch() as watch:
            replace(path, endpoints_text("b", "c", "d"))
            await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
            assert watch.seconds <= TAKE_OVER
        await seen.sees("b", "c", "d")
        assert await standby.leads()
        await asyncio.sleep(1.0)
        assert seen.endpoints == ["b", "c", "d"]
        assert seen.deleted(events) <= {"a"}
        assert "a" not in seen.ever_had(events)


async def test_a_stopped_leader_hands_over_at_once(nats: NatsServer, tmp_path: Path, path: Path) -> None:
    """It gives the lease back, so nobody waits for its expiry (2 s)."""
    async with reader(nats.url) as seen, pair(nats, tmp_path) as (leader, standby):
        await seen.sees("a", "b", "c")
        epoch = seen.replica.epoch
        assert await leader.stop() == 0
        assert "lease.released" in (tmp_path / "first.log").read_text()
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch", timeout=TAKE_OVER)
        assert await standby.leads()
        await seen.sees("a", "b", "c")


async def test_a_leader_that_stood_still_does_not_bring_back_what_its_successor_removed(
    nats: NatsServer, tmp_path: Path, path: Path
) -> None:
    async with reader(nats.url) as seen, pair(nats, tmp_path) as (leader, standby):
        await seen.sees("a", "b", "c")
        epoch = seen.replica.epoch
        leader.pause()
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch", timeout=TAKE_OVER + 2.0)
        replace(path, endpoints_text("b"))
        await seen.sees("b")
        events = len(seen.events)
        leader.resume()
        await asyncio.sleep(1.5)
        assert (await leader.leads(), await standby.leads()) == (False, True)
        assert seen.ever_had(events) <= {"b"}
        assert seen.endpoints == ["b"]
        await leader.ready()


@pytest.mark.parametrize("wiped", [False, True], ids=["killed", "wiped"])
async def test_the_facts_are_published_again_when_nats_is_back(nats: NatsServer, path: Path, wiped: bool) -> None:
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(path)) as service:
        await seen.sees("a", "b", "c")
        events = len(seen.events)
        nats.kill()
        await eventually(lambda: not service.readiness.ready, "not ready")
        if wiped:
            nats.wipe()
        replace(path, endpoints_text("b", "c", "d"))
        await eventually(lambda: "default/d" in str(service.state()["endpoints"]), "the change")
        assert seen.endpoints == ["a", "b", "c"]
        await nats.start()
        await seen.sees("b", "c", "d")
        await eventually(lambda: service.readiness.ready, "ready")
        assert "a" not in seen.ever_had(events)


async def test_a_standby_is_not_ready_when_nobody_leads(nats: NatsServer, path: Path) -> None:
    """Its view is old, and it can't take over either: the lease is held by somebody who doesn't publish."""
    async with watcher(nats.url, endpoints_file=str(path), id="active") as active:
        await eventually(lambda: active.readiness.ready, "an active watcher")
        async with watcher(nats.url, endpoints_file=str(path), id="standby") as standby:
            await eventually(lambda: standby.readiness.ready, "a ready standby")
            assert not standby.leadership.leads
            publisher = active.leadership.publisher
            publisher._publish = lambda: asyncio.sleep(60)  # type: ignore[method-assign]
            await eventually(lambda: not standby.readiness.ready, "not ready", timeout=10.0)
            assert "no watcher leads" in standby.readiness.reasons()["published"]


async def test_watchers_stay_ready_while_changes_are_on_their_way_and_while_one_takes_over(
    nats: NatsServer, path: Path
) -> None:
    reasons: set[str] = set()

    async def look(*services: WatcherService) -> None:
        while True:
            reasons.update(reason for one in services for reason in one.readiness.reasons().values())
            await asyncio.sleep(0)

    async with reader(nats.url) as seen, AsyncExitStack() as active:
        leader = await active.enter_async_context(watcher(nats.url, endpoints_file=str(path), id="active"))
        await eventually(lambda: leader.readiness.ready, "an active watcher")
        async with watcher(nats.url, endpoints_file=str(path), id="standby") as standby:
            await eventually(lambda: standby.readiness.ready, "a ready standby")
            looking = asyncio.create_task(look(leader, standby))
            for names in (["b"], ["b", "c"], ["a"]):
                replace(path, endpoints_text(*names))
                await seen.sees(*names)
            await cancelled(looking)
            looking = asyncio.create_task(look(standby))
            await active.aclose()
            replace(path, endpoints_text("a", "d"))
            await seen.sees("a", "d")
            await cancelled(looking)
            assert standby.leadership.leads
    assert reasons == set()


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel it, and have it fail with what it failed with."""
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_nats_that_is_not_there_at_the_start_is_a_reason_not_to_be_ready(nats: NatsServer, path: Path) -> None:
    nats.stop()
    async with watcher(nats.url, endpoints_file=str(path)) as service:
        await eventually(lambda: nats.url in service.readiness.reasons().get("published", ""), "the reason")
        await nats.start()
        await eventually(lambda: service.readiness.ready, "ready")
