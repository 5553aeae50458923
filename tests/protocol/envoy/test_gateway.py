"""What follows for pickers and requests from the way gateways set Envoy up (deploy/envoy/gateway.yaml)."""

import asyncio
import os
from collections import Counter

import pytest

from pointsman.local.envoy import GATEWAY
from tests.protocol.envoy.conftest import Bench, Pool
from tests.protocol.envoy.standin import DESTINATION, PIECE, Mode, Script
from tests.protocol.envoy.test_standalone_pickers import BODY, CHAT, REQUESTS, WORKERS, load, outcome, recovers
from tests.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")
GATEWAY_MODE = True


async def test_bodies_pass_byte_for_byte_in_pieces_in_both_directions(pool: Pool) -> None:
    model = pool.models[0]
    for size in (1, PIECE, PIECE + 1, 4_000_000):
        body = os.urandom(size)
        response = await pool.client.post(CHAT, content=body)
        assert response.status_code == 200
        assert model.received[-1].body == response.content == pool.picker.last.response_body == body
        assert pool.picker.last.request_body == size
    assert pool.picker.last.served == model.authority


async def test_a_request_without_a_body_is_picked_at_its_headers(pool: Pool) -> None:
    assert (await pool.client.get("/v1/models")).headers["x-served-by"] == "a"
    assert pool.picker.last.kinds[0] == "request_headers"
    assert "request_body" not in pool.picker.last.kinds


async def test_the_pick_replaces_the_client_s_destination(pool: Pool) -> None:
    wish = (DESTINATION, pool.models[1].authority)
    for wishes in ([wish], [wish, wish]):
        assert (await pool.client.post(CHAT, content=b"x", headers=wishes)).headers["x-served-by"] == "a"
        assert pool.models[0].received[-1].headers[DESTINATION] == pool.models[0].authority, "the last of several, too"


async def test_a_list_of_destinations_is_no_address(pool: Pool) -> None:
    pool.picker.script = Script(mode=Mode.DUPLEX, destinations=[m.authority for m in pool.models])
    assert (await pool.client.post(CHAT, content=b"x")).status_code == 503
    response = await pool.client.post("/v1/messages", content=b"x")
    assert (response.status_code, response.json()["error"]["type"]) == (503, "overloaded_error")


async def test_the_picker_s_own_answer_reaches_the_client(pool: Pool) -> None:
    pool.picker.script = Script(mode=Mode.DUPLEX, reject=(429, b'{"error":{}}'))
    response = await pool.client.post(CHAT, content=b"x")
    assert (response.status_code, response.content) == (429, b'{"error":{}}')
    assert not any(model.received for model in pool.models)


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


@pytest.mark.parametrize("fault", ["killed", "hangs"])
async def test_a_picker_that_is_gone_costs_its_open_requests_and_no_others(bench: Bench, fault: str) -> None:
    """Pickers are spoken to over TLS, with any certificate."""
    model = await bench.model("a")
    model.delay = 0.005
    victim = await bench.picker_process(model.authority, Mode.DUPLEX, tls=True)
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]), tls=True)
    client = await bench.client(await bench.envoy(GATEWAY, patient=fault == "killed"))
    outcomes = await load(client, victim, fault)
    if fault == "killed":
        assert outcomes["a"] >= REQUESTS - 2 * WORKERS, outcomes
    await recovers(client)


async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(bench: Bench) -> None:
    model = await bench.model("a")
    script = Script(mode=Mode.DUPLEX, destinations=[model.authority])
    drained, other = await bench.picker(script), await bench.picker(script)
    envoy = await bench.envoy(GATEWAY, picker_tls=False)
    client = await bench.client(envoy)
    running = [asyncio.create_task(client.post("/stream", content=BODY)) for _ in range(12)]
    await eventually(lambda: drained.open + other.open == 12)
    await eventually(lambda: all("response_headers" in c.kinds for c in drained.conversations + other.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await bench.leaves_out(envoy, drained)
    before = len(drained.conversations)
    assert {await outcome(client) for _ in range(10)} == {"a"}
    assert (len(drained.conversations), drained.open) == (before, kept)
    model.release.set()
    responses = await asyncio.gather(*running)
    assert Counter(r.status_code for r in responses) == {200: 12}
    assert {r.text for r in responses} == {"chunk 0\nchunk 1\nchunk 2\n"}
