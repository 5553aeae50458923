"""What follows for pickers and requests from the way gateways set Envoy up (deploy/envoy/gateway.yaml)."""

import pytest

from pointsman.local.envoy import GATEWAY
from tests.protocol.envoy.conftest import Bench
from tests.protocol.envoy.standin import DESTINATION, Mode, Script
from tests.protocol.envoy.test_standalone import CHAT

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_list_of_destinations_is_no_address(bench: Bench) -> None:
    models = [(await bench.model(name)).authority for name in "ab"]
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=models))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    assert (await client.post(CHAT, content=b"x")).status_code == 503
    response = await client.post("/v1/messages", content=b"x")
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


async def test_without_any_picker_requests_fail(bench: Bench) -> None:
    model = await bench.model("a")
    bench.address()
    client = await bench.client(await bench.envoy(GATEWAY))
    wish = {DESTINATION: model.authority}
    for response in (await client.post(CHAT, content=b"x", headers=wish), await client.get("/v1/models", headers=wish)):
        assert response.status_code == 500
        error = {"message": "the endpoint picker gave no answer", "type": "internal_error", "param": None, "code": 500}
        assert response.json() == {"error": error}
    response = await client.post("/v1/messages", content=b"x", headers=wish)
    error = {"type": "api_error", "message": "the endpoint picker gave no answer"}
    assert (response.status_code, response.json()) == (500, {"type": "error", "error": error})
    assert model.received == []
