"""Requests through each gateway's form of Envoy, real pickers behind it, one endpoint named for each request."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.protocol.gateways.conftest import CHAT, ECHO, PATH, Pool, client_of, pool, received
from tests.protocol.gateways.forms import DESTINATION, FORMS, HINT_HEADER, HURRIED, hinted, hurried
from tests.waiting import TIMEOUT, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

REWRITTEN = "steady-and-longer"
STREAMING = ["envoy-ai-gateway", "istio", "kgateway"]
"""Those with bodies FULL_DUPLEX_STREAMED."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with pool(tmp_path_factory.mktemp("gateways"), endpoints=1) as started:
        yield started


async def _went_as_picked(of: Pool, response: httpx.Response) -> dict[str, Any]:
    """Fails unless the endpoint that answered is the one that was picked; the decision."""
    assert response.status_code == 200, response.text
    made = await of.decided(response)
    assert made["endpoint"] == f"default/{response.headers['x-simulator-endpoint']}"
    return made


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_rewritten_model_is_the_server_s_and_the_client_reads_its_own(
    shared: Pool, client: httpx.AsyncClient, stream: bool
) -> None:
    body = json.dumps(CHAT | {"model": "assistant", "stream": stream}).encode()
    sent = {"content-type": "application/json", **ECHO}
    response = await client.post(PATH, content=body, headers=sent)
    await _went_as_picked(shared, response)
    arrived = body.replace(b"assistant", REWRITTEN.encode())
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(arrived).hexdigest()
    answers = _events(response) if stream else [response.json()]
    assert {answer["model"] for answer in answers} == {"assistant"}
    assert int(response.headers.get("content-length", len(response.content))) == len(response.content)


def _events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("form", STREAMING)
async def test_a_stream_arrives_while_it_is_made(form: str, client: httpx.AsyncClient) -> None:
    body = CHAT | {"stream": True, "max_tokens": 40_000, "ignore_eos": True}
    async with client.stream("POST", PATH, json=body) as response:
        arriving = response.aiter_bytes()  # kept: an iterator that is let go of closes the connection
        async with asyncio.timeout(TIMEOUT):
            assert (await anext(arriving)).startswith(b"data: ")


@pytest.mark.parametrize("form", STREAMING)
async def test_a_body_of_300_kb_in_chunks(form: str, shared: Pool, client: httpx.AsyncClient) -> None:
    long = CHAT | {"messages": [{"role": "user", "content": "signal " * 44_000}]}
    body = json.dumps(long).encode()
    assert len(body) > 300_000

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1499):
            yield body[start : start + 1499]

    response = await client.post(PATH, content=chunks(), headers=ECHO)
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(body).hexdigest(), response.text
    made = await shared.decided(response)
    assert made["endpoint"] == f"default/{response.headers['x-simulator-endpoint']}"
    assert made["prompt_bytes"] > 300_000


@pytest.mark.parametrize("form", ["envoy-ai-gateway-buffered"])
async def test_bodies_that_envoy_has_to_buffer_are_limited_by_its_connection_buffer(
    form: str, client: httpx.AsyncClient
) -> None:
    """Of 32 KiB, Envoy Gateway's default: for the request 413 in Envoy's words, for the response 500."""
    long = CHAT | {"messages": [{"role": "user", "content": "signal " * 6_000}]}
    assert (await client.post(PATH, json=long)).status_code == 413
    streamed = CHAT | {"stream": True, "max_tokens": 2_000, "ignore_eos": True}
    assert (await client.post(PATH, json=streamed)).status_code == 500


async def test_a_client_s_own_destination_does_not_steer(form: str, shared: Pool, client: httpx.AsyncClient) -> None:
    """Neither that of a live server, which would be an answer, nor two of them, nor one that leads out of the pool. The
    picker learns who served where the gateway tells it."""
    first, second, _ = shared.authorities
    served = []
    for wish in ([first], [first, second], ["127.0.0.1:1"]):
        for _ in range(4):
            headers = [*ECHO.items(), *((DESTINATION, address) for address in wish)]
            response = await client.post(PATH, json=CHAT, headers=headers)
            made = await _went_as_picked(shared, response)
            assert made["served_by"] == ("first choice" if form == "istio" else "unknown")
            served.append(made["endpoint"])
            shown = [value for name, value in received(response) if name == DESTINATION]
            assert len(shown) == 1
            assert shown[0] in shared.authorities
    assert len(set(served)) > 1


async def test_a_body_that_is_no_json_is_refused_in_the_picker_s_words(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, content=b"no json at all", headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert "JSON" in response.json()["error"]["message"]


@pytest.mark.parametrize(("form", "forwards"), [("envoy-ai-gateway", False), ("istio", False), ("kgateway", True)])
async def test_a_subset_hint_counts_where_the_gateway_forwards_its_namespace(
    shared: Pool, form: str, forwards: bool
) -> None:
    envoy = await shared.gateway(f"{form}-hinted", hinted(FORMS[form]()))
    chosen = shared.authorities[1]
    async with client_of(envoy) as http:
        served = set()
        for _ in range(8):
            response = await http.post(PATH, json=CHAT, headers={HINT_HEADER: chosen, **ECHO})
            served.add((await _went_as_picked(shared, response))["endpoint"])
        nobody = await http.post(PATH, json=CHAT, headers={HINT_HEADER: "127.0.0.1:1"})
    if forwards:
        assert served == {"default/model-2"}
        assert nobody.status_code == 503
        assert int(nobody.headers["retry-after"]) > 0
        assert "subset" in nobody.json()["error"]["message"]
    else:
        assert len(served) > 1
        assert nobody.status_code == 200


@pytest.mark.parametrize("form", STREAMING)
async def test_a_response_outlasts_every_timeout_of_the_conversation(shared: Pool, form: str) -> None:
    """Neither the gRPC service's time-out nor the message's ends a response that takes long, or that pauses: there is
    no message that waits for an answer. Asked again where the picker's answer to the request came too late, for that
    does end it."""
    envoy = await shared.gateway(f"{form}-hurried", hurried(FORMS[form]()))
    async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False) as http:
        for simulator in shared.stack.simulators:
            slow = {"inference": {"kind": "slow", "latency": 1.5 * HURRIED}}
            (await http.put(f"{simulator.url}/control/faults", json=slow)).raise_for_status()
        try:
            async with client_of(envoy) as client:
                body = CHAT | {"stream": True, "max_tokens": 900, "ignore_eos": True}
                answers: list[httpx.Response] = []

                async def answered() -> bool:
                    answers.append(await client.post(PATH, json=body))
                    return answers[-1].status_code == 200

                await eventually(answered, lambda: [answer.status_code for answer in answers])
        finally:
            for simulator in shared.stack.simulators:
                (await http.delete(f"{simulator.url}/control/faults")).raise_for_status()
    deltas = [event["choices"][0]["delta"] for event in _events(answers[-1])]
    assert len("".join(delta.get("content", "") for delta in deltas)) == 900 * 4
