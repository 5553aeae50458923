"""A TCP proxy that can stop forwarding: connections stay open, and nothing arrives any more."""

import asyncio


class Proxy:
    """Forwards connections to a port of this machine."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """Hold whatever comes, in both directions; new connections too."""
        self._open.clear()

    def go_on(self) -> None:
        """Forward again, what was held first."""
        self._open.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._forward(reader, back))
                    both.create_task(self._forward(there, writer))
            finally:
                back.close()
        except* OSError:
            pass  # an end has left
        except* asyncio.CancelledError:
            pass  # the test is over
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError("the end of one direction is the end of both")

    def __repr__(self) -> str:
        return f"<Proxy {self.port} to {self._target}, {'forwarding' if self._open.is_set() else 'stopped'}>"
