"""SIGTERM of any one process but Envoy, under load: no request fails, and afterwards all is as before."""

import asyncio

import pytest

from pointsman.local.stack import LocalStack
from tests.faults.system.conftest import LEADER, STANDBY, leading, named, settled
from tests.faults.system.load import ENOUGH, Load

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest.mark.parametrize("name", ["picker-1", "picker-2", "collector-1", LEADER, STANDBY, "nats", "model-1", "model-2"])
async def test_no_request_fails_in_our_configuration(ours: LocalStack, name: str) -> None:
    await _stop_under_load(ours, name)


@pytest.mark.parametrize("name", ["picker-1", "collector-2", LEADER, STANDBY, "nats"])
async def test_no_request_fails_with_a_gateway(gateway: LocalStack, name: str) -> None:
    await _stop_under_load(gateway, name)


async def _stop_under_load(stack: LocalStack, name: str) -> None:
    stopped = await named(stack, name)
    async with Load(stack.url) as load:
        await asyncio.sleep(1.0)
        await stopped.stop()
        await asyncio.sleep(1.0)
        if name == LEADER:
            await leading(stack, but=stopped)
        await stopped.start()
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await settled(stack)


async def test_a_model_server_behind_a_gateway_is_taken_out_before_it_stops(gateway: LocalStack) -> None:
    """A gateway's destination has no fallback: a server leaves the endpoints first, as a pod that isn't ready does."""
    leaving, *staying = gateway.simulators
    async with Load(gateway.url) as load:
        await asyncio.sleep(1.0)
        gateway.write_endpoints(staying)
        async with asyncio.timeout(20.0):
            while not await known(gateway, len(staying)):  # noqa: ASYNC110 - only asking tells
                await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)  # for what was picked before
        await leaving.stop()
        await asyncio.sleep(0.5)
        await leaving.start()
        gateway.write_endpoints()
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:5]
    assert load.sent > ENOUGH
    await settled(gateway)


async def known(stack: LocalStack, endpoints: int) -> bool:
    """Whether every picker knows so many."""
    return all([len((await picker.state())["endpoints"]) == endpoints for picker in stack.pickers])
