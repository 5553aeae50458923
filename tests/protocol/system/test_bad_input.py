"""What clients can send that nobody can serve: a clear 4xx in OpenAI's form, and the pickers go on."""

import asyncio
import json
import os

import httpx
import pytest

from pointsman.local.stack import LocalStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        pytest.param(b"", "body", id="empty"),
        pytest.param(b"no json at all", "JSON", id="not JSON"),
        pytest.param(b"[1, 2]", "object", id="no object"),
        pytest.param(b'{"messages": [{"role": "user", "content": "x"}]}', "model", id="no model"),
        pytest.param(b'{"model": 7, "messages": [{"role": "user", "content": "x"}]}', "model", id="model is a number"),
        pytest.param(b'{"model": "base"}', "messages", id="no messages"),
        pytest.param(b'{"model": "base", "messages": "x"}', "messages", id="messages is a string"),
        pytest.param(b'{"model": "base", "messages": ' + b"[" * 100_000, "messages", id="deep nesting"),
        pytest.param(b'{"model": "\xff\xfe", "messages": []}', "", id="invalid UTF-8"),
    ],
)
async def test_a_bad_body_is_a_400_that_says_why(client: httpx.AsyncClient, body: bytes, says: str) -> None:
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
    head = (await asyncio.wait_for(answer, 10)).decode()
    size = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if "content-length:" in line), 0)
    body = (await reader.readexactly(size)).decode()
    writer.close()
    return head, body, sent


async def test_the_pickers_go_on_and_keep_their_memory(stack: LocalStack, client: httpx.AsyncClient) -> None:
    before = [_rss(picker.pid) for picker in stack.pickers]
    for _ in range(20):
        response = await client.post(PATH, content=b"x" * (20 * 2**20))
        assert response.status_code == 400
    after = [_rss(picker.pid) for picker in stack.pickers]
    assert all(now - then < 300 * 2**20 for then, now in zip(before, after, strict=True)), (before, after)
    for picker in stack.pickers:
        metrics = (await picker.metrics()).splitlines()
        crashes = [line for line in metrics if line.startswith("pointsman_task_crashes_total{")]
        assert [line for line in crashes if not line.endswith(" 0.0")] == []


def _rss(pid: int | None) -> int:
    """Bytes of memory that a process holds."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
