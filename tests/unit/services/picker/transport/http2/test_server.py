"""The server on a real socket, where the state machine of a connection can't show it."""

import asyncio
import gc
import socket
import time
import weakref
from itertools import pairwise

from structlog.testing import capture_logs

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Metadata, Stream
from services.picker.transport.http2.server import LOG_EVERY, TICK, Http2Server
from shared.tasks import SECONDS_AT_ONCE
from shared.tls import TooMuchOverhead
from tests.unit.services.picker.transport.http2.peer import (
    ACK,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    SETTINGS,
    Recorded,
    data,
    frame,
    headers,
    message,
    request,
    settings,
    window_update,
)
from tests.waiting import eventually


async def test_a_client_whose_tls_brings_no_data_is_counted_and_logged() -> None:
    server = Http2Server({}, Http2Options(max_message_size=2**10), memory=MemoryBudget(), clock=time.monotonic)
    await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await eventually(lambda: server.connections)
    [protocol] = server._connections
    with capture_logs() as logs:
        protocol.connection_lost(TooMuchOverhead())
    assert server.ended == {"ENHANCE_YOUR_CALM": 1}
    assert logs[0]["reason"] == f"ENHANCE_YOUR_CALM: {TooMuchOverhead()}"
    writer.close()
    await server.stop(0.0)


async def test_a_connection_that_has_ended_is_freed_at_once() -> None:
    """Pickers search for circles of references once a minute at most."""
    server = Http2Server({}, Http2Options(max_message_size=2**10), memory=MemoryBudget(), clock=time.monotonic)
    await server.start("127.0.0.1", 0)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(PREFACE + settings() + headers(1) + frame(HEADERS, 0, 3, b"x"))
    await eventually(lambda: server.connections)
    left = [weakref.ref(protocol) for protocol in server._connections]
    gc.disable()
    try:
        writer.transport.abort()
        await eventually(lambda: not server.connections)
        await eventually(lambda: left[0]() is None)
    finally:
        gc.enable()
    await server.stop(0.0)


async def test_the_streams_of_a_lost_connection_end_by_turns() -> None:
    """Others have their turn in between; what is left of them ends with the server at the latest."""
    streams, calls = 1000, list[Recorded]()

    def begin(stream: Stream, metadata: Metadata) -> Recorded:
        calls.append(Recorded(stream, metadata, "Silent"))
        return calls[-1]

    server = Http2Server(
        {"/test.Test/Echo": begin}, Http2Options(max_message_size=2**10), memory=MemoryBudget(), clock=time.monotonic
    )
    await server.start("127.0.0.1", 0)
    for ends in ("closes", "breaks the protocol", "stays"):
        calls.clear()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + settings() + b"".join(headers(stream) for stream in range(1, 2 * streams, 2)))
        await eventually(lambda: len(calls) == streams)
        if ends == "closes":
            writer.transport.abort()
        elif ends == "breaks the protocol":
            writer.write(data(0, b"x"))
        else:
            await server.stop(0.0)
        turns = set[int]()
        while (ended := sum(call.ends for call in calls)) < streams:
            turns.add(ended)
            await asyncio.sleep(0)
        await eventually(lambda: not server.connections)
        assert [call.ends for call in calls] == [1] * streams
        assert ends == "stays" or len(turns) >= streams // 200
        writer.close()


async def test_the_streams_of_many_connections_whose_deadlines_are_over_end_by_turns() -> None:
    connections, streams, calls = 60, 90, list[Recorded]()
    now = 0.0

    def begin(stream: Stream, metadata: Metadata) -> Recorded:
        calls.append(Recorded(stream, metadata, "Silent"))
        return calls[-1]

    options = Http2Options(max_message_size=2**10)
    server = Http2Server({"/test.Test/Echo": begin}, options, memory=MemoryBudget(), clock=lambda: now)
    await server.start("127.0.0.1", 0)
    clients: list[asyncio.StreamWriter] = []
    try:
        fields = request(grpc_timeout="1S")
        begun = b"".join(headers(stream, fields=fields) for stream in range(1, 2 * streams, 2))
        for _ in range(connections):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(PREFACE + settings() + frame(SETTINGS, ACK, 0) + begun)
            clients.append(writer)
        await eventually(lambda: len(calls) == connections * streams)
        now = 2.0
        turns = set[int]()
        while (ended := sum(call.ends for call in calls)) < len(calls):
            turns.add(ended)
            await asyncio.sleep(0)
        assert len(turns) > 3
        assert {call.ends for call in calls} == {1}
    finally:
        for writer in clients:
            writer.close()
        await server.stop(0.0)


