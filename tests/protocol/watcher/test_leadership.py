"""Several watchers, one of them active, with one NATS server or a cluster of them, any one of which may be lost."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from services.watcher import leadership
from services.watcher.app import WatcherService
from shared.bus import Bus, Lease
from shared.bus import jetstream as js
from tests.nats import NatsServer, nats_cluster
from tests.protocol.watcher.harness import by_role, endpoints_text, pair, reader, replace, watcher
from tests.waiting import TIMEOUT, eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "endpoints.yaml"
    file.write_text(endpoints_text("a", "b", "c"))
    return file


async def test_a_leader_that_stood_still_does_not_bring_back_what_its_successor_removed(
    nats: NatsServer, tmp_path: Path, path: Path
) -> None:
    async with reader(nats.url) as seen, pair(nats, tmp_path, path) as (leader, standby):
        await seen.sees("a", "b", "c")
        epoch = seen.replica.epoch
        leader.pause()
        await eventually(lambda: seen.replica.epoch > epoch, "a new epoch")
        replace(path, endpoints_text("b"))
        await seen.sees("b")
        events = len(seen.events)
        leader.resume()
        await leader.ready()
        await by_role(leader, standby)
        assert seen.ever_had(events) <= {"b"}
        assert seen.endpoints == ["b"]


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


async def test_facts_and_lease_are_on_as_many_servers_as_the_setting_says(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    async with nats_cluster(tmp_path / "nats") as servers:
        urls = tuple(server.url for server in servers)
        files: dict[str, Any] = {"endpoints_file": str(path), "nats_url": urls, "nats_replicas": 3}
        async with reader(servers[2].url) as seen, watcher(servers[0].url, **files) as service:
            await seen.sees("a")
            async with Bus([servers[1].url], name="looker") as bus:
                await bus.wait_connected(60.0)
                for bucket in ("endpoints", "leases"):
                    info = await js.api(bus, f"STREAM.INFO.KV_{bucket}", {})
                    assert info.config["num_replicas"] == 3, bucket
            servers[0].kill()
            replace(path, endpoints_text("a", "b"))
            await seen.sees("a", "b")
            await eventually(lambda: service.readiness.ready, "ready again")
