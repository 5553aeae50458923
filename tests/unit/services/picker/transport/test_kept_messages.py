"""What the server keeps of messages while nothing comes: none of their bytes."""

import asyncio
import tracemalloc
from collections.abc import Sequence
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

    def receive(self, data: bytes) -> Sequence[bytes]:
        return [REQUEST_BODY_UNCHANGED, b"", bytes(len(data))]

    def end(self) -> None:
        pass


async def test_neither_a_message_nor_its_answers_stay_while_a_response_is_awaited() -> None:
    server = ExtProcServer(Answering, host="127.0.0.1", port=0)
    await server.start()
    most: Any = (("grpc.max_receive_message_length", 2 * LARGE), ("grpc.max_send_message_length", 2 * LARGE))
    async with GRPC.insecure_channel(f"127.0.0.1:{server.port}", options=most) as channel:
        call = channel.stream_stream(f"/{SERVICE}/Process")()
        tracemalloc.start()
        try:
            await call.write(bytes(LARGE))
            assert await call.read() == REQUEST_BODY_UNCHANGED
            assert len(await call.read()) == LARGE
            await asyncio.sleep(0)
            await eventually(lambda: tracemalloc.get_traced_memory()[0] < LARGE // 2)
            assert server.open == 1
        finally:
            tracemalloc.stop()
        call.cancel()
    await server.stop(0)
