"""A server behind Envoy that remembers what it was sent, and misbehaves when told to."""

import asyncio
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Received:
    """One request, as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ModelServer:
    """Answers with its own name in `x-served-by`, and the body that it was sent.

    `/stream` sends `chunks` pieces and waits for `release` before the last.
    """

    name: str
    host: str = "127.0.0.1"
    status: int = 200
    reset: bool = False
    """Close the connection without an answer."""
    delay: float = 0.0
    chunks: int = 3
    release: asyncio.Event = field(default_factory=asyncio.Event)
    received: list[Received] = field(default_factory=list)
    connections: set[asyncio.Transport] = field(default_factory=set)
    port: int = 0

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def __aenter__(self) -> "ModelServer":
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/stream", self._stream)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, 0, backlog=2048)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.release.set()
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> Received:
        assert request.transport is not None
        self.connections.add(request.transport)
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(request.method, request.path, headers, await request.read())
        self.received.append(received)
        return received

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        received = await self._receive(request)
        if self.reset:
            assert request.transport is not None
            request.transport.abort()
        if self.delay:
            await asyncio.sleep(self.delay)
        return web.Response(
            body=received.body or b"nothing", status=self.status, headers={"x-served-by": self.name, "x-length": "1"}
        )

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        await self._receive(request)
        if self.delay:
            await asyncio.sleep(self.delay)
        response = web.StreamResponse(headers={"x-served-by": self.name})
        await response.prepare(request)
        for index in range(self.chunks):
            if index == self.chunks - 1:
                await self.release.wait()
            await response.write(f"chunk {index}\n".encode())
        await response.write_eof()
        return response
