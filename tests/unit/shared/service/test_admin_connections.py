"""What one connection of the admin port sends is read in pieces, between which everything else has its turn."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shared.service.admin import AdminServer

POST = b"POST %s HTTP/1.1\r\nhost: here\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
TINY = b"1\r\na\r\n"
READ = 2**16
"""Bytes that the event loop receives at once, at least."""


class _App:
    """Answers with the size of a body, and remembers in how many pieces it came. `/early` reads none."""

    def __init__(self) -> None:
        self.pieces: list[int] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = 0
        if scope["path"] != "/early":
            self.pieces = [len(piece) async for piece in Request(scope, receive).stream() if piece]
            size = sum(self.pieces)
        await Response(str(size))(scope, receive, send)


@asynccontextmanager
async def served(app: _App) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of this app."""
    server = AdminServer(app, "127.0.0.1", 0)
    serving = asyncio.create_task(server.serve())
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        server.stop()
        await serving


async def answer(reader: asyncio.StreamReader) -> int:
    """The number in the next answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    length = next(line for line in head.split(b"\r\n") if line.startswith(b"content-length: "))
    return int(await reader.readexactly(int(length.partition(b": ")[2])))


async def test_a_body_of_tiny_chunks_is_read_in_pieces() -> None:
    count = READ // len(TINY)
    async with served(app := _App()) as (reader, writer):
        writer.write(CHUNKED % b"/" + TINY * count + b"0\r\n\r\n")
        assert await answer(reader) == count
        assert len(app.pieces) > 10


@pytest.mark.parametrize("early", [False, True])
async def test_whatever_follows_on_a_connection_is_answered_in_order(early: bool) -> None:
    path = b"/early" if early else b"/"
    body = b"a" * 100_000
    one = POST % path + b"content-length: %d\r\n\r\n" % len(body) + body
    other = CHUNKED % path + TINY * 1000 + b"0\r\n\r\n"
    async with served(_App()) as (reader, writer):
        writer.write((one + other) * 10)
        sizes = [await answer(reader) for _ in range(20)]
        assert sizes == ([0] * 20 if early else [len(body), 1000] * 10)


async def test_what_follows_a_whole_request_is_read_after_its_answer() -> None:
    async with served(app := _App()) as (reader, writer):
        count = READ // len(TINY)
        writer.write((POST % b"/") + b"content-length: 0\r\n\r\n" + CHUNKED % b"/" + TINY * count + b"0\r\n\r\n")
        assert [await answer(reader), await answer(reader)] == [0, count]
        assert len(app.pieces) > 10


async def test_a_body_that_becomes_invalid_after_the_answer_ends_the_connection_without_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with served(_App()) as (reader, writer):
        writer.write(CHUNKED % b"/early")
        assert await answer(reader) == 0
        writer.write(b"no chunk\r\n")
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(("method", "answers"), [(b"POST", 1), (b"HEAD", 0)])
async def test_a_body_that_becomes_invalid_before_the_answer_is_answered_once(
    caplog: pytest.LogCaptureFixture, method: bytes, answers: int
) -> None:
    """One of HEAD isn't answered: the error would have a text."""
    async with served(_App()) as (reader, writer):
        writer.write((CHUNKED % b"/early").replace(b"POST", method) + b"-5\r\n")
        got = b""
        with suppress(ConnectionResetError):
            got = await reader.read()
        assert got.count(b"HTTP/1.1 400 ") == answers
        await asyncio.sleep(0)
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_who_sends_nothing_more_gets_the_answers(run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    async def ask() -> None:
        async with served(_App()) as (reader, writer):
            writer.write(CHUNKED % b"/" + TINY * 5000 + b"0\r\n\r\n" + POST % b"/" + b"content-length: 3\r\n\r\nabc")
            writer.write_eof()
            assert [await answer(reader), await answer(reader)] == [5000, 3]
            assert await reader.read() == b""

    run(ask())


async def test_who_ends_within_a_request_gets_no_answer() -> None:
    async with served(_App()) as (reader, writer):
        writer.write(CHUNKED % b"/" + TINY)
        writer.write_eof()
        assert await reader.read() == b""


REQUESTS = {"asks": b"GET / HTTP/1.1\r\nhost: here\r\n\r\n", "begins": CHUNKED % b"/", "silent": b""}


@pytest.mark.parametrize(
    ("clients", "order", "ends"),
    [
        (["asks", "silent", "silent", "silent"], [0, 1, 2, 3], 1),
        (["asks", "begins", "silent", "silent"], [0, 1, 2, 3], 2),
        (["begins", "asks", "asks", "begins"], [3, 2, 1, 0], 3),
        (["asks", "asks", "silent", "silent"], [0, 1, 2, 3], 2),
        (["asks", "asks", "asks", "silent"], [1, 2, 0, 3], 1),
        (["asks", "asks", "asks", "asks"], [3, 2, 1, 0], 3),
    ],
)
async def test_of_too_many_connections_one_without_a_request_ends_unless_most_have_one(
    clients: list[str], order: list[int], ends: int
) -> None:
    asked = asyncio.Semaphore(0)
    answer = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.release()
        await answer.wait()

    server = AdminServer(app, "127.0.0.1", 0, connections=len(clients))
    serving = asyncio.create_task(server.serve())
    connections = [await asyncio.open_connection("127.0.0.1", server.port) for _ in clients]
    for number in order:
        if request := REQUESTS[clients[number]]:
            connections[number][1].write(request)
            await asked.acquire()
    _, another = await asyncio.open_connection("127.0.0.1", server.port)
    waiting = [asyncio.create_task(reader.read(1)) for reader, _ in connections]
    ended, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert [waiting.index(task) for task in ended] == [ends]
    answer.set()
    for writer in (another, *(writer for _, writer in connections)):
        writer.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    server.stop()
    await serving
