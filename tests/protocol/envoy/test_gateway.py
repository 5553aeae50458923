"""What follows for pickers and requests from the way gateways set Envoy up (deploy/envoy/gateway.yaml)."""

import asyncio
import os
from collections import Counter

import httpx

from pointsman.local.envoy import GATEWAY
from tests.protocol.envoy.conftest import Bench, wait_until
from tests.protocol.envoy.standin import DESTINATION, PIECE, Mode, Script
from tests.protocol.envoy.test_standalone_pickers import BODY, CHAT, WORKERS, load


async def test_bodies_pass_byte_for_byte_in_pieces_in_both_directions(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    for size in (1, PIECE, PIECE + 1, 300_000, 4_000_000):
        body = os.urandom(size)
        response = await client.post(CHAT, content=body)
        assert response.status_code == 200
        assert model.received[-1].body == response.content == picker.last.response_body == body
        assert picker.last.request_body == size
    assert picker.last.served == model.authority


async def test_the_picker_is_spoken_to_over_tls_with_any_certificate(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]), tls=True)
    client = await bench.client(await bench.envoy(GATEWAY))
    assert (await client.post(CHAT, content=b"x")).status_code == 200
    assert len(picker.conversations) == 1


async def test_a_request_without_a_body_is_picked_at_its_headers(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    assert (await client.get("/v1/models")).headers["x-served-by"] == "a"
    assert picker.last.kinds[0] == "request_headers"
    assert "request_body" not in picker.last.kinds


async def test_the_pick_replaces_the_client_s_destination(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=[models[0].authority]))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    wish = (DESTINATION, models[1].authority)
    for wishes in ([wish], [wish, wish]):
        assert (await client.post(CHAT, content=b"x", headers=wishes)).headers["x-served-by"] == "a"
        assert models[0].received[-1].headers[DESTINATION] == models[0].authority, "the last of several, too"


async def test_a_list_of_destinations_is_no_address(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=[m.authority for m in models]))
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


async def test_the_picker_s_own_answer_reaches_the_client(bench: Bench) -> None:
    model = await bench.model("a")
    await bench.picker(Script(mode=Mode.DUPLEX, reject=(429, b'{"error":{}}')))
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    response = await client.post(CHAT, content=b"x")
    assert (response.status_code, response.content, model.received) == (429, b'{"error":{}}', [])


async def test_a_killed_picker_costs_its_open_requests_and_no_others(bench: Bench) -> None:
    model = await bench.model("a")
    model.delay = 0.005
    victim = await bench.picker_process(model.authority, Mode.DUPLEX, tls=True)
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]), tls=True)
    client = await bench.client(await bench.envoy(GATEWAY))

    async def kill() -> None:
        await victim.kill()

    outcomes = await load(client, 600, WORKERS, kill)
    assert outcomes["a"] >= 600 - WORKERS, outcomes


async def test_a_picker_that_hangs_costs_its_open_requests_and_no_others(bench: Bench) -> None:
    model = await bench.model("a")
    model.delay = 0.005
    victim = await bench.picker_process(model.authority, Mode.DUPLEX, tls=True)
    await bench.picker(Script(mode=Mode.DUPLEX, destinations=[model.authority]), tls=True)
    client = await bench.client(await bench.envoy(GATEWAY))

    async def pause() -> None:
        victim.pause()

    outcomes = await load(client, 600, WORKERS, pause)
    assert outcomes["a"] >= 600 - WORKERS, outcomes


async def test_a_picker_that_drains_gets_no_new_streams_and_keeps_its_open_ones(bench: Bench) -> None:
    model = await bench.model("a")
    script = Script(mode=Mode.DUPLEX, destinations=[model.authority])
    drained, other = await bench.picker(script), await bench.picker(script)
    client = await bench.client(await bench.envoy(GATEWAY, picker_tls=False))
    running: list[asyncio.Task[httpx.Response]] = []
    for _ in range(12):
        running.append(asyncio.create_task(client.post("/stream", content=BODY)))
    await wait_until(lambda: drained.open + other.open == 12)
    await wait_until(lambda: all("response_headers" in c.kinds for c in drained.conversations + other.conversations))
    kept = drained.open
    assert kept > 0
    await drained.set_serving(False)
    await asyncio.sleep(2.0)  # the health check's interval, four times
    before = len(drained.conversations)
    for _ in range(10):
        assert (await client.post(CHAT, content=b"x")).status_code == 200
    assert (len(drained.conversations), drained.open) == (before, kept)
    model.release.set()
    responses = await asyncio.gather(*running)
    assert Counter(r.status_code for r in responses) == {200: 12}
    assert {r.text for r in responses} == {"chunk 0\nchunk 1\nchunk 2\n"}
