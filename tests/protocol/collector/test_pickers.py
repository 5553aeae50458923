"""A model server is asked once an interval, however many pickers there are; ranks and ports are servers too."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from services.picker.app import PickerService
from services.simulator.app import simulator
from services.simulator.gauges import Pins
from services.simulator.settings import SimulatorSettings
from shared.attributes import RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from shared.model import Endpoint
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, collector, endpoint, never_expire, vllm
from tests.soak.promises import soaking
from tests.waiting import eventually

INTERVAL = 0.2
COUNTED = 10.0 if soaking() else 1.5
"""Seconds for which requests are counted."""


async def test_a_model_server_is_asked_once_an_interval_however_many_pickers_there_are(
    nats: NatsServer, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at the model servers; every picker has their values all the same, and fresh ones."""
    never_expire(monkeypatch)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(simulator(SimulatorSettings(port=0, drain_timeout=1))) for _ in range(3)
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

        await eventually(lambda: all(len(one.view.layout) == 3 and seen(one) == [0, 1, 2] for one in serve), "views")
        await eventually(lambda: sum(len(one.scraper.watched) for one in collectors) == 3, "one collector for each")
        before, began = [server.server.tally.scrapes for server in servers], time.monotonic()
        await asyncio.sleep(COUNTED)
        lasted = time.monotonic() - began
        for server, count in zip(servers, before, strict=True):
            asked = server.server.tally.scrapes - count
            assert asked <= lasted / INTERVAL + 1
            assert asked > 0
        for one in serve:
            await eventually(lambda: bool((one.view.columns.numbers(WAITING_QUEUE_SIZE.wire).at > began).all()))  # noqa: B023


async def test_ranks_and_ports_of_a_pod_are_endpoints_of_their_own(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """A pod with two ports, and one with two ranks whose metrics are somewhere else than their service."""
    async with OddServer(vllm(1)) as first, OddServer(vllm(2)) as second, OddServer(vllm(3)) as metrics:

        def server(id: str, port: int, rank: int = 0, metrics: str = "") -> Endpoint:
            name = id.partition("-")[0]
            return Endpoint(
                id=f"default/{id}", name=name, address="127.0.0.1", port=port, rank=rank, metrics_host=metrics
            )

        endpoints = [
            server("pod-port-0", first.port),
            server("pod-port-1", second.port),
            server("ranks-rank-0", 9, 0, f"127.0.0.1:{first.port}"),
            server("ranks-rank-1", 10, 1, f"127.0.0.1:{metrics.port}"),
        ]
        values = {"pod-port-0": 1.0, "pod-port-1": 2.0, "ranks-rank-0": 1.0, "ranks-rank-1": 3.0}
        async with collector(nats.url, interval=0.1) as service:
            await owner.publish(endpoints)
            for name, value in values.items():
                await eventually(lambda name=name, value=value: frames.value(name, WAITING_QUEUE_SIZE) == value, name)  # type: ignore[misc]
            assert set(service.scraper.watched) == {one.id for one in endpoints}
            second.behaviour = vllm(7, 8)
            await eventually(lambda: frames.value("pod-port-1", WAITING_QUEUE_SIZE) == 7.0, "the changed port's value")
            assert frames.value("pod-port-1", RUNNING_REQUESTS_SIZE) == 8.0
            for name in ("pod-port-0", "ranks-rank-0", "ranks-rank-1"):
                assert frames.value(name, WAITING_QUEUE_SIZE) == values[name]
                assert frames.value(name, RUNNING_REQUESTS_SIZE) == 1.0
