"""What deploy/envoy/standalone.yaml promises of destinations, fallbacks, bodies and limits, with the real Envoy."""

import asyncio
import os
from collections import Counter

import aiohttp
import grpc
import httpx
import pytest

from tests.protocol.envoy.conftest import Bench, wait_until
from tests.protocol.envoy.standin import DESTINATION, Script, Via

CHAT = "/v1/chat/completions"


async def test_the_request_goes_to_the_pick(bench: Bench) -> None:
    await bench.model("a")
    second = await bench.model("b")
    picker = await bench.picker(Script(destinations=[second.authority]))
    client = await bench.client(await bench.envoy())
    for _ in range(6):
        response = await client.post(CHAT, content=b"hello")
        assert (response.status_code, response.headers["x-served-by"], response.content) == (200, "b", b"hello")
    assert {one.served for one in picker.conversations} == {second.authority}


@pytest.mark.parametrize("via", list(Via))
async def test_dead_choices_are_passed_over_in_order_and_the_picker_learns_who_served(bench: Bench, via: Via) -> None:
    models = [await bench.model(name) for name in "abc"]
    dead = [bench.dead(), bench.dead()]
    bench.endpoints([m.authority for m in models] + dead)
    picker = await bench.picker(Script(destinations=[*dead, models[2].authority], via=via))
    client = await bench.client(await bench.envoy())
    for _ in range(6):
        assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "c"
    assert {one.served for one in picker.conversations} == {models[2].authority}
    assert {one.served_metadata for one in picker.conversations} == {models[2].authority}


@pytest.mark.parametrize("via", list(Via))
async def test_when_all_choices_are_dead_another_server_takes_the_request(bench: Bench, via: Via) -> None:
    model = await bench.model("a")
    dead = [bench.dead(), bench.dead(), bench.dead()]
    bench.endpoints([*dead, model.authority])
    picker = await bench.picker(Script(destinations=dead, via=via))
    client = await bench.client(await bench.envoy())
    for _ in range(6):
        assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "a"
    assert {one.served for one in picker.conversations} == {model.authority}


async def test_a_server_that_says_503_is_passed_over(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    models[0].status = 503
    await bench.picker(Script(destinations=[m.authority for m in models]))
    client = await bench.client(await bench.envoy())
    assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "b"
    assert len(models[0].received) == 1


async def test_a_server_that_dies_before_it_answers_is_passed_over(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    models[0].reset = True
    await bench.picker(Script(destinations=[m.authority for m in models]))
    client = await bench.client(await bench.envoy())
    assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "b"


async def test_a_server_s_own_error_reaches_the_client(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    models[0].status = 500
    await bench.picker(Script(destinations=[m.authority for m in models]))
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=b"x")
    assert (response.status_code, response.headers["x-served-by"]) == (500, "a")


@pytest.mark.parametrize("first_is_dead", [False, True], ids=["alive", "first choice dead"])
async def test_a_4_mb_body_passes_byte_for_byte(bench: Bench, first_is_dead: bool) -> None:
    model = await bench.model("a")
    body = os.urandom(4_000_000)
    dead = bench.dead()
    bench.endpoints([model.authority, dead])
    picker = await bench.picker(Script(destinations=[dead, model.authority] if first_is_dead else [model.authority]))
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=body)
    assert response.status_code == 200
    assert model.received[-1].body == body
    assert response.content == body
    assert picker.last.request_body == len(body)


async def test_a_body_above_the_limit_is_refused(bench: Bench) -> None:
    await bench.model("a")
    await bench.picker()
    client = await bench.client(await bench.envoy())
    try:
        response = await client.post(CHAT, content=bytes((32 << 20) + 1))
    except httpx.WriteError:
        return  # refused while it was still being sent
    assert response.status_code == 413


@pytest.mark.parametrize("status", [400, 413, 429, 500, 503])
async def test_the_picker_s_own_answer_stays_as_it_is(bench: Bench, status: int) -> None:
    await bench.model("a")
    await bench.picker(Script(reject=(status, b'{"error": {}}')))
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=b"x")
    assert (response.status_code, response.content) == (status, b'{"error": {}}')


async def test_envoy_s_own_503_is_the_api_s_error_and_for_grpc_clients_a_text(bench: Bench) -> None:
    dead = bench.dead()
    bench.endpoints([dead])
    await bench.picker(Script(destinations=[dead]))
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=b"x")
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == ("service_unavailable", None, 503)
    assert "upstream connect error" in error["message"]
    for path in ("/v1/messages", "/v1/messages/count_tokens?beta=true"):
        response = await client.post(path, content=b"x")
        assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
        told = response.json()
        assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")
        assert "upstream connect error" in told["error"]["message"]
    response = await client.post(CHAT, content=b"x", headers={"content-type": "application/grpc"})
    assert response.headers["grpc-status"] == "14"
    assert response.headers["grpc-message"].startswith("upstream connect error")


async def test_sixty_requests_at_once_survive_a_dead_first_choice(bench: Bench) -> None:
    """Envoy's default allows three retries at a time; the others would get 503."""
    model = await bench.model("a")
    dead = bench.dead()
    bench.endpoints([model.authority, dead])
    await bench.picker(Script(destinations=[dead, model.authority]))
    client = await bench.client(await bench.envoy())
    responses = await asyncio.gather(*(client.post(CHAT, content=b"x") for _ in range(60)))
    assert Counter(r.status_code for r in responses) == {200: 60}


