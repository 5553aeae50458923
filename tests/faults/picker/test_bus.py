"""What may happen between a picker and NATS: it picks on from what it knows, and soon after the end of the fault all
pickers know the same, byte for byte: the facts, each other's load, and where prompts were placed."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from services.picker.app import PickerService
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects
from tests.faults.picker.pickers import Pickers, names
from tests.meddler import LATE, Meddler
from tests.nats import NatsServer
from tests.protocol.collector.harness import POOL
from tests.proxy import Proxy
from tests.soak.promises import (
    LATE_PICKER,
    MEDDLED,
    NATS_GONE,
    PICKER_CUT_OFF,
    PICKER_SILENT,
    PICKER_STOOD_STILL,
    SLOW_CONSUMER,
    soaking,
)
from tests.waiting import TIMEOUT, eventually

GONE = 600.0 if soaking() else 1.0
AWAY = 30.0 if soaking() else 0.5
"""Seconds for which NATS is gone, and for which one picker can't reach it."""
STORM = 400 if soaking() else 40
"""Changes of the endpoints while a picker doesn't listen."""
PROMPTS = 20_000 if soaking() else 500
"""Of four blocks each."""
FLOOD = 64 * 1024
"""Bytes of a message that all pickers get."""


async def picks_on(pickers: Pickers, seconds: float, *services: PickerService) -> None:
    """Each picks ten times a second, at most 600 times: a full index forgets what is the oldest to this picker."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for service in services:
            pickers.pick(service)
        await asyncio.sleep(max(0.1, seconds / 600))


@pytest.mark.outage
@pytest.mark.soak
async def test_nats_is_gone_for_long(nats: NatsServer, pickers: Pickers) -> None:
    both = [await pickers.start(name) for name in ("p1", "p2")]
    await picks_on(pickers, 0.5, *both)
    await pickers.know_the_same()
    nats.kill()
    gone = time.monotonic()
    pickers.offer(names(3, 1))
    await picks_on(pickers, GONE, *both)
    for service in both:
        assert (service.replica.age() or 0.0) > 0.9 * (time.monotonic() - gone)
        assert service.readiness.ready, service.readiness.reasons()
        assert {endpoint.name for endpoint in service.view.layout.endpoints} == {"m0", "m1", "m2"}
    await nats.start()
    back = time.monotonic()
    await pickers.measure(NATS_GONE, back)


@pytest.mark.soak
@pytest.mark.parametrize("silent", [False, True], ids=["reset", "silent"])
async def test_one_picker_is_cut_off_from_nats(nats: NatsServer, pickers: Pickers, silent: bool) -> None:
    async with Proxy(nats.port) as proxy, AsyncExitStack() as stack:
        near = await pickers.start("near")
        far = await pickers.start("far", proxy.url("nats"), stack)
        await picks_on(pickers, 0.5, near, far)
        await pickers.know_the_same()
        (proxy.swallow if silent else proxy.refuse)()
        await pickers.publish(names(3, 1))
        await picks_on(pickers, AWAY, near, far)
        assert {endpoint.name for endpoint in far.view.layout.endpoints} == {"m0", "m1", "m2"}
        if silent:
            proxy.forward()
        else:
            await proxy.listen()
        await pickers.measure(PICKER_SILENT if silent else PICKER_CUT_OFF, time.monotonic())


@pytest.mark.soak
async def test_messages_come_twice_late_and_in_another_order(nats: NatsServer, pickers: Pickers) -> None:
    meddler = Meddler()
    async with Proxy(nats.port, answers=meddler) as proxy, AsyncExitStack() as stack:
        both = await pickers.start("p1"), await pickers.start("p2", proxy.url("nats"), stack)
        meddler.with_references = True
        for turn in range(STORM // 4):
            await pickers.publish(names(3, turn))
            await picks_on(pickers, 0.1, *both)
        assert meddler.late
        meddler.with_references = False
        last = time.monotonic() + LATE
        await asyncio.sleep(LATE)
        await pickers.measure(MEDDLED, last)


@pytest.mark.soak
async def test_nats_drops_a_picker_that_reads_too_slowly(nats: NatsServer, pickers: Pickers) -> None:
    async with Proxy(nats.port) as proxy, AsyncExitStack() as stack, Bus(nats.url, name="flood") as flood:
        both = await pickers.start("quick"), await pickers.start("slow", proxy.url("nats"), stack)
        await flood.wait_connected(TIMEOUT)
        proxy.hold()

        async def dropped() -> bool:
            await flood.publish(Subjects().load(POOL, "flood"), bytes(FLOOD))
            return "Slow Consumer" in nats.log.read_text()

        await eventually(dropped, "NATS drops it")
        await pickers.publish(names(3, 1))
        for service in both:
            pickers.pick(service)
        proxy.release()
        await pickers.measure(SLOW_CONSUMER, time.monotonic())


@pytest.mark.soak
async def test_a_picker_stands_still_while_much_changes(pickers: Pickers) -> None:
    quick, slow = await pickers.start("quick"), await pickers.start_process("slow")
    await pickers.know_the_same()
    slow.pause()
    began = time.monotonic()
    for turn in range(STORM):
        await pickers.publish(names(3, turn))
        pickers.pick(quick)
    await asyncio.sleep(max(began + 2.0 - time.monotonic(), 0.0))
    slow.resume()
    await pickers.measure(PICKER_STOOD_STILL, time.monotonic())


@pytest.mark.soak
async def test_a_picker_joins_late(pickers: Pickers) -> None:
    first = await pickers.start("first")
    for number in range(PROMPTS):
        pickers.pick(first)
        if number % 100 == 0:
            await asyncio.sleep(0)
    began = time.monotonic()
    late = await pickers.start("late")
    assert late.view.prefixes.held == first.view.prefixes.held
    await pickers.measure(LATE_PICKER, began)
