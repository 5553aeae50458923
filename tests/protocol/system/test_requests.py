"""Requests through Envoy and picker to the endpoint that the picker named, whatever their form."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError

from pointsman.local.stack import LocalStack
from tests.protocol.system.conftest import decision

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"model": "base", "messages": [{"role": "user", "content": "Name a signal box."}], "max_tokens": 8}


async def _named(stack: LocalStack, response: httpx.Response) -> str:
    """The endpoint that the picker named for a response's request."""
    made = await decision(stack.pickers, response.headers["x-request-id"])
    return str(made["endpoint"]).removeprefix("default/")


async def test_chat_reaches_the_endpoint_that_the_picker_named(stack: LocalStack, openai: AsyncOpenAI) -> None:
    async with openai:
        raw = await openai.chat.completions.with_raw_response.create(
            model="base", messages=[{"role": "user", "content": "Hello"}], max_tokens=6
        )
    made = await decision(stack.pickers, raw.headers["x-request-id"])
    assert raw.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6


async def test_a_streamed_chat_arrives_event_by_event(stack: LocalStack, openai: AsyncOpenAI) -> None:
    async with openai:
        stream = await openai.chat.completions.create(
            model="base",
            messages=[{"role": "user", "content": "Hello"}],
            max_tokens=6,
            stream=True,
            stream_options={"include_usage": True},
        )
        events = [event async for event in stream]
    assert "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 6


async def test_a_completion_and_a_streamed_one(openai: AsyncOpenAI) -> None:
    async with openai:
        whole = await openai.completions.create(model="other", prompt="A signal", max_tokens=5)
        stream = await openai.completions.create(model="other", prompt="A signal", max_tokens=5, stream=True)
        streamed = "".join([event.choices[0].text async for event in stream if event.choices])
    assert whole.model == "other"
    assert whole.choices[0].text
    assert streamed == whole.choices[0].text


async def test_a_response_and_a_streamed_one(stack: LocalStack, openai: AsyncOpenAI) -> None:
    async with openai:
        raw = await openai.responses.with_raw_response.create(
            model="base", instructions="Be brief.", input="A signal", max_output_tokens=5
        )
        stream = await openai.responses.create(
            model="base",
            instructions="Be brief.",
            input=[{"role": "user", "content": [{"type": "input_text", "text": "A signal"}]}],
            max_output_tokens=5,
            stream=True,
        )
        events = [event async for event in stream]
    made = await decision(stack.pickers, raw.headers["x-request-id"])
    assert raw.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    assert made["prompt_bytes"] > len("Be brief.A signal")
    whole = raw.parse()
    assert whole.output_text
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text


async def test_embeddings_and_the_list_of_models(openai: AsyncOpenAI) -> None:
    async with openai:
        vector = (await openai.embeddings.create(model="base", input="points")).data[0].embedding
        models = [model.id async for model in openai.models.list()]
    assert vector
    assert models == ["base", "other"]


async def test_the_client_library_shows_errors_as_its_own_types(openai: AsyncOpenAI) -> None:
    async with openai:
        with pytest.raises(BadRequestError, match="messages"):
            await openai.chat.completions.create(model="base", messages=[])
        with pytest.raises(NotFoundError, match="nothing-of-that-name"):
            await openai.chat.completions.create(
                model="nothing-of-that-name", messages=[{"role": "user", "content": "Hello"}]
            )
        with pytest.raises(NotFoundError, match="nothing-of-that-name"):
            await openai.responses.create(model="nothing-of-that-name", input="Hello")


async def test_a_body_arrives_byte_for_byte(stack: LocalStack, client: httpx.AsyncClient) -> None:
    """Order of keys, white space, escapes and numbers beyond 2^53 are the client's business."""
    body = (
        b'{ "messages" : [ {"role":"user","content":"caf\\u00e9 \\/ <&>"} ],\n\t"seed":9007199254740993,"model":"base",'
    )
    body += b'"max_tokens":2, "temperature":1e-3 }'
    response = await client.post(
        "/v1/chat/completions",
        content=body,
        headers={"content-type": "application/json", "x-simulator-echo": "true"},
    )
    assert response.status_code == 200, response.text
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(body).hexdigest()
    assert response.headers["x-simulator-endpoint"] == await _named(stack, response)


async def test_a_body_that_no_parser_knows_passes_through(stack: LocalStack, client: httpx.AsyncClient) -> None:
    body = bytes(range(256)) * 8
    response = await client.post("/echo", content=body)
    assert response.content == body
    assert response.headers["x-simulator-endpoint"] == await _named(stack, response)


