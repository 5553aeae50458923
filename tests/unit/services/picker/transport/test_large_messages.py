"""Large messages: none of their bytes stay in the server while nothing comes, and one is answered at a time."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import groupby
from typing import Any

import grpc.aio

from services.picker.extproc.outgoing import REQUEST_BODY_UNCHANGED
from services.picker.transport.grpc_server import SERVICE, ExtProcServer
from tests.waiting import eventually

GRPC: Any = grpc.aio
LARGE = 8 * 2**20


class Answering:
    """An exchange that keeps nothing, and gives large answers."""

    closed = False

    def receive(self, data: bytes) -> Iterator[bytes]:
        yield b""
        yield REQUEST_BODY_UNCHANGED
        yield bytes(len(data))

    def end(self) -> None:
        pass


class Stepping:
    """An exchange that answers in steps, and notes each."""

    closed = False

    def __init__(self, steps: list["Stepping"]) -> None:
        self.steps = steps

    def receive(self, data: bytes) -> Iterator[bytes]:
        for _ in range(3):
            self.steps.append(self)
            yield b""
        yield REQUEST_BODY_UNCHANGED

    def end(self) -> None:
        pass


@asynccontextmanager
async def calling(make: Callable[[], Answering | Stepping]) -> AsyncIterator[tuple[ExtProcServer, Callable[[], Any]]]:
    """A server of such exchanges, and what opens streams to it."""
    server = ExtProcServer(make, host="127.0.0.1", port=0)
    await server.start()
    most = (("grpc.max_receive_message_length", 2 * LARGE), ("grpc.max_send_message_length", 2 * LARGE))
    async with GRPC.insecure_channel(f"127.0.0.1:{server.port}", options=most) as channel:
        yield server, channel.stream_stream(f"/{SERVICE}/Process")
    await server.stop(0)


async def test_neither_a_message_nor_its_answers_stay_while_a_response_is_awaited() -> None:
    async with calling(Answering) as (server, stream):
        call = stream()
        tracemalloc.start()
        try:
            await call.write(bytes(LARGE))
            assert await call.read() == REQUEST_BODY_UNCHANGED
            assert len(await call.read()) == LARGE
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < LARGE // 2)
            assert server.open == 1
        finally:
            tracemalloc.stop()
        call.cancel()


async def test_large_requests_are_answered_one_after_the_other() -> None:
    steps: list[Stepping] = []

    async def ask(call: Any) -> None:
        await call.write(b"large")
        assert await call.read() == REQUEST_BODY_UNCHANGED
        call.cancel()

    async with calling(lambda: Stepping(steps)) as (_, stream):
        await asyncio.gather(*(ask(stream()) for _ in range(10)))
    assert [len(list(each)) for _, each in groupby(steps, id)] == [3] * 10
