"""SIGKILL and SIGSTOP: what a client sees when a process is gone, or there and silent."""

import asyncio
import time

import httpx
import pytest

from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack
from tests.faults.system.conftest import LEADER, STANDBY, decided_lately, has_decided, leading, named, settled
from tests.faults.system.load import ENOUGH, Load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


async def test_a_killed_picker_costs_no_request_in_our_configuration(ours: LocalStack) -> None:
    async with Load(ours.url) as load:
        await asyncio.sleep(1.0)
        await ours["picker-1"].kill()
        await asyncio.sleep(2.0)
        await ours["picker-1"].start()
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await settled(ours)


async def test_a_hanging_picker_costs_no_request_in_our_configuration(ours: LocalStack) -> None:
    async with Load(ours.url) as load:
        await asyncio.sleep(1.0)
        ours["picker-2"].pause()
        await asyncio.sleep(5.0)
        ours["picker-2"].resume()
        await asyncio.sleep(2.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await settled(ours)


OFF_THE_PATH = ["collector-1", "collector-2", LEADER, STANDBY, "nats"]


@pytest.mark.parametrize("name", OFF_THE_PATH)
async def test_a_killed_process_off_the_path_costs_no_request_in_our_configuration(ours: LocalStack, name: str) -> None:
    await _kill_under_load(ours, name)


@pytest.mark.parametrize("name", OFF_THE_PATH)
async def test_a_killed_process_off_the_path_costs_no_request_of_a_gateway(gateway: LocalStack, name: str) -> None:
    await _kill_under_load(gateway, name)


async def _kill_under_load(stack: LocalStack, name: str) -> None:
    victim = await named(stack, name)
    async with Load(stack.url) as load:
        await asyncio.sleep(1.0)
        await victim.kill()
        await asyncio.sleep(2.5)
        if name == LEADER:
            await leading(stack, but=victim)
        await victim.start()
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await leading(stack)
    await settled(stack)


async def test_a_killed_picker_of_a_gateway_costs_only_its_open_streams(gateway: LocalStack) -> None:
    victim, survivor = gateway.pickers
    async with Load(gateway.url) as load:
        await asyncio.sleep(1.0)
        killed = time.monotonic()
        await victim.kill()
        await asyncio.sleep(2.0)
        await victim.start()
        await asyncio.sleep(1.0)
    assert all(one.started <= killed for one in load.failures), load.failures[:5]
    await _only_of_the_other(survivor, load)
    await settled(gateway)


@pytest.mark.serial
async def test_a_hanging_picker_of_a_gateway_costs_only_its_open_streams(gateway: LocalStack) -> None:
    """Envoy notices after two missed seconds; until then the picker has streams, and those are lost at most."""
    survivor, victim = gateway.pickers
    async with Load(gateway.url) as load:
        await asyncio.sleep(1.0)
        paused = time.monotonic()
        victim.pause()
        await asyncio.sleep(5.0)
        victim.resume()
        await asyncio.sleep(2.0)
    assert all(one.started <= paused + 2.5 for one in load.failures), load.failures[:5]
    await _only_of_the_other(survivor, load)
    await settled(gateway)


async def _only_of_the_other(survivor: Picker, load: Load) -> None:
    """All that the picker which went on has decided was answered; and it decided, so that this says something."""
    failed = [one for one in load.failures if await has_decided(survivor, one.request_id)]
    assert not failed, failed[:5]
    assert len(load.failures) <= load.workers
    assert len(await decided_lately(survivor) & set(load.request_ids)) > ENOUGH


async def test_with_all_pickers_gone_our_configuration_still_routes(ours: LocalStack) -> None:
    for picker in ours.pickers:
        await picker.kill()
    async with Load(ours.url) as load:
        await asyncio.sleep(2.0)
    assert not load.failures, load.failures[:5]
    assert set(load.served) == {"model-1", "model-2", "model-3"}
    await asyncio.gather(*(picker.start() for picker in ours.pickers))
    await settled(ours)


async def test_a_dead_model_server_costs_only_the_answers_that_it_had_begun(ours: LocalStack) -> None:
    """What it hadn't answered yet is retried at a fallback; a response that has begun can't be taken back."""
    async with Load(ours.url) as load:
        await asyncio.sleep(1.0)
        killed = time.monotonic()
        await ours["model-2"].kill()
        await asyncio.sleep(2.0)
        await ours["model-2"].start()
        await asyncio.sleep(1.0)
    assert all(one.started <= killed and "stream=True" in one.what for one in load.failures), load.failures[:5]
    await settled(ours)


async def test_a_picker_that_starts_without_nats_is_not_ready_and_says_why(ours: LocalStack) -> None:
    await ours.nats.kill()
    picker = ours.pickers[0]
    await picker.kill()
    await picker.start(wait=False)
    reasons: dict[str, str] = {}
    deadline = time.monotonic() + 15
    while "NATS" not in reasons.get("view", "") and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        try:
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.get(f"{picker.url}/readyz")
        except httpx.HTTPError:
            continue
        assert answer.status_code == 503
        reasons = answer.json()["reasons"]
    assert "NATS" in reasons["view"]
    async with Load(ours.url) as load:  # the other picker goes on from what it knows
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:5]
    await ours.nats.start()
    await picker.wait_ready()
    await settled(ours)


async def test_a_wiped_nats_is_filled_again_by_the_owners(ours: LocalStack) -> None:
    async with Load(ours.url) as load:
        await ours.nats.kill()
        ours.nats.wipe()
        await ours.nats.start()
        await asyncio.sleep(2.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await settled(ours)
