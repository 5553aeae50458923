"""Collectors divide the endpoints, for however many pickers there are; NATS may come and go."""

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial

import pytest

from services.collector import app
from services.picker.app import PickerService
from services.simulator.app import Simulator
from services.simulator.gauges import Pins
from services.simulator.settings import SimulatorSettings
from shared.attributes import WAITING_QUEUE_SIZE
from shared.bus.membership import Membership
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, collector, endpoint, vllm
from tests.soak.promises import NATS_BACK_FOR_FRAMES, measured, soaking
from tests.waiting import TIMEOUT, eventually

COUNT = 12
INTERVAL = 0.2
COUNTED = 10.0 if soaking() else 1.5
"""Seconds for which requests are counted."""


@pytest.mark.soak
async def test_while_nats_is_away_scraping_goes_on_and_frames_are_back_with_it(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    async with AsyncExitStack() as stack:
        servers = {f"m{number}": await stack.enter_async_context(OddServer(vllm(number))) for number in range(COUNT)}
        service = await stack.enter_async_context(collector(nats.url))
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
        measured(NATS_BACK_FOR_FRAMES, time.monotonic() - back)


async def test_without_nats_at_the_start_it_says_that_it_is_not_ready() -> None:
    async with collector("nats://127.0.0.1:1") as service:
        assert not service.readiness.ready
        assert "NATS" in service.readiness.reasons()["endpoints"]


async def test_a_model_server_is_asked_once_an_interval_however_many_pickers_there_are(
    nats: NatsServer, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at the model servers; every picker has their values all the same, and fresh ones."""
    monkeypatch.setattr(app, "Membership", partial(Membership, expiry=10 * TIMEOUT))  # the process may stand still
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(Simulator(SimulatorSettings(port=0, drain_timeout=1))) for _ in range(3)
        ]
        for number, server in enumerate(servers):
            server.server.page.pin(Pins(waiting=number))
        ids = [f"collector-{number}" for number in range(2)]
        collectors = [await stack.enter_async_context(collector(nats.url, id=id, interval=INTERVAL)) for id in ids]
        serve = [
            await stack.enter_async_context(serving(picker(nats.url, id=f"picker-{number}"))) for number in range(3)
        ]
        await owner.publish([endpoint(f"m{number}", server.port) for number, server in enumerate(servers)])

        def seen(view: PickerService) -> list[float]:
            return list(view.view.columns.numbers(WAITING_QUEUE_SIZE.wire).values)

        await eventually(lambda: all(len(each.view.layout) == 3 and seen(each) == [0, 1, 2] for each in serve), "views")
        await eventually(lambda: sum(len(each.scraper.endpoints) for each in collectors) == 3, "one collector for each")
        before, began = [server.server.counts.scrapes for server in servers], time.monotonic()
        await asyncio.sleep(COUNTED)
        lasted = time.monotonic() - began
        for server, count in zip(servers, before, strict=True):
            asked = server.server.counts.scrapes - count
            assert asked <= lasted / INTERVAL + 1
            assert asked > 0
        for each in serve:
            await eventually(lambda: bool((each.view.columns.numbers(WAITING_QUEUE_SIZE.wire).at > began).all()))  # noqa: B023
