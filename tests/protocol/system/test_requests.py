"""Requests through Envoy and picker to the endpoint that the picker named, whatever their form."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterable
from itertools import repeat
from typing import Any

import httpx
import pytest

from pointsman.local.envoy import STANDALONE
from pointsman.local.stack import LocalStack
from services.picker.parsers.json_counts import MAX_DECODED
from tests.protocol.system.conftest import decision
from tests.waiting import TIMEOUT

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMIT = 16 * 2**20
"""Bytes of a body that pickers take, and Envoy keeps, by default."""
CHAT = "/v1/chat/completions"
TEXT = "Name a signal box."
ASKED = [{"role": "user", "content": TEXT}]
APIS: dict[str, dict[str, Any]] = {
    CHAT: {"messages": ASKED, "max_tokens": 6},
    "/v1/completions": {"prompt": TEXT, "max_tokens": 6},
    "/v1/responses": {"instructions": "Be brief.", "input": TEXT, "max_output_tokens": 6},
    "/v1/messages": {"system": "Be brief.", "messages": ASKED, "max_tokens": 6},
    "/v1/embeddings": {"input": TEXT},
}


async def went_as_picked(stack: LocalStack, response: httpx.Response) -> dict[str, Any]:
    """Fails unless the endpoint that answered is the one that the picker named; the decision."""
    made = await decision(stack.pickers, response.headers["x-request-id"])
    assert made["endpoint"] == f"default/{response.headers['x-simulator-endpoint']}"
    return made


@pytest.mark.parametrize("path", APIS)
async def test_a_request_of_every_api_goes_as_picked(stack: LocalStack, client: httpx.AsyncClient, path: str) -> None:
    for stream in (False, True)[: 1 if "embeddings" in path else 2]:
        response = await client.post(path, json={"model": "other", **APIS[path], "stream": stream})
        assert response.status_code == 200, response.text
        made = await went_as_picked(stack, response)
        assert made["model"] == "other"
        assert made["prompt_bytes"] >= len(TEXT)


async def test_a_request_without_a_body_goes_as_picked(stack: LocalStack, client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/models")
    assert [model["id"] for model in response.json()["data"]] == ["base", "other"]
    assert (await decision(stack.pickers, response.headers["x-request-id"]))["endpoint"]


def _chat(size: int) -> bytes:
    return json.dumps({"model": "base", "messages": [{"role": "user", "content": ("words " * size)[:size]}]}).encode()


BODIES = {
    "odd spelling": (  # order of keys, white space, escapes and numbers beyond 2^53 are the client's business
        b'{ "messages" : [ {"role":"user","content":"caf\\u00e9 \\/ <&>"} ],\n\t"seed":9007199254740993,"model":"base",'
        b'"max_tokens":2, "temperature":1e-3 }',
        0,
    ),
    "4 MB": (_chat(4_100_000), 0),
    "300 kB in many chunks": (_chat(310_000), 997),
}


@pytest.mark.parametrize("body", BODIES)
async def test_a_body_arrives_byte_for_byte(stack: LocalStack, client: httpx.AsyncClient, body: str) -> None:
    data, chunk = BODIES[body]

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), chunk):
            yield data[start : start + chunk]

    headers = {"content-type": "application/json", "x-simulator-echo": "true"}
    response = await client.post(CHAT, content=chunks() if chunk else data, headers=headers)
    assert response.headers["x-simulator-body-sha256"] == hashlib.sha256(data).hexdigest(), response.text
    made = await went_as_picked(stack, response)
    assert made["model"] == "base"
    assert made["prompt_bytes"] > min(len(data), MAX_DECODED) - 200


async def test_a_body_that_no_parser_knows_passes_through(stack: LocalStack, client: httpx.AsyncClient) -> None:
    body = bytes(range(256)) * 8
    response = await client.post("/echo", content=body)
    assert response.content == body
    await went_as_picked(stack, response)


async def test_control_headers_of_the_client_neither_steer_nor_reach_the_server(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    destination = "x-gateway-destination-endpoint"
    sent = {"x-gateway-inference-objective": "mine", "x-tag": "kept", "x-simulator-echo": "true"}
    headers = [(destination, "127.0.0.1:1"), (destination, "127.0.0.1:2"), *sent.items()]
    response = await client.post(CHAT, json={"model": "base", **APIS[CHAT]}, headers=headers)
    assert response.status_code == 200, response.text
    received = [(name.lower(), value) for name, value in json.loads(response.headers["x-simulator-headers"])]
    assert dict(received)["x-tag"] == "kept"
    assert "x-gateway-inference-objective" not in dict(received)
    assert not [value for name, value in received if name == destination and value in ("127.0.0.1:1", "127.0.0.1:2")]
    assert (await went_as_picked(stack, response))["objective"] == "mine"


async def test_a_client_that_leaves_in_the_middle_of_a_stream_leaves_no_load(
    stack: LocalStack, client: httpx.AsyncClient
) -> None:
    """The fixture checks that nothing is in flight afterwards, here that something was."""
    body = {"model": "base", "messages": ASKED, "stream": True, "max_tokens": 30_000, "ignore_eos": True}
    async with client.stream("POST", CHAT, json=body) as response:
        arriving = response.aiter_bytes()  # kept: an iterator that is let go of closes the connection
        assert await anext(arriving)
        loads = [
            sum(endpoint["inflight"]["own_requests"] for endpoint in (await p.state())["endpoints"])
            for p in stack.pickers
        ]
        assert sum(loads) == 1


async def _upload(stack: LocalStack, framing: str, pieces: Iterable[bytes]) -> tuple[int, dict[str, Any], int]:
    """Post a chat piece by piece until it is answered: the status, the answer where its length is said, and the number
    of pieces.

    Client libraries give up when the server closes while they write; this one reads while it writes."""
    url = httpx.URL(stack.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: test\r\n{framing}\r\n\r\n".encode())
    answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
    sent = 0
    for piece in pieces:
        if answer.done():
            break
        writer.write(piece)
        try:
            await writer.drain()
        except ConnectionError:
            break  # the answer, if there is one, came before
        sent += 1
        # a client that writes on while it is answered gets a reset, and may lose the answer
        await asyncio.wait({answer}, timeout=0.002 if sent * PIECE < LIMIT else 0.1)
    head = (await asyncio.wait_for(answer, TIMEOUT)).decode().lower()
    assert "\r\ncontent-type: application/json\r\n" in head
    size = next((int(line.split(":")[1]) for line in head.split("\r\n") if "content-length:" in line), 0)
    content = json.loads(await reader.readexactly(size) or "{}")
    writer.close()
    return int(head.split(" ", 2)[1]), content, sent


PIECE = 2**16
CHUNKED = "transfer-encoding: chunked"
LIMIT_IN_CHUNKS = 2**22
REFUSED = {"type": "invalid_request_error", "param": None, "code": 413}


@pytest.mark.parametrize("size", [limit + more for limit in (2**20, 2**22) for more in (-(2**16), -(2**16) + 1, 0, 1)])
@pytest.mark.parametrize("model", ["base", "other"])
async def test_a_body_near_the_limit_of_its_route_passes_also_with_a_longer_name_of_the_model(
    stack: LocalStack, size: int, model: str
) -> None:
    head = f"x-llm-d-model-name-rewrite: {model}\r\ncontent-length: {size}"
    status, answer, _ = await _upload(stack, head, [_picture(size - len(_picture(0)))])
    assert status == 200, answer


async def test_an_endless_body_is_cut_off(stack: LocalStack) -> None:
    """Who buffers the body answers, Envoy or the picker, and both in the same form."""
    status, answer, sent = await _upload(stack, CHUNKED, repeat(b"%x\r\n%s\r\n" % (PIECE, bytes(PIECE)), 4096))
    assert status == 413
    error = answer["error"]
    assert error.pop("message") in ("Payload Too Large", f"the body is larger than the limit of {LIMIT} bytes")
    assert error == REFUSED
    assert sent < 4096


@pytest.mark.parametrize("chunked", [False, True], ids=["of a known length", "in chunks"])
@pytest.mark.parametrize("more", [0, 1, PIECE, 16 * PIECE])
async def test_a_body_up_to_the_limit_passes_and_a_larger_one_is_413(
    stack: LocalStack, more: int, chunked: bool
) -> None:
    """Our Envoy keeps as much as pickers take, or a quarter: none is larger than gRPC takes, which would be nobody's to
    refuse."""
    limit = LIMIT_IN_CHUNKS if chunked and str(stack.plan.envoy).endswith(STANDALONE.name) else LIMIT
    body = _picture(limit - len(_picture(0)) + more)
    pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
    framing = f"content-length: {len(body)}"
    if chunked:
        pieces, framing = [b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""]], CHUNKED
    status, answer, _ = await _upload(stack, framing, pieces)
    assert status == (413 if more else 200), answer
    assert not more or REFUSED.items() <= answer["error"].items()


def _picture(size: int) -> bytes:
    url = "data:image/png;base64," + "A" * size
    content = [{"type": "image_url", "image_url": {"url": url}}]
    return json.dumps({"model": "base", "messages": [{"role": "user", "content": content}], "max_tokens": 1}).encode()
