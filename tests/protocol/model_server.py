"""A model server of the test's own behind Envoy, whose answers may have trailers."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

from tests.protocol.http1 import Message, read, serialize

USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16}
PADDING = "x-answer-padding"
"""Of a request: bytes that its answer is to have besides."""
TRAILERS = "x-answer-trailers"
"""Of a request whose answer is to have trailers."""


class ModelServer:
    """Remembers what arrived, and misbehaves when told to. Answers with its name in `x-served-by`: a JSON request with
    a chat, and the digest of the body as trailer; any other with the body that it was sent. `/stream` has three pieces,
    of which the last waits for `release`."""

    def __init__(self, name: str, host: str = "127.0.0.1") -> None:
        self.name = name
        self.status = 200
        self.reset = False
        """Close the connection without an answer."""
        self.delay = 0.0
        self.release = asyncio.Event()
        self.received: list[Message] = []
        self.connections: set[asyncio.WriteTransport] = set()
        self.authority = ""
        self._host = host

    async def __aenter__(self) -> "ModelServer":
        self._server = await asyncio.start_server(self._serve, self._host, 0, backlog=2048)
        port = self._server.sockets[0].getsockname()[1]
        self.authority = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release.set()
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await read(reader)
                self.received.append(message)
                self.connections.add(writer.transport)
                if self.reset:
                    writer.transport.abort()
                await asyncio.sleep(self.delay)
                async for piece in self._stream() if message.path == "/stream" else self._answer(message):
                    writer.write(piece)
                    await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # Envoy lets go of the connection
        finally:
            writer.close()

    async def _stream(self) -> AsyncIterator[bytes]:
        yield f"HTTP/1.1 200 OK\r\nx-served-by: {self.name}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        for number in range(3):
            if number == 2:
                await self.release.wait()
            yield f"8\r\nchunk {number}\n\r\n".encode()
        yield b"0\r\n\r\n"

    async def _answer(self, message: Message) -> AsyncIterator[bytes]:
        asked, headers = _json(message.body), [("x-served-by", self.name)]
        if not asked:
            yield serialize(f"HTTP/1.1 {self.status} So", headers, message.body or b"nothing")
            return
        stream = bool(asked.get("stream"))
        body = (answer_events if stream else answer_whole)(str(asked["model"]), int(message.header(PADDING) or 0))
        headers.append(("content-type", "text/event-stream" if stream else "application/json"))
        trailers = [("x-digest", hashlib.sha256(body).hexdigest())] if message.header(TRAILERS) else None
        yield serialize("HTTP/1.1 200 OK", headers, body, trailers)


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
