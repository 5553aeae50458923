"""What deploy/envoy/standalone.yaml promises of destinations, fallbacks, bodies and limits, with the real Envoy."""

import asyncio
import os
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import grpc
import httpx
import pytest

from pointsman.local.envoy import STANDALONE
from tests.protocol.envoy.conftest import Bench, Pool
from tests.protocol.envoy.standin import DESTINATION, Script
from tests.soak.promises import soaking
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"


async def by(pool: Pool, requests: int = 6) -> Counter[str]:
    """Who serves so many requests."""
    responses = [await pool.client.post(CHAT, content=b"hello") for _ in range(requests)]
    assert {(response.status_code, response.content) for response in responses} == {(200, b"hello")}
    return Counter(response.headers["x-served-by"] for response in responses)


async def test_dead_choices_are_passed_over_in_order_and_the_picker_learns_who_served(pool: Pool) -> None:
    """One of them isn't even in the endpoints' file."""
    last = pool.models[2].authority
    stranger = last.replace("127.0.0.1", "127.0.0.2")
    pool.picker.script = Script(destinations=[stranger, *pool.dead, last])
    assert await by(pool) == {"c": 6}
    assert {(conversation.served, conversation.served_metadata) for conversation in pool.picker.conversations} == {
        (last, last)
    }


async def test_a_request_on_which_servers_crash_reaches_at_most_three(pool: Pool) -> None:
    servers = [*pool.models, await pool.bench.model("d")]
    pool.bench.endpoints([model.authority for model in servers])
    try:
        await eventually(pool.follows)
        pool.reset()
        for model in servers:
            model.reset = True
        pool.picker.script = Script(destinations=[model.authority for model in servers])
        assert (await pool.client.post(CHAT, content=b"x")).status_code == 503
        assert [len(model.received) for model in servers] == [1, 1, 1, 0]
    finally:
        pool.reset()
        pool.models.remove(servers[-1])
        pool.endpoints()
        await eventually(pool.follows)


async def test_when_all_choices_are_dead_another_server_takes_the_request(pool: Pool) -> None:
    pool.picker.script = Script(destinations=pool.dead)
    assert set(await by(pool)) <= {"a", "b", "c"}
    assert {conversation.served for conversation in pool.picker.conversations} <= {
        server.authority for server in pool.models
    }


async def test_a_4_mb_body_passes_a_dead_first_choice_byte_for_byte(pool: Pool) -> None:
    body, model = os.urandom(4_000_000), pool.models[0]
    pool.picker.script = Script(destinations=[pool.dead[0], model.authority])
    response = await pool.client.post(CHAT, content=body)
    assert response.status_code == 200
    assert model.received[-1].body == response.content == body


@pytest.mark.parametrize(
    ("status", "reset", "served"),
    [
        pytest.param(503, False, (200, "b"), id="says 503"),
        pytest.param(200, True, (200, "b"), id="dies before it answers"),
        pytest.param(500, False, (500, "a"), id="an error of its own"),
    ],
)
async def test_a_server_that_cant_is_passed_over_and_one_that_fails_is_heard(
    pool: Pool, status: int, reset: bool, served: tuple[int, str]
) -> None:
    pool.models[0].status, pool.models[0].reset = status, reset
    pool.picker.script = Script(destinations=[server.authority for server in pool.models])
    response = await pool.client.post(CHAT, content=b"x")
    assert (response.status_code, response.headers["x-served-by"]) == served


async def test_sixty_requests_at_once_survive_a_dead_first_choice(pool: Pool) -> None:
    """Envoy's default allows three retries at a time; the others would get 503."""
    pool.picker.script = Script(destinations=[pool.dead[0], pool.models[0].authority])
    responses = await asyncio.gather(*(pool.client.post(CHAT, content=b"x") for _ in range(60)))
    assert Counter(r.status_code for r in responses) == {200: 60}


@pytest.mark.soak
async def test_more_than_1024_responses_may_run_at_once(pool: Pool) -> None:
    """Each keeps a stream to the picker open; Envoy's default allows 1 024 a cluster."""
    async with httpx.AsyncClient(base_url=pool.envoy.admin_url, trust_env=False, timeout=TIMEOUT) as admin:
        clusters = (await admin.get("/clusters")).text
    limits = re.findall(r"^(model-servers|pickers)::default_priority::max_\w+::(\d+)$", clusters, re.MULTILINE)
    assert {name for name, _ in limits} == {"model-servers", "pickers"}
    assert all(int(limit) > 10_000 for _, limit in limits)

    async def one(client: aiohttp.ClientSession) -> int:
        async with client.post(f"{pool.envoy.url}/stream", data=b"x") as response:
            await response.read()
            return response.status

    streams = 1100 if soaking() else 50
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client:
        requests = [asyncio.create_task(one(client)) for _ in range(streams)]
        await eventually(lambda: pool.picker.open == streams)
        pool.models[0].release.set()
        assert Counter(await asyncio.gather(*requests)) == {200: streams}


async def test_headers_by_which_a_client_would_steer_envoy_are_dropped(pool: Pool) -> None:
    pool.picker.script = Script(destinations=[])
    wish = {DESTINATION: pool.models[0].authority, "x-envoy-upstream-rq-timeout-ms": "50"}
    for model in pool.models:
        model.delay = 0.2
    responses = [await pool.client.post(CHAT, content=b"x", headers=wish) for _ in range(6)]
    assert {response.status_code for response in responses} == {200}
    assert {response.headers["x-served-by"] for response in responses} == {"a", "b", "c"}
    assert all(DESTINATION not in conversation.headers for conversation in pool.picker.conversations)
    assert all(not answer.header(DESTINATION) for model in pool.models for answer in model.received)


