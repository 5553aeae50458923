"""A model server of the test's own, whose answers may have trailers: chats with the model that was asked for."""

import asyncio
import hashlib
import json
from typing import Any

from tests.protocol.modes.http1 import Message, read, serialize

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
PADDING = "x-answer-padding"
"""Of a request: bytes that its answer is to have besides."""
TRAILERS = "x-answer-trailers"
"""Of a request whose answer is to have trailers."""


class ModelServer:
    """Remembers what arrived. Answers with its name in `x-served-by`, and the digest of the body as trailer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[Message] = []
        self.authority = ""

    async def __aenter__(self) -> "ModelServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.authority = f"{host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await read(reader)
                self.received.append(message)
                writer.write(self._answer(message))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy lets go of the connection
        finally:
            writer.close()

    def _answer(self, message: Message) -> bytes:
        asked = _json(message.body)
        padding = int(message.header(PADDING) or 0)
        stream = bool(asked.get("stream"))
        body = (answer_events if stream else answer_whole)(str(asked.get("model", "none")), padding)
        headers = [
            ("content-type", "text/event-stream" if stream else "application/json"),
            ("x-served-by", self.name),
        ]
        trailers = [("x-digest", hashlib.sha256(body).hexdigest())] if message.header(TRAILERS) else None
        return serialize("HTTP/1.1 200 OK", headers, body, trailers)


def _json(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def answer_whole(model: str, padding: int) -> bytes:
    answer = {"id": "1", "object": "chat.completion", "model": model, "padding": "x" * padding, "usage": USAGE}
    return json.dumps(answer).encode()


def answer_events(model: str, padding: int) -> bytes:
    """Three events and the end, or as many as it takes."""
    each = {"id": "1", "object": "chat.completion.chunk", "model": model, "padding": "x" * min(padding, 500)}
    events = [each] * max(3, padding // 500) + [{**each, "usage": USAGE}]
    return b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in events) + b"data: [DONE]\n\n"
