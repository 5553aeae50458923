"""What each gateway's form makes of a list of endpoints, the first choice and its fallbacks."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from tests.protocol.gateways.conftest import CHAT, ECHO, PATH, Pool, client_of, pool, settled
from tests.protocol.gateways.forms import FORMS
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("fallbacks"), endpoints=3, pickers=1) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def client(request: pytest.FixtureRequest, shared: Pool) -> AsyncIterator[httpx.AsyncClient]:
    envoy = await shared.gateway(request.param, FORMS[request.param]())
    async with client_of(envoy) as opened:
        yield opened
    await settled(shared)


@pytest.mark.parametrize("client", ["envoy-ai-gateway", "envoy-ai-gateway-buffered"], indirect=True)
async def test_an_original_dst_cluster_takes_one_destination(shared: Pool, client: httpx.AsyncClient) -> None:
    before = [await simulator.state() for simulator in shared.stack.simulators]
    assert {(await client.post(PATH, json=CHAT)).status_code for _ in range(4)} == {503}
    after = [await simulator.state() for simulator in shared.stack.simulators]
    assert [state["requests"] for state in after] == [state["requests"] for state in before]


@pytest.mark.parametrize("client", ["kgateway"], indirect=True)
async def test_kgateway_balances_a_list_round_robin(shared: Pool, client: httpx.AsyncClient) -> None:
    """It matches no subset, so the pick is lost, and nobody hears of it."""
    served = []
    for _ in range(9):
        response = await client.post(PATH, json=CHAT, headers=ECHO)
        assert response.status_code == 200
        served.append(response.headers["x-simulator-endpoint"])
    assert served[:3] == served[3:6] == served[6:]
    assert set(served) == {"model-1", "model-2", "model-3"}


@pytest.mark.parametrize("client", ["istio"], indirect=True)
async def test_istio_walks_down_the_list(shared: Pool, client: httpx.AsyncClient) -> None:
    for _ in range(12):
        response = await client.post(PATH, json=CHAT, headers=ECHO)
        made = await shared.decided(response)
        assert made["endpoint"] == f"default/{response.headers['x-simulator-endpoint']}"
    victim = shared.stack.simulators[0]
    await victim.kill()
    try:
        missed = 0
        for _ in range(24):
            response = await client.post(PATH, json=CHAT, headers=ECHO)
            assert response.status_code == 200, response.text
            made = await shared.decided(response)
            if made["endpoint"] == "default/model-1":
                missed += 1
                second = made["profiles"][made["primary_profile"]]["picked"][1]
                assert second == f"default/{response.headers['x-simulator-endpoint']}"
        assert missed
    finally:
        await victim.start()
        await eventually(lambda: _serves(client))


async def _serves(client: httpx.AsyncClient) -> bool:
    return (await client.post(PATH, json=CHAT)).status_code == 200