async def test_a_body_of_4_mb(stack: LocalStack, client: httpx.AsyncClient) -> None:
    """Read by the parser, hashed for the prefix index, and untouched at the server, which finds the prompt too long."""
    body = _long_chat(4_100_000)
    response = await client.post("/v1/chat/completions", content=body, headers={"x-simulator-echo": "true"})
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(body).hexdigest()
    assert "context length" in response.json()["error"]["message"]
    made = await decision(stack.pickers, response.headers["x-request-id"])
    assert response.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    assert made["model"] == "base"
    assert made["prompt_bytes"] > 4_000_000


async def test_a_body_of_300_kb_in_many_chunks(stack: LocalStack, client: httpx.AsyncClient) -> None:
    body = _long_chat(310_000)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 997):
            yield body[start : start + 997]

    response = await client.post("/v1/chat/completions", content=chunks(), headers={"x-simulator-echo": "true"})
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(body).hexdigest()
    made = await decision(stack.pickers, response.headers["x-request-id"])
    assert response.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    assert made["prompt_bytes"] > 300_000


def _long_chat(size: int) -> bytes:
    return json.dumps(CHAT | {"messages": [{"role": "user", "content": "signal " * (size // 7)}]}).encode()


async def test_control_headers_of_the_client_neither_steer_nor_reach_the_server(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    response = await client.post(
        "/v1/chat/completions",
        json=CHAT,
        headers={
            "x-gateway-destination-endpoint": "127.0.0.1:1",
            "x-gateway-inference-objective": "mine",
            "x-tag": "kept",
            "x-simulator-echo": "true",
        },
    )
    assert response.status_code == 200, response.text
    received = json.loads(response.headers["x-simulator-headers"])
    names = {name.lower(): value for name, value in (received.items() if isinstance(received, dict) else received)}
    assert names["x-tag"] == "kept"
    assert "x-gateway-inference-objective" not in names
    assert "127.0.0.1:1" not in names.get("x-gateway-destination-endpoint", "")
    assert (await decision(stack.pickers, response.headers["x-request-id"]))["objective"] == "mine"


async def test_a_client_that_leaves_in_the_middle_of_a_stream_leaves_no_load(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    """The fixture checks that nothing is in flight afterwards, here that something was."""
    body = CHAT | {"stream": True, "max_tokens": 30_000, "ignore_eos": True}
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        arriving = response.aiter_bytes()  # kept: an iterator that is let go of closes the connection
        assert await anext(arriving)
        loads = [sum(one["inflight"]["own_requests"] for one in (await p.state())["endpoints"]) for p in stack.pickers]
        assert sum(loads) == 1


async def test_requests_with_one_long_prefix_go_to_one_endpoint(stack: LocalStack, client: httpx.AsyncClient) -> None:
    """Each picker keeps its own index here, so each may have an endpoint of its own."""
    served: dict[str, set[str]] = {}
    prefix = "You are a pointsman at a very busy junction. " * 60
    for number in range(12):
        body = CHAT | {"messages": [{"role": "system", "content": prefix}, {"role": "user", "content": str(number)}]}
        response = await client.post("/v1/chat/completions", json=body)
        for picker in stack.pickers:
            answer = await picker.get("/debug/decisions?limit=1000")
            if any(one["request_id"] == response.headers["x-request-id"] for one in answer.json()["decisions"]):
                served.setdefault(picker.name, set()).add(response.headers["x-simulator-endpoint"])
        await asyncio.sleep(0.15)  # the next scrape sees an idle server again
    assert served
    assert all(len(endpoints) == 1 for endpoints in served.values()), served


async def test_several_metrics_dialects_in_one_pool(stack: LocalStack) -> None:
    """Two vLLM servers and an SGLang one, all scraped by one configuration."""

    async def fresh() -> bool:
        endpoints = (await stack.pickers[0].state())["endpoints"]
        return all(one["age"] < 2.0 for endpoint in endpoints for one in endpoint["attributes"].values())

    async with asyncio.timeout(20.0):
        while not await fresh():  # noqa: ASYNC110 - only asking tells
            await asyncio.sleep(0.05)
    for endpoint in (await stack.pickers[0].state())["endpoints"]:
        names = {name.partition("/")[0] for name in endpoint["attributes"]}
        assert {"WaitingQueueSize", "RunningRequestsSize", "KVCacheUsagePercent"} <= names, endpoint["id"]
