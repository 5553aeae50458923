"""A client and a server of HTTP/1.1 for benchmarks, as cheap as can be: one request, one answer, as bytes."""

import asyncio
import time
from collections import deque
from random import Random
from types import TracebackType
from typing import Any, Self

from tests.benchmarks.bench_conversation import chat_body
from tests.waiting import eventually

BODY = chat_body(1_000)
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: models.example.com\r\ncontent-type: application/json\r\n"
    b"accept: application/json\r\nuser-agent: OpenAI/Python 1.60.0\r\ncontent-length: %d\r\n\r\n%b"
) % (len(BODY), BODY)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"


class Upstream(asyncio.Protocol):
    """A model server that has the answer at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(BODY[-16:]):
            self._transport.write(ANSWER)


class _Connection(asyncio.Protocol):
    def __init__(self, load: "Http1Load") -> None:
        self._load = load
        self._data = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def ask(self, due: float) -> None:
        self._due = due
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if not self._data.endswith(b"\r\n\r\nok"):
            if not self._data.startswith(b"HTTP/1.1 200"[: len(self._data)]):
                self._load.failure = f"{self._data!r}"
            return
        self._data = b""
        self._load.answered(self, time.monotonic() - self._due)


class Http1Load:
    """Requests on so many connections to a port of 127.0.0.1."""

    def __init__(self, port: int, connections: int) -> None:
        self._port, self._count = port, connections
        self._idle: list[_Connection] = []
        self._waiting: deque[float] = deque()
        """When requests were due for which no connection was idle."""
        self._deadline = 0.0
        self.times: list[float] = []
        """Seconds from the moment that a request was due to its answer."""
        self.failure = ""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for _ in range(self._count):
            _, connection = await loop.create_connection(lambda: _Connection(self), "127.0.0.1", self._port)
            self._idle.append(connection)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for connection in self._idle:
            connection.transport.close()

    def answered(self, connection: _Connection, seconds: float) -> None:
        """A connection has its answer."""
        self.times.append(seconds)
        if self._waiting:
            connection.ask(self._waiting.popleft())
        elif (now := time.monotonic()) < self._deadline:
            connection.ask(now)
        else:
            self._idle.append(connection)

    async def most(self, seconds: float) -> float:
        """Answers a second when every connection asks again at once."""
        self.times, began = [], time.monotonic()
        self._deadline = began + seconds
        while self._idle:
            self._idle.pop().ask(time.monotonic())
        await self._over()
        return len(self.times) / (time.monotonic() - began)

    async def steady(self, rate: float, seconds: float) -> list[float]:
        """The times of so many requests a second, at random moments (Poisson)."""
        random, due = Random(7), time.monotonic()
        self.times, self._deadline, end = [], 0.0, due + seconds
        while due < end:
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            while due <= time.monotonic():
                if self._idle:
                    self._idle.pop().ask(due)
                else:
                    self._waiting.append(due)
                due += random.expovariate(rate)
        await self._over()
        return self.times

    async def _over(self) -> None:
        await eventually(lambda: self.failure or len(self._idle) == self._count, lambda: self)
        assert not self.failure, self.failure

    def __repr__(self) -> str:
        return f"<Http1Load {len(self._idle)} of {self._count} connections idle>"
