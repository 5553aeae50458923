"""Requests through Envoy and picker to the endpoint that the picker named, whatever their form."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from anthropic import AsyncAnthropic
from anthropic.types import MessageParam, ToolParam
from openai import AsyncOpenAI

from pointsman.local.stack import LocalStack
from tests.protocol.system.conftest import decision
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"
HELLO: list[MessageParam] = [{"role": "user", "content": "Hello"}]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
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
    for number in range(6):
        body = CHAT | {"messages": [{"role": "system", "content": prefix}, {"role": "user", "content": str(number)}]}
        response = await client.post("/v1/chat/completions", json=body)
        for picker in stack.pickers:
            answer = await picker.get("/debug/decisions?limit=1000")
            if any(one["request_id"] == response.headers["x-request-id"] for one in answer.json()["decisions"]):
                served.setdefault(picker.name, set()).add(response.headers["x-simulator-endpoint"])
        await asyncio.sleep(0.15)  # the next scrape sees an idle server again
    assert served
    assert all(len(endpoints) == 1 for endpoints in served.values()), served


@pytest_asyncio.fixture(loop_scope="module")
async def anthropic(client: httpx.AsyncClient) -> AsyncIterator[AsyncAnthropic]:
    async with AsyncAnthropic(base_url=str(client.base_url), api_key="none", max_retries=0) as opened:
        yield opened


async def test_a_message_reaches_the_endpoint_that_the_picker_named(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    raw = await anthropic.messages.with_raw_response.create(model="base", messages=HELLO, max_tokens=6)
    made = await decision(stack.pickers, raw.headers["x-request-id"])
    assert raw.headers["x-simulator-endpoint"] == made["endpoint"].removeprefix("default/")
    assert made["model"] == "base"
    answer = await raw.parse()
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "base")
    [block] = answer.content
    assert block.type == "text"
    assert block.text
    assert answer.usage.output_tokens == 6


async def test_a_conversation_with_system_prompt_tools_and_blocks_of_every_kind(
    stack: LocalStack, anthropic: AsyncAnthropic
) -> None:
    tool: ToolParam = {
        "name": "set_points",
        "description": "Sets a pair of points",
        "input_schema": {"type": "object", "properties": {"to": {"type": "string"}}},
    }
    turns: list[MessageParam] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Which way does this go?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I'll set it."},
                {"type": "tool_use", "id": "toolu_1", "name": "set_points", "input": {"to": "left"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "locked"}]},
                {"type": "text", "text": "And now?", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    counted = await anthropic.messages.count_tokens(model="base", system="Be brief.", messages=turns, tools=[tool])
    async with anthropic.messages.stream(
        model="base",
        system=[{"type": "text", "text": "Be brief."}],
        messages=turns,
        tools=[tool],
        tool_choice={"type": "auto"},
        max_tokens=6,
    ) as stream:
        answer = await stream.get_final_message()
        made = await decision(stack.pickers, stream.response.headers["x-request-id"])
    usage = answer.usage
    assert answer.stop_reason == "max_tokens"
    assert usage.output_tokens == 6
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    # the prompt as the picker has it: tools, system prompt, and every turn
    assert made["prompt_bytes"] > sum(map(len, (str(tool), "Be brief.", "Which way does this go?", "locked")))


BAD = [
    (b"", "body"),
    (b"no json at all", "JSON"),
    (b"[1, 2]", "object"),
    (b'{"messages": [{"role": "user", "content": "x"}]}', "model"),
    (b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}', "model"),
    (b'{"model": "base"}', "messages"),
    (b'{"model": "base", "messages": "x"}', "messages"),
    (b'{"model": "base", "messages": ' + b"[" * 100_000, "messages"),
    (b'{"model": "\xff\xfe", "messages": []}', ""),
]


async def test_a_bad_body_is_a_400_that_says_why(client: httpx.AsyncClient) -> None:
    for body, says in BAD:
        response = await client.post(PATH, content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text
        assert response.headers["content-type"] == "application/json"
        error = response.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert says.lower() in error["message"].lower()


async def test_a_body_above_the_limit_is_a_413(stack: LocalStack) -> None:
    head, body, _ = await _upload(stack, pieces=25 * 16, declared=True)
    assert head.startswith("HTTP/1.1 413"), head
    error = json.loads(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert "25165824" in error["message"]


async def test_an_endless_body_is_cut_off(stack: LocalStack) -> None:
    """Nobody collects for ever; who buffers the body answers, Envoy or the picker, and both in the same form."""
    head, body, sent = await _upload(stack, pieces=4096, declared=False)
    assert head.startswith("HTTP/1.1 413"), head
    assert "\r\ncontent-type: application/json\r\n" in head
    error = json.loads(body)["error"]
    assert error.pop("message") in ("Payload Too Large", "the body is larger than the limit of 25165824 bytes")
    assert error == {"type": "invalid_request_error", "param": None, "code": 413}
    assert sent < 4096


async def _upload(stack: LocalStack, *, pieces: int, declared: bool) -> tuple[str, str, int]:
    """Send a body of up to so many 64 KiB pieces, until there is an answer: (its head, its body, pieces sent).

    `declared` says with content-length, else chunked. Client libraries give up when the server closes while they
    write; this one reads while it writes.
    """
    url = httpx.URL(stack.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    length = f"content-length: {pieces * 2**16}" if declared else "transfer-encoding: chunked"
    writer.write(f"POST {PATH} HTTP/1.1\r\nhost: test\r\n{length}\r\n\r\n".encode())
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    sent = 0
    while sent < pieces and not answer.done():
        piece = b"x" * 2**16
        writer.write(piece if declared else b"%x\r\n%s\r\n" % (len(piece), piece))
        try:
            await writer.drain()
        except ConnectionError:
            break  # the answer, if there is one, came before
        sent += 1
        await asyncio.sleep(0.002)  # a client that writes on while it is answered gets a reset, and may lose the answer
    head = (await asyncio.wait_for(answer, TIMEOUT)).decode()
    size = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length:" in line), 0)
    body = (await reader.readexactly(size)).decode()
    writer.close()
    return head, body, sent
