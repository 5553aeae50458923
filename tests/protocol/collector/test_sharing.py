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
    eventually,
    vllm,
)

pytestmark = pytest.mark.serial

COUNT = 12


@pytest.fixture
async def servers() -> AsyncIterator[dict[str, OddServer]]:
    async with AsyncExitStack() as stack:
        yield {f"m{number}": await stack.enter_async_context(OddServer(vllm(number))) for number in range(COUNT)}


def spans(servers: dict[str, OddServer], since: float) -> dict[str, int]:
    """Requests to each server since a moment."""
    return {name: sum(at >= since for at in server.requests) for name, server in servers.items()}


async def test_every_endpoint_is_scraped_once_an_interval_by_one_of_two_collectors(
    nats: NatsServer, owner: Owner, frames: Frames, servers: dict[str, OddServer]
) -> None:
    async with collector(nats.url, id="one", interval=0.1) as one, collector(nats.url, id="two", interval=0.1) as two:
        await owner.publish([endpoint(name, server.port) for name, server in servers.items()])
        await eventually(
            lambda: (
                len(one.scraper.watched) + len(two.scraper.watched) == COUNT
                and one.members.ids == two.members.ids == ("one", "two")
            ),
            "a division",
        )
        assert not set(one.scraper.watched) & set(two.scraper.watched)
        await eventually(lambda: all(frames.values(name) for name in servers), "all values")
        began = time.monotonic()
        await eventually(lambda: time.monotonic() - began > 2.0, "two seconds")
        lasted = time.monotonic() - began
        for count in spans(servers, began).values():
            assert count <= lasted / 0.1 + 2
            assert count >= 5
        assert all(frames.value(name, WAITING_QUEUE_SIZE) == number for number, name in enumerate(servers))


async def test_the_share_of_a_killed_collector_is_taken_over_within_two_seconds(
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
            took = await eventually(lambda: len(stays.scraper.watched) == COUNT, "the take-over")
            assert took <= 2.0
            await eventually(lambda: all(frames.age(name, WAITING_QUEUE_SIZE) < 0.5 for name in servers), "freshness")
    finally:
        killed.kill()


async def test_the_share_of_a_stopped_collector_is_taken_over_at_once(
    nats: NatsServer, owner: Owner, frames: Frames, servers: dict[str, OddServer], tmp_path: Path
) -> None:
    leaving = CollectorProcess(nats.url, "leaving", tmp_path / "leaving.log")
    try:
        async with collector(nats.url, id="stays") as stays:
            await owner.publish([endpoint(name, server.port) for name, server in servers.items()])
            await leaving.ready()
            await eventually(lambda: 0 < len(stays.scraper.watched) < COUNT, "a share")
            assert await leaving.stop() == 0
            took = await eventually(lambda: len(stays.scraper.watched) == COUNT, "the take-over", 1.0)
            assert took < 1.0  # the expiry would take 1.5 s
    finally:
        leaving.kill()


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
        took = await eventually(lambda: frames.value("m3", WAITING_QUEUE_SIZE) == 33.0, "frames again")
        assert took <= 2.0


async def test_without_nats_at_the_start_it_says_that_it_is_not_ready(tmp_path: Path) -> None:
    async with collector("nats://127.0.0.1:1") as service:
        assert not service.readiness.ready
        assert "NATS" in service.readiness.reasons()["endpoints"]
