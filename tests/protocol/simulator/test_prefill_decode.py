"""A prefill server, a decode server and the sidecar before it: who computes what, and what happens to errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from services.simulator.app import Simulator
from services.simulator.faults import Fail, Hang
from tests.protocol.simulator.conftest import FAST
from tests.waiting import eventually

PROMPT = "Which way to the depot? " * 100
TOKENS = len(PROMPT) // 4
CHAT: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT | {"ignore_eos": True},
    "/v1/completions": {"model": "base", "prompt": PROMPT, "max_tokens": 8, "ignore_eos": True},
    "/v1/responses": {"model": "base", "input": PROMPT, "max_output_tokens": 8, "ignore_eos": True},
    "/v1/messages": CHAT | {"ignore_eos": True},
}


@pytest.fixture
async def prefill() -> AsyncIterator[Simulator]:
    async with Simulator(replace(FAST, name="prefill")) as running:
        yield running


@pytest.fixture
async def decode() -> AsyncIterator[Simulator]:
    async with Simulator(replace(FAST, name="decode", sidecar=True)) as running:
        yield running


@pytest.fixture
async def client(decode: Simulator) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=decode.url, timeout=60) as each:
        yield each


def at(server: Simulator) -> dict[str, str]:
    return {"x-prefiller-host-port": server.authority}


def computed(server: Simulator) -> int:
    """Prompt tokens that it has computed itself."""
    return round(server.server.engine.counters.prefill_computed.sum)


@pytest.mark.parametrize("path", list(BODIES))
async def test_the_named_server_computes_the_prompt_and_the_other_one_answers(
    path: str, prefill: Simulator, decode: Simulator, client: httpx.AsyncClient
) -> None:
    alone = (await client.post(path, json=BODIES[path])).json()
    first = computed(decode)
    assert first >= TOKENS
    answer = await client.post(path, json=BODIES[path], headers=at(prefill))
    assert answer.status_code == 200
    assert (answer.headers["x-simulator-endpoint"], answer.headers["x-simulator-prefill"]) == ("decode", "prefill")
    assert text_of(answer.json()) == text_of(alone)
    assert "kv_transfer_params" not in answer.json()
    assert (prefill.server.counts.prefills, decode.server.counts.prefilled) == (1, 1)
    assert prefill.server.engine.counters.generation_tokens == 1
    assert computed(prefill) == first


def text_of(answer: dict[str, Any]) -> str:
    """What the model says, in any of the APIs."""
    return json.dumps([answer.get(name) for name in ("choices", "content")]) + json.dumps(
        [item["content"] for item in answer.get("output", [])]
    )


async def test_the_decode_server_computes_only_the_last_token_and_has_the_prompt_afterwards(
    prefill: Simulator, decode: Simulator, client: httpx.AsyncClient
) -> None:
    path = "/v1/completions"
    answer = await client.post(path, json=BODIES[path], headers=at(prefill))
    assert computed(decode) == 1
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = await client.post(path, json=BODIES[path])
    assert again.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > TOKENS - FAST.block_tokens - 1
    third = await client.post(path, json=BODIES[path], headers=at(prefill))
    assert third.json()["usage"]["prompt_tokens_details"]["cached_tokens"] > TOKENS - FAST.block_tokens - 1, (
        "the usage is that of the prefill"
    )


async def test_a_stream_is_the_decode_servers_alone(prefill: Simulator, client: httpx.AsyncClient) -> None:
    path = "/v1/chat/completions"
    body = BODIES[path] | {"stream": True, "stream_options": {"include_usage": True}}
    answer = await client.post(path, json=body, headers=at(prefill))
    assert answer.text.endswith("data: [DONE]\n\n")
    assert '"completion_tokens":8' in answer.text
    assert prefill.server.counts.prefills == 1


@pytest.mark.parametrize(
    ("path", "headers"), [("/v1/completions", {}), ("/v1/completions", {"x-prefiller-host-port": ""})]
)
async def test_without_the_header_the_decode_server_does_everything(
    path: str, headers: dict[str, str], decode: Simulator, client: httpx.AsyncClient
) -> None:
    assert (await client.post(path, json=BODIES[path], headers=headers)).status_code == 200
    assert decode.server.counts.prefilled == 0


async def test_of_several_servers_the_first_is_asked(prefill: Simulator, client: httpx.AsyncClient) -> None:
    path = "/v1/completions"
    headers = {"x-prefiller-host-port": f"{prefill.authority}, 127.0.0.1:1"}
    assert (await client.post(path, json=BODIES[path], headers=headers)).status_code == 200


async def test_a_server_that_is_gone_is_a_502(decode: Simulator, client: httpx.AsyncClient) -> None:
    path = "/v1/completions"
    answer = await client.post(path, json=BODIES[path], headers={"x-prefiller-host-port": "127.0.0.1:1"})
    assert (answer.status_code, answer.content) == (502, b"")
    assert decode.server.counts.prefill_failures == 1
    assert decode.server.counts.models == {}, "the decode server hasn't seen it"


async def test_an_error_of_the_prefill_is_the_clients(prefill: Simulator, client: httpx.AsyncClient) -> None:
    prefill.server.set_fault("inference", Fail(status=503))
    answer = await client.post("/v1/completions", json=BODIES["/v1/completions"], headers=at(prefill))
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "A test has set this fault."


async def test_a_body_that_is_no_object_goes_nowhere(prefill: Simulator, client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", content=b"[1]", headers=at(prefill))
    assert answer.status_code == 400
    assert prefill.server.counts.requests == 0


async def test_a_server_without_a_sidecar_reads_no_header(prefill: Simulator) -> None:
    async with httpx.AsyncClient(base_url=prefill.url, timeout=60) as client:
        headers = {"x-prefiller-host-port": "127.0.0.1:1"}
        assert (await client.post("/v1/completions", json=BODIES["/v1/completions"], headers=headers)).is_success


async def test_a_client_that_leaves_ends_the_prefill(
    prefill: Simulator, decode: Simulator, client: httpx.AsyncClient
) -> None:
    prefill.server.set_fault("inference", Hang())
    asking = asyncio.create_task(client.post("/v1/completions", json=BODIES["/v1/completions"], headers=at(prefill)))
    await eventually(lambda: prefill.server.counts.requests == 1)
    asking.cancel()
    await eventually(lambda: prefill.server.counts.aborted == 1 and decode.server.counts.aborted == 1)
