"""What the console keeps for clients of its API."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fastapi import FastAPI
from starlette.types import Message

from services.console.api import IN_FULL, api_routes
from shared.bus.errors import NotConnected
from shared.service.admin import add_refusals

EXPLAIN = b'{"path": "/v1/completions", "picker": "p"}'


@pytest.mark.parametrize("path", ["/api/decisions/r", "/api/explain"])
async def test_few_decisions_in_full_wait_for_clients_that_read_slowly(path: str) -> None:
    asked: list[Any] = []

    async def of_request(request_id: str) -> tuple[list[bytes], list[str]]:
        asked.append(request_id)
        if len(asked) == 1:
            raise NotConnected("no NATS")
        return [b"{}"], []

    async def explained(picker: str, query: Any) -> bytes:
        asked.append(query)
        if len(asked) == 1:
            raise NotConnected("no NATS")
        return b"{}"

    decisions = SimpleNamespace(of_request=of_request, explain=explained, pickers=lambda: ["p"])
    app = FastAPI()
    add_refusals(app)
    app.include_router(api_routes(cast(Any, SimpleNamespace(decisions=decisions, reader=None))))
    reads, statuses = asyncio.Event(), list[int]()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        await reads.wait()

    async def request() -> None:
        body = [{"type": "http.request", "body": EXPLAIN, "more_body": False}]

        async def receive() -> Message:
            if not body:
                await asyncio.Event().wait()
            return body.pop()

        scope = {
            "type": "http",
            "asgi": {"spec_version": "2.4"},
            "method": "POST" if "explain" in path else "GET",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }
        await app(scope, receive, send)

    clients = [asyncio.create_task(request()) for _ in range(3 * IN_FULL)]
    for _ in range(1000):
        await asyncio.sleep(0)
    assert len(asked) == IN_FULL + 1  # one of them was answered at once
    reads.set()
    await asyncio.wait(clients)
    assert len(asked) == len(clients)
    assert sorted(statuses) == [200] * (len(clients) - 1) + [503]