async def test_what_takes_long_to_read_is_read_by_turns() -> None:
    """Of many connections together, too; and another connection needn't wait for all of them."""
    connections, calls, order, now = 40, list[Recorded](), list[bytes](), 1.0

    class Slow(Recorded):
        def receive(self, message: bytes) -> None:
            order.append(message)
            if message == b"slow":
                time.sleep(2 * SECONDS_AT_ONCE)

    def begin(stream: Stream, metadata: Metadata) -> Recorded:
        calls.append(Slow(stream, metadata, "Silent"))
        return calls[-1]

    options = Http2Options(max_message_size=2**10)
    server = Http2Server({"/test.Test/Echo": begin}, options, memory=MemoryBudget(), clock=lambda: now)
    await server.start("127.0.0.1", 0)
    clients: list[asyncio.StreamWriter] = []
    try:
        for _ in range(connections + 1):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(PREFACE + settings() + frame(SETTINGS, ACK, 0) + headers(1))
            clients.append(writer)
        await eventually(lambda: len(calls) == len(clients))
        now += 3600  # on a busy machine, to open any of the connections may have taken long
        for wave in (1, 2):
            for writer in clients[1:]:
                writer.write(data(1, message(b"slow")))
            if wave == 2:
                clients[0].write(data(1, message(b"quick")))
            rounds = [len(order)]
            while len(order) < wave * connections + wave - 1:
                await asyncio.sleep(0)
                rounds.append(len(order))
            assert max(after - before for before, after in pairwise(rounds)) < 10
    finally:
        for writer in clients:
            writer.close()
        await server.stop(0.0)
    assert order.index(b"quick") < connections + connections // 2


async def test_what_a_client_leaves_unread_in_its_connection_counts_and_makes_room() -> None:
    """However wide its windows are. Of the connection nothing stays, though it takes no farewell."""
    now, calls = 0.0, list[Recorded]()

    def begin(stream: Stream, metadata: Metadata) -> Recorded:
        calls.append(Recorded(stream, metadata, "Silent"))
        return calls[-1]

    memory = MemoryBudget(100_000, lambda: now)
    options = Http2Options(max_message_size=2**10, send_buffer=2**30)
    server = Http2Server({"/test.Test/Echo": begin}, options, memory=memory, clock=lambda: now)
    await server.start("127.0.0.1", 0)
    client = socket.create_connection(("127.0.0.1", server.port))
    try:
        client.sendall(PREFACE + settings({INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**30) + headers(1))
        await eventually(lambda: calls)
        while memory.used <= memory.limit:
            calls[0].stream.send(bytes(10_000))
            await asyncio.sleep(TICK / 100)
        now += 0.5
        await asyncio.sleep(2 * TICK)
        assert server.connections == 1
        now += 1.0
        await eventually(lambda: not server.connections)
        assert (server.ended, memory.used, calls[0].ends) == ({"ENHANCE_YOUR_CALM": 1}, 0, 1)
    finally:
        client.close()
        await server.stop(0.0)


async def test_of_what_a_client_sends_nothing_is_read_while_it_reads_nothing() -> None:
    """However wide its windows are."""
    answer, questions, calls = bytes(20_000), 1000, list[Recorded]()

    class Large(Recorded):
        def receive(self, message: bytes) -> None:
            self.messages.append(message)
            self.stream.send(answer)

    def begin(stream: Stream, metadata: Metadata) -> Recorded:
        calls.append(Large(stream, metadata, "Echo"))
        return calls[-1]

    options = Http2Options(max_message_size=2**10)
    server = Http2Server({"/test.Test/Echo": begin}, options, memory=MemoryBudget(), clock=time.monotonic)
    await server.start("127.0.0.1", 0)
    client = socket.create_connection(("127.0.0.1", server.port))
    try:
        opens = settings({INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_update(0, 2**30)
        client.sendall(PREFACE + opens + headers(1) + data(1, message(b"") * questions, END_STREAM))
        await eventually(lambda: calls and calls[0].messages)
        [protocol] = server._connections
        await eventually(lambda: protocol._transport.get_write_buffer_size() > options.send_buffer)
        for _ in range(questions):
            await asyncio.sleep(0)
        read = len(calls[0].messages)
        assert read < questions
        assert protocol._transport.get_write_buffer_size() < 3 * options.send_buffer
        client.setblocking(False)
        received, loop = 0, asyncio.get_running_loop()
        while received < questions * len(answer):
            received += len(await loop.sock_recv(client, 2**20))
        await eventually(lambda: calls[0].half_closed)
        assert len(calls[0].messages) == questions
    finally:
        client.close()
        await server.stop(0.0)


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