async def test_the_client_s_request_id_stays_and_every_response_has_one(pool: Pool) -> None:
    named = await pool.client.post(CHAT, content=b"x", headers={"x-request-id": "mine"})
    assert (named.headers["x-request-id"], pool.picker.last.headers["x-request-id"]) == ("mine", "mine")
    other = await pool.client.post(CHAT, content=b"x")
    assert other.headers["x-request-id"] == pool.picker.last.headers["x-request-id"] != "mine"


async def test_an_error_of_the_picker_costs_the_choice_and_ejects_nobody(pool: Pool) -> None:
    pool.picker.script = Script(fail=grpc.StatusCode.INTERNAL)
    assert (await by(pool, 5)).total() == len(pool.picker.conversations) == 5


async def test_endpoints_that_a_rename_brings_are_used_and_envoy_s_own_503_is_the_api_s_error(pool: Pool) -> None:
    pool.bench.endpoints([pool.models[1].authority])
    try:

        async def served() -> set[str]:
            return set(await by(pool, 2))

        async def refused() -> bool:
            return (await pool.client.post(CHAT, content=b"x")).status_code == 503

        async def only_b() -> bool:
            return await served() == {"b"}

        await eventually(only_b, "the one that is left")
        pool.bench.endpoints([pool.dead[0]])
        await eventually(refused, "nobody is left")
        response = await pool.client.post(CHAT, content=b"x")
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("service_unavailable", None, 503)
        assert "upstream connect error" in error["message"]
        for path in ("/v1/messages", "/v1/messages/count_tokens?beta=true"):
            response = await pool.client.post(path, content=b"x")
            assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
            document = response.json()
            assert (document["type"], document["error"]["type"]) == ("error", "overloaded_error")
            assert "upstream connect error" in document["error"]["message"]
        response = await pool.client.post(CHAT, content=b"x", headers={"content-type": "application/grpc"})
        assert response.headers["grpc-status"] == "14"
        assert response.headers["grpc-message"].startswith("upstream connect error")
    finally:
        pool.endpoints()
        await eventually(pool.follows)


async def test_a_pick_on_ipv6_is_reached(bench: Bench) -> None:
    await bench.model("a")
    try:
        six = await bench.model("six", host="::1")
    except OSError as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    picker = await bench.picker(Script(destinations=[six.authority]))
    client = await bench.client(await bench.envoy())
    assert {(await client.post(CHAT, content=b"x")).headers["x-served-by"] for _ in range(6)} == {"six"}
    assert picker.last.served == six.authority


async def test_a_server_that_helps_others_gets_what_is_sent_to_it_and_nothing_else(bench: Bench) -> None:
    model, helper = await bench.model("a"), await bench.model("helper")
    bench.endpoints([model.authority, bench.dead()], [helper.authority])
    picker = await bench.picker(Script(destinations=[helper.authority]))
    client = await bench.client(await bench.envoy())
    assert (await client.post(CHAT, content=b"x")).headers["x-served-by"] == "helper"
    picker.script = Script(destinations=[bench.dead()])
    assert {(await client.post(CHAT, content=b"x")).headers["x-served-by"] for _ in range(6)} == {"a"}


async def test_without_any_picker_requests_go_round_robin_and_a_dead_server_costs_none(bench: Bench) -> None:
    models = [await bench.model(name) for name in "ab"]
    helper = await bench.model("helper")
    bench.endpoints([bench.dead(), *(m.authority for m in models)], [helper.authority])
    bench.address()
    bench.address()
    client = await bench.client(await bench.envoy())
    responses = [await client.post(CHAT, content=b"x") for _ in range(6)]
    responses += [await client.get("/v1/models") for _ in range(6)]
    assert Counter(r.status_code for r in responses) == {200: 12}
    assert {r.headers["x-served-by"] for r in responses} == {m.name for m in models}


def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()  # Envoy may have closed it


async def test_bodies_that_nobody_finishes_cost_new_requests_and_no_more_memory(bench: Bench, tmp_path: Path) -> None:
    """Two gigabytes would take long to fill."""
    model = await bench.model("a")
    (await bench.picker()).script = Script(destinations=[model.authority])
    small = tmp_path / "small-heap.yaml"
    small.write_text(STANDALONE.read_text().replace("max_heap_size_bytes: 2147483648", "max_heap_size_bytes: 80000000"))
    envoy = await bench.envoy(small)
    client, port = await bench.client(envoy), httpx.URL(envoy.url).port
    unfinished = f"POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-length: 8000000\r\n\r\n".encode() + b"a" * 7_000_000
    with ExitStack() as stack:
        for _ in range(30):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(_abort, writer)
            writer.write(unfinished)

        async def refused() -> bool:
            response = await client.post(CHAT, content=b"hello")
            return response.status_code == 503 and response.json()["error"]["type"] == "service_unavailable"

        await eventually(refused, "the limit")

    async def served() -> bool:
        return (await client.post(CHAT, content=b"hello")).status_code == 200

    await eventually(served, "the clients have gone")
