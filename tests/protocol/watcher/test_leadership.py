"""Several watchers, one of them active; NATS killed and wiped."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from services.watcher import leadership
from services.watcher.app import WatcherService
from shared.bus.lease import Lease
from tests.nats import NatsServer
from tests.protocol.watcher.harness import by_role, endpoints_text, pair, reader, replace, watcher
from tests.soak.promises import WATCHER_KILLED, WATCHER_STOPPED, measured
from tests.waiting import TIMEOUT, eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "endpoints.yaml"
    file.write_text(endpoints_text("a", "b", "c"))
    return file


@pytest.mark.soak
@pytest.mark.parametrize("end", ["stopped", "killed", "frozen"])
async def test_a_standby_takes_over_without_losing_or_resurrecting_endpoints(
    nats: NatsServer, tmp_path: Path, path: Path, end: str
) -> None:
    """A leader that stood still doesn't bring back what its successor has removed."""
    async with reader(nats.url) as seen, pair(nats, tmp_path, path) as (leader, standby):
        await seen.sees("a", "b", "c")
        events, epoch = len(seen.events), seen.replica.epoch
        ended = time.monotonic()
        {"stopped": leader.terminate, "killed": leader.kill, "frozen": leader.pause}[end]()
        replace(path, endpoints_text("b", "c", "d"))
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
        measured(WATCHER_STOPPED if end == "stopped" else WATCHER_KILLED, time.monotonic() - ended)
        await seen.sees("b", "c", "d")
        await eventually(standby.leads, "the standby leads")
        if end == "frozen":
            leader.resume()
            await leader.ready()
            await by_role(leader, standby)
        assert seen.endpoints == ["b", "c", "d"]
        assert seen.deleted(events) <= {"a"}
        assert "a" not in seen.ever_had(events)


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
        await eventually(lambda: "default/d" in str(list(service.state()["endpoints"])), "the change")
        assert seen.endpoints == ["a", "b", "c"]
        await nats.start()
        await seen.sees("b", "c", "d")
        await eventually(lambda: service.readiness.ready, "ready")
        assert "a" not in seen.ever_had(events)


class LeaseOfAnother(Lease):
    """One that somebody holds who doesn't publish."""

    async def acquire(self, when: Callable[[], bool] = lambda: True) -> None:
        await asyncio.Event().wait()


async def test_a_standby_is_not_ready_when_nobody_leads(
    nats: NatsServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as active:
        leader = await active.enter_async_context(watcher(nats.url, endpoints_file=str(path), id="active"))
        monkeypatch.setattr(leadership, "Lease", LeaseOfAnother)
        async with watcher(nats.url, endpoints_file=str(path), id="standby") as standby:
            await eventually(lambda: leader.readiness.ready and standby.readiness.ready, "both are ready")
            await active.aclose()
            await eventually(lambda: "no watcher leads" in standby.readiness.reasons().get("published", ""), "a reason")


async def test_watchers_stay_ready_while_changes_are_on_their_way_and_while_one_takes_over(
    nats: NatsServer, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "SILENCE", TIMEOUT)  # the test's own process may stand still
    reasons: set[str] = set()

    async def look(*services: WatcherService) -> None:
        while True:
            reasons.update(reason for service in services for reason in service.readiness.reasons().values())
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
