"""What clients can send that nobody can serve: a clear 4xx in OpenAI's form, and the pickers go on."""

import os
from collections.abc import AsyncIterator

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
        pytest.param(b'{"model": "base", "messages": ' + b"[" * 100_000, "JSON", id="deep nesting"),
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


async def test_a_body_above_the_limit_is_a_413(client: httpx.AsyncClient) -> None:
    response = await client.post(PATH, content=b"x" * (25 * 2**20))
    assert response.status_code == 413
    assert "25165824" in response.json()["error"]["message"]


async def test_an_endless_body_is_cut_off(client: httpx.AsyncClient) -> None:
    """Envoy or the picker answers, and somebody closes the connection; nobody collects for ever."""
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        piece = os.urandom(2**16)
        while sent < 256 * 2**20:
            sent += len(piece)
            yield piece

    try:
        response = await client.post(PATH, content=endless())
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        pass  # the connection was closed while we wrote
    else:
        assert response.status_code == 413
    assert sent < 256 * 2**20


async def test_the_pickers_go_on_and_keep_their_memory(stack: LocalStack, client: httpx.AsyncClient) -> None:
    before = [_rss(picker.pid) for picker in stack.pickers]
    for _ in range(20):
        await client.post(PATH, content=b"x" * (20 * 2**20))
    after = [_rss(picker.pid) for picker in stack.pickers]
    assert all(now - then < 300 * 2**20 for then, now in zip(before, after, strict=True)), (before, after)
    for picker in stack.pickers:
        assert "pointsman_task_crashes_total{" not in await picker.metrics()


def _rss(pid: int | None) -> int:
    """Bytes of memory that a process holds."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
