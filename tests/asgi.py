"""Asks an app without a network, and keeps the pieces of its answer apart."""

import asyncio

from starlette.types import ASGIApp, Message


async def pieces(app: ASGIApp, path: str) -> list[bytes]:
    """The pieces in which the answer to a GET is sent."""
    sent: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"spec_version": "2.4"},
        "method": "GET",
        "path": path,
        "query_string": b"",
        "headers": [],
    }
    await app(scope, receive, send)
    return sent
