"""What is between a client and a server, and what that does to connections: resets them, holds them, lets them rot.

It forwards bytes, so TLS goes through it: the server's certificate names an address, and no port.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from pointsman.local.ports import LOOPBACK

Forward: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Brings bytes from one end to the other until the former closes."""


class Proxy:
    """Forwards connections to a port of this machine, from `port` on. An async context manager that starts listening;
    `listen` and `refuse` begin and end it by hand."""

    def __init__(self, target: int, port: int = 0, answers: Forward | None = None) -> None:
        """`answers` forwards what the server says."""
        self._target = target
        self._answers = answers
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._swallows = False
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self.port = port
        self.cuts = 0
        """Connections that were reset."""

    def url(self, scheme: str) -> str:
        return f"{scheme}://{LOOPBACK}:{self.port}"

    async def listen(self) -> None:
        """On a free port, or on the one that it had."""
        self._server = await asyncio.start_server(self._connected, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Reset every connection and take no new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """Reset every connection; new ones are forwarded."""
        for connection in tuple(self._connections):
            self.cuts += 1
            connection.end()

    def swallow(self) -> None:
        """Half-open: whatever is sent on the connections that there are vanishes without a word, now and for ever; new
        ones are accepted, and the same becomes of them until `forward`."""
        self._swallows = True
        for connection in self._connections:
            connection.dead = True

    def forward(self) -> None:
        """New connections work again. Those that were lost stay lost, as they do in a network."""
        self._swallows = False

    def hold(self) -> None:
        """Keep whatever comes, in both directions, and new connections, until `release`."""
        self._goes_on.clear()

    def release(self) -> None:
        """Forward again, what was held first."""
        self._goes_on.set()

    async def __aenter__(self) -> "Proxy":
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        await asyncio.gather(*self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(reader, writer, self._swallows, self._goes_on, self._answers)
        self._connections.add(connection)
        self._tasks.add(task)
        try:
            await connection.run(self._target)
        finally:
            self._connections.discard(connection)
            self._tasks.discard(task)


class _Connection:
    """One client's, with the one to the server that belongs to it."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        dead: bool,
        goes_on: asyncio.Event,
        answers: Forward | None,
    ) -> None:
        self.dead = dead
        self._goes_on = goes_on
        self._answers = answers or self._forward
        self._reader = reader
        self._writer = writer
        self._work: asyncio.Future[tuple[None, Any]] | None = None

    async def run(self, target: int) -> None:
        back: asyncio.StreamWriter | None = None
        try:
            there, back = await asyncio.open_connection(LOOPBACK, target)
            work = asyncio.gather(self._forward(self._reader, back), self._answers(there, self._writer))
            self._work = work
            await work
        except (OSError, asyncio.CancelledError):
            pass  # an end has left, or the connection is cut
        finally:
            if self._work is not None:
                self._work.cancel()
            for writer in (self._writer, back):
                if writer is not None:
                    writer.transport.abort()

    def end(self) -> None:
        """Reset it."""
        if self._work is not None:
            self._work.cancel()
        self._writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._goes_on.wait()
            if not self.dead:
                writer.write(data)
                await writer.drain()
        if self.dead:
            await asyncio.Event().wait()  # the other end's farewell vanishes, too
        raise ConnectionResetError("the end of one direction is the end of both")
