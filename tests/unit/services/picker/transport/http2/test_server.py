"""The server on a real socket, where the state machine of a connection can't show it."""

import asyncio

from structlog.testing import capture_logs

from services.picker.body_buffer import MemoryBudget
from services.picker.http2_options import Http2Options
from services.picker.transport.http2.server import LOG_EVERY, Http2Server
from tests.waiting import eventually


async def test_of_many_connections_that_break_the_protocol_a_line_a_second_tells() -> None:
    now = 0.0
    options = Http2Options(max_message_size=2**10)
    server = Http2Server({}, options, memory=MemoryBudget(), clock=lambda: now)
    await server.start("127.0.0.1", 0)

    async def broken(connections: int) -> None:
        before = server.ended["PROTOCOL_ERROR"]
        for _ in range(connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await reader.read()
            writer.close()
        await eventually(lambda: server.ended["PROTOCOL_ERROR"] == before + connections)

    try:
        with capture_logs() as logs:
            await broken(3)
            now += LOG_EVERY
            await broken(2)
    finally:
        await server.stop(0.0)
    lines = [line["since_last_line"] for line in logs if line["event"] == "grpc.connection_ended"]
    assert lines == [1, 3]
