"""What each gateway's form makes of a list of endpoints, and what it does without a picker, fail closed and open."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from pointsman.local.envoy import Envoy
from tests.protocol.gateways.conftest import CHAT, ECHO, PATH, Pool, client_of, pool
from tests.protocol.gateways.forms import DESTINATION, FORMS, fail_open, unhurried
from tests.protocol.system.conftest import nothing_in_flight
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPEN = ["istio", "kgateway"]
"""The forms that follow the pool's failureMode."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("failures"), endpoints=3, pickers=1) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def envoys(shared: Pool) -> dict[str, Envoy]:
    documents = {name: form() for name, form in FORMS.items()}
    documents |= {f"{name}-open": fail_open(FORMS[name]()) for name in OPEN}
    return {name: await shared.gateway(name, unhurried(document)) for name, document in documents.items()}


async def _streams_failed(envoy: Envoy) -> int:
    """ext_proc streams that have failed since an Envoy started."""
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT) as client:
        answer = await client.get(f"{envoy.admin_url}/stats?filter=^http.*ext_proc.streams_failed$")
    return sum(int(line.rsplit(":", 1)[1]) for line in answer.text.splitlines())


async def _back(of: Pool, envoys: dict[str, Envoy]) -> None:
    """Start the picker again, and wait until every Envoy has noticed."""
    await of.stack.pickers[0].start()
    for envoy in envoys.values():
        async with client_of(envoy) as client:

            async def works(client: httpx.AsyncClient = client) -> bool:
                return (await client.post(PATH, json=CHAT)).status_code != 500

            await eventually(works)


async def test_without_a_picker(shared: Pool, envoys: dict[str, Envoy]) -> None:
    """Closed, nobody gets through. Open, requests do whose body hasn't come when no picker can be reached; they are
    balanced, and at kgateway a client's own header steers."""
    await shared.stack.pickers[0].kill()
    wish = {DESTINATION: shared.authorities[1]}
    try:
        for name, envoy in envoys.items():
            async with client_of(envoy) as client:
                answers = []
                for _ in range(3):
                    answers.append(await client.post(PATH, content=await _late_body(envoy), headers=wish))
                    answers.append(await client.get("/v1/models", headers=wish))
            if not name.endswith("-open"):
                assert {answer.status_code for answer in answers} == {500}, name
                continue
            assert {answer.status_code for answer in answers} == {200}, name
            served = {answer.headers["x-simulator-endpoint"] for answer in answers}
            assert served == ({"model-2"} if name == "kgateway-open" else {"model-1", "model-2", "model-3"})
    finally:
        await _back(shared, envoys)


async def _late_body(envoy: Envoy) -> AsyncIterator[bytes]:
    """That comes after the connection to the picker was refused. One that comes with the headers may be a 500."""
    before = await _streams_failed(envoy)

    async def body() -> AsyncIterator[bytes]:
        async def failed() -> bool:
            return await _streams_failed(envoy) > before

        await eventually(failed, "a failed stream")
        yield json.dumps(CHAT).encode()

    return body()


@pytest_asyncio.fixture(loop_scope="module")
async def client(
    request: pytest.FixtureRequest, shared: Pool, envoys: dict[str, Envoy]
) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(envoys[request.param]) as opened:
        yield opened
    await nothing_in_flight(shared.stack.pickers)


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
