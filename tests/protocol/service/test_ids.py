"""Processes that were given one id by mistake: they work, as far as that goes, and say so."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from prometheus_client import generate_latest

from shared.service.process import Service
from tests.in_process import picker, serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import collector
from tests.waiting import eventually


def counted(service: Service) -> float:
    lines = generate_latest(service.registry).decode().splitlines()
    [value] = [
        float(line.split()[-1]) for line in lines if line.startswith("pointsman_bus_duplicate_id_messages_total ")
    ]
    return value


def a_collector(url: str, id: str) -> AbstractAsyncContextManager[Service]:
    return collector(url, id=id)


def a_picker(url: str, id: str) -> AbstractAsyncContextManager[Service]:
    return serving(picker(url, id=id))


@pytest.mark.parametrize("tier", [a_picker, a_collector])
async def test_two_of_a_tier_with_one_id_tell_of_it_and_forget_it(
    nats: NatsServer, tier: Callable[[str, str], AbstractAsyncContextManager[Service]]
) -> None:
    async with tier(nats.url, "one") as first, tier(nats.url, "two") as other:
        async with tier(nats.url, "one") as second:
            await eventually(lambda: "id" in first.readiness.notes() and "id" in second.readiness.notes(), "told")
            told = f"another {first.tier} has the id 'one' too; each needs an --id of its own"
            assert first.readiness.notes()["id"] == told
            await eventually(lambda: counted(first) >= 3, "counted")
        await eventually(lambda: "id" not in first.readiness.notes(), "forgotten once the other has gone")
        assert "id" not in other.readiness.notes()
        assert counted(other) == 0