async def test_more_than_1024_responses_may_run_at_once(bench: Bench) -> None:
    """Each keeps a stream to the picker open; Envoy's default allows 1 024 a cluster."""
    model = await bench.model("a")
    picker = await bench.picker()
    envoy = await bench.envoy()

    async def one(client: aiohttp.ClientSession) -> int:
        async with client.post(f"{envoy.url}/stream", data=b"x") as response:
            await response.read()
            return response.status

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        requests = []
        for count in range(100, 1200, 100):  # one stand-in serves them all, and Envoy gives it 5 s for each
            requests += [asyncio.create_task(one(client)) for _ in range(100)]
            await wait_until(lambda count=count: picker.open == count, within=60)  # type: ignore[misc]
        model.release.set()
        assert Counter(await asyncio.gather(*requests)) == {200: 1100}


async def test_a_request_without_a_body_is_picked_at_its_headers(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    picker = await bench.picker(Script(destinations=[models[1].authority]))
    client = await bench.client(await bench.envoy())
    assert (await client.get("/v1/models")).headers["x-served-by"] == "b"
    await picker.last.over.wait()
    assert picker.last.kinds == ["request_headers", "response_headers"]


async def test_the_client_s_destination_header_is_dropped(bench: Bench) -> None:
    models = [await bench.model(name) for name in "abc"]
    picker = await bench.picker(Script(destinations=[]))
    client = await bench.client(await bench.envoy())
    wish = {DESTINATION: models[0].authority}
    responses = [await client.post(CHAT, content=b"x", headers=wish) for _ in range(9)]
    served = Counter(response.headers["x-served-by"] for response in responses)
    assert served == {"a": 3, "b": 3, "c": 3}
    assert all(DESTINATION not in one.headers for one in picker.conversations)
    assert all(DESTINATION not in one.headers for model in models for one in model.received)


async def test_an_address_that_isn_t_in_the_endpoints_file_is_passed_over(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    stranger = await bench.model("stranger")
    bench.endpoints([m.authority for m in models])
    await bench.picker(Script(destinations=[stranger.authority, models[1].authority]))
    client = await bench.client(await bench.envoy())
    served = {(await client.post(CHAT, content=b"x")).headers["x-served-by"] for _ in range(6)}
    assert "stranger" not in served


async def test_endpoints_that_a_rename_brings_are_used_at_once(bench: Bench) -> None:
    await bench.model("a")
    bench.endpoints()
    late = await bench.model("late")
    await bench.picker(Script(destinations=[late.authority]))
    client = await bench.client(await bench.envoy())
    assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "a"
    bench.endpoints()
    async with asyncio.timeout(2):
        while (await client.post(CHAT, content=b"x")).headers["x-served-by"] != "late":
            pass
    bench.endpoints([])
    async with asyncio.timeout(2):
        while (await client.post(CHAT, content=b"x")).status_code != 503:
            pass


async def test_a_server_on_ipv6_is_reached(bench: Bench) -> None:
    await bench.model("a")
    try:
        model = await bench.model("six", host="::1")
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    picker = await bench.picker(Script(destinations=[model.authority]))
    client = await bench.client(await bench.envoy())
    assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "six"
    assert picker.last.served == model.authority == f"[::1]:{model.port}"


async def test_the_picker_s_own_answer_reaches_the_client(bench: Bench) -> None:
    model = await bench.model("a")
    await bench.picker(Script(reject=(429, b'{"error":{}}')))
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=b"x")
    assert (response.status_code, response.content, model.received) == (429, b'{"error":{}}', [])


async def test_the_client_s_request_id_stays_and_every_response_has_one(bench: Bench) -> None:
    await bench.model("a")
    picker = await bench.picker()
    client = await bench.client(await bench.envoy())
    named = await client.post(CHAT, content=b"x", headers={"x-request-id": "mine"})
    assert (named.headers["x-request-id"], picker.last.headers["x-request-id"]) == ("mine", "mine")
    other = await client.post(CHAT, content=b"x")
    assert other.headers["x-request-id"] == picker.last.headers["x-request-id"] != "mine"


async def test_headers_by_which_a_client_would_steer_envoy_are_dropped(bench: Bench) -> None:
    model = await bench.model("a")
    model.delay = 0.3
    await bench.picker()
    client = await bench.client(await bench.envoy())
    response = await client.post(CHAT, content=b"x", headers={"x-envoy-upstream-rq-timeout-ms": "50"})
    assert response.status_code == 200


async def test_an_error_of_the_picker_costs_the_choice_and_ejects_nobody(bench: Bench) -> None:
    model = await bench.model("a")
    picker = await bench.picker(Script(fail=grpc.StatusCode.INTERNAL))
    client = await bench.client(await bench.envoy())
    for count in range(1, 6):
        assert (await client.post(CHAT, content=b"x")).status_code == 200
        assert len(picker.conversations) == count
    assert len(model.received) == 5


async def test_without_any_picker_requests_go_round_robin(bench: Bench) -> None:
    for name in "abc":
        await bench.model(name)
    bench.address()
    bench.address()
    client = await bench.client(await bench.envoy())
    served: Counter[str] = Counter()
    for _ in range(6):
        served[(await client.post(CHAT, content=b"x")).headers["x-served-by"]] += 1
        served[(await client.get("/v1/models")).headers["x-served-by"]] += 1
    assert served == {"a": 4, "b": 4, "c": 4}


async def test_without_any_picker_a_dead_server_costs_no_request(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    bench.endpoints([bench.dead(), *(m.authority for m in models)])
    bench.address()
    client = await bench.client(await bench.envoy())
    responses = [await client.post(CHAT, content=b"x") for _ in range(12)]
    assert Counter(r.status_code for r in responses) == {200: 12}
