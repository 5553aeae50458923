"""What clients see behind a gateway, whose filter fails closed, when a process is stopped or killed, or hangs."""

import asyncio
import ssl
import time

import httpx
import pytest

from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack
from tests.faults.system.conftest import missed, no_request_fails, renew, settled
from tests.faults.system.load import ENOUGH, Load
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_no_request_fails(gateway: LocalStack) -> None:
    """When the others stop, or are killed, matters as little as behind our Envoy: that is tested there."""
    await no_request_fails(gateway, "SIGTERM", ("picker-1", "nats"))


async def test_renewed_certificates_cost_no_request(gateway: LocalStack) -> None:
    """Connections that are open keep the former one; a picker that starts again has the new one alone."""
    shown = {picker.name: await _certificate(picker) for picker in gateway.pickers}
    async with Load(gateway.url) as load:
        await load.goes_on()
        renew(gateway.directory)
        for picker in gateway.pickers:

            async def changed(picker: Picker = picker) -> bool:
                return await _certificate(picker) != shown[picker.name]

            await eventually(changed, f"{picker.name} shows the new certificate", step=0.05)
        await load.goes_on()
    assert not load.failures, load.failures[:5]
    await no_request_fails(gateway, "SIGTERM", [picker.name for picker in gateway.pickers])


async def _certificate(picker: Picker) -> str:
    """What the picker shows to those who connect."""
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", picker.address.port))


async def test_a_killed_picker_costs_only_its_open_streams(gateway: LocalStack) -> None:
    victim, survivor = gateway.pickers
    async with Load(gateway.url) as load:
        await load.goes_on()
        await victim.kill()
        killed = time.monotonic()
        try:
            await missed(gateway, victim)
            await load.goes_on()
        finally:
            await victim.start()
        await load.goes_on()
    assert all(failure.started <= killed for failure in load.failures), load.failures[:5]
    await _only_of_the_other(survivor, load)
    await settled(gateway)


async def test_a_hanging_picker_costs_requests_only_until_the_gateway_notices(gateway: LocalStack) -> None:
    survivor, victim = gateway.pickers
    async with Load(gateway.url) as load:
        await load.goes_on()
        victim.pause()
        try:
            await eventually(lambda: _unhealthy(gateway, victim), "Envoy's health checks fail")
            noticed = time.monotonic()
            await load.goes_on(3 * load.workers)
        finally:
            victim.resume()
        await load.goes_on()
    assert all(failure.started <= noticed for failure in load.failures), load.failures[:5]
    await _only_of_the_other(survivor, load)
    await settled(gateway)


async def test_a_model_server_is_taken_out_before_it_stops(gateway: LocalStack) -> None:
    """A gateway's destination has no fallback: a server leaves the endpoints first, as a pod that isn't ready does."""
    leaving, *staying = gateway.simulators

    async def known() -> bool:
        return all([len((await picker.state())["endpoints"]) == len(staying) for picker in gateway.pickers])

    async with Load(gateway.url) as load:
        await load.goes_on()
        gateway.write_endpoints(staying)
        try:
            await eventually(known, "the pickers know")
            await load.goes_on()  # what was picked before has ended
            await leaving.stop()
            await load.goes_on()
        finally:
            if not leaving.running:
                await leaving.start()
            gateway.write_endpoints()
        await load.goes_on()
    assert not load.failures, load.failures[:5]
    await settled(gateway)


async def _unhealthy(stack: LocalStack, picker: Picker) -> bool:
    """Whether Envoy knows that the picker doesn't answer."""
    assert stack.envoy is not None
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        answer = await client.get(f"{stack.envoy.admin_url}/clusters?format=json")
    (pickers,) = (cluster for cluster in answer.json()["cluster_statuses"] if cluster["name"] == "pickers")
    health = {
        host["address"]["socket_address"]["port_value"]: host["health_status"] for host in pickers["host_statuses"]
    }
    return "failed_active_health_check" in health[picker.address.port]


async def _only_of_the_other(survivor: Picker, load: Load) -> None:
    """All that the picker which went on has decided was answered; and it decided, so that this says something."""
    failed = [failure for failure in load.failures if await _has_decided(survivor, failure.request_id)]
    assert not failed, failed[:5]
    lately = (await survivor.get("/debug/decisions?limit=1000")).json()["decisions"]
    assert len({decision["request_id"] for decision in lately} & set(load.request_ids)) >= ENOUGH


async def _has_decided(picker: Picker, request_id: str) -> bool:
    try:
        await picker.get(f"/debug/decisions/{request_id}")
    except httpx.HTTPStatusError:
        return False
    return True
