"""Collectors divide the endpoints, and take over from one that is gone; NATS may come and go."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared.attributes import WAITING_QUEUE_SIZE
from tests.nats import NatsServer
from tests.protocol.collector.harness import (
    CollectorProcess,
    Frames,
    OddServer,
    Owner,
    collector,
    endpoint,
    never_expire,
    vllm,
)
from tests.soak.promises import COLLECTOR_TAKEN_OVER, VIEW_RIGHT_AGAIN, measured
from tests.waiting import eventually

COUNT = 12


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, OddServer]]:
    async with AsyncExitStack() as stack:
        yield {f"m{number}": await stack.enter_async_context(OddServer(vllm(number))) for number in range(COUNT)}


@pytest.mark.soak
async def test_the_share_of_a_killed_collector_is_taken_over(
    nats: NatsServer, owner: Owner, frames: Frames, servers: dict[str, OddServer], tmp_path: Path
) -> None:
    killed = CollectorProcess(nats.url, "killed", tmp_path / "killed.log")
    try:
        async with collector(nats.url, id="stays") as stays:
            await owner.publish([endpoint(name, server.port) for name, server in servers.items()])
            await killed.ready()
            await eventually(lambda: "killed" in stays.members.ids, "the other one's heartbeat")
            await eventually(lambda: len({frames.sender(name, WAITING_QUEUE_SIZE) for name in servers}) == 2, "shares")
            await eventually(lambda: 0 < len(stays.scraper.watched) < COUNT, "a share")
            killed.kill()
            killed_at = time.monotonic()
            await eventually(lambda: len(stays.scraper.watched) == COUNT, "the take-over")
            await eventually(lambda: all(frames.age(name, WAITING_QUEUE_SIZE) < 0.5 for name in servers), "freshness")
            measured(COLLECTOR_TAKEN_OVER, time.monotonic() - killed_at)
    finally:
        killed.kill()


async def test_the_share_of_a_stopped_collector_is_taken_over(
    nats: NatsServer, owner: Owner, servers: dict[str, OddServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it leaves: nobody waits until it is missed."""
    never_expire(monkeypatch)
    async with collector(nats.url, id="stays") as stays:
        await owner.publish([endpoint(name, server.port) for name, server in servers.items()])
        async with collector(nats.url, id="leaving") as leaving:
            await eventually(lambda: 0 < len(stays.scraper.watched) < COUNT, "a share")
            await eventually(lambda: len(leaving.scraper.watched) + len(stays.scraper.watched) == COUNT, "the other")
        await eventually(lambda: len(stays.scraper.watched) == COUNT, "the take-over")


@pytest.mark.soak
async def test_while_nats_is_away_scraping_goes_on_and_frames_are_back_with_it(
    nats: NatsServer, owner: Owner, frames: Frames, servers: dict[str, OddServer]
) -> None:
    async with collector(nats.url) as service:
        await owner.publish([endpoint(name, server.port) for name, server in servers.items()])
        await eventually(lambda: all(frames.values(name) for name in servers), "all values")
        nats.kill()
        await eventually(lambda: not service.bus.connected, "the loss")
        seen = {name: len(server.requests) for name, server in servers.items()}
        servers["m3"].behaviour = vllm(33)
        await eventually(
            lambda: all(len(servers[name].requests) >= count + 5 for name, count in seen.items()),
            "scrapes without NATS",
        )
        assert service.readiness.ready
        nats.wipe()
        await nats.start()
        back = time.monotonic()
        await eventually(lambda: frames.value("m3", WAITING_QUEUE_SIZE) == 33.0, "frames again")
        measured(VIEW_RIGHT_AGAIN, time.monotonic() - back)


async def test_without_nats_at_the_start_it_says_that_it_is_not_ready(tmp_path: Path) -> None:
    async with collector("nats://127.0.0.1:1") as service:
        assert not service.readiness.ready
        assert "NATS" in service.readiness.reasons()["endpoints"]
