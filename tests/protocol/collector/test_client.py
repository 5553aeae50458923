"""The HTTP client's connections, against servers of the test's own."""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Callable

import pytest
from yarl import URL

from services.collector.http import client as http_client
from services.collector.http.client import MAX_READ, Client, Failure, ScrapeError
from services.collector.http.response import ResponseReader
from tests.protocol.collector.harness import Behaviour, OddServer
from tests.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


def url(server: OddServer, path: str = "/metrics?a=%20b") -> URL:
    return URL(f"http://127.0.0.1:{server.port}{path}", encoded=True)


@pytest.fixture
async def server() -> AsyncIterator[OddServer]:
    """Answers with the requests' count."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"%02d" % len(made.requests))

    async with OddServer(count) as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    made = Client(5.0, 1000)
    yield made
    await made.close()


async def test_one_connection_serves_request_after_request(server: OddServer, client: Client) -> None:
    assert [await client.get(url(server), True) for _ in range(3)] == [b"01", b"02", b"03"]
    assert server.connections == 1
    assert repr(client) == "<Client open, 0 connections in use, 1 idle>"
    first, *headers = server.heads[0].decode().split("\r\n")
    assert first == "GET /metrics?a=%20b HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in headers
    assert "Accept-Encoding: identity" in headers
    answers = await asyncio.gather(*(client.get(url(server), True) for _ in range(3)))
    assert sorted(answers) == [b"04", b"05", b"06"]
    assert server.connections == 3, "of requests at a time each has its own"


async def test_an_idle_connection_holds_nothing_of_the_page(server: OddServer, client: Client) -> None:
    await client.get(url(server), True)
    assert [each for each in gc.get_objects() if isinstance(each, ResponseReader)] == []


async def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(server: OddServer, client: Client) -> None:
    async def count_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"%02d" % len(server.requests))
        writer.close()
        raise ConnectionResetError

    server.behaviour = count_and_close
    assert [await client.get(url(server), True) for _ in range(5)] == [b"01", b"02", b"03", b"04", b"05"]


async def test_connections_that_nobody_uses_are_closed(
    server: OddServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "KEEPALIVE", 0.02)
    await client.get(url(server), True)
    await eventually(lambda: repr(client) == "<Client open, 0 connections in use, 0 idle>")


async def test_an_answer_too_late_fails_and_its_connection_is_not_used_again() -> None:
    client = Client(0.1, 1000)

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client leaves

    async with OddServer(hang) as silent:
        with pytest.raises(ScrapeError, match="no complete response within 100ms") as raised:
            await client.get(url(silent), True)
        await eventually(lambda: silent.connections == 1)
        assert raised.value.kind is Failure.TIMEOUT
        assert repr(client) == "<Client open, 0 connections in use, 0 idle>"
        await client.close()


@pytest.mark.parametrize("name", ["nobody.invalid", "xn--a"])
async def test_a_name_that_nobody_has_is_a_failure_to_connect(name: str) -> None:
    client = Client(60.0, 1000)  # a resolver whose packet was lost asks again after 5 s
    with pytest.raises(ScrapeError, match="can't connect") as raised:
        await client.get(URL(f"http://{name}:1/metrics", encoded=True), True)
    assert raised.value.kind is Failure.CONNECT
    await client.close()


START = b"HTTP/1.1 200 OK\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"
BLANKS = START + b"X-A: a" + b" " * 60_000 + b"b\r\n\r\n"
HEADERS = "its headers have more than 16384 bytes, at "
FRAMING = "sizes, extensions and trailers of its chunks have more than 1016384 bytes"
ENDLESS: dict[str, tuple[bytes, bytes, str]] = {
    "a header of blanks": (BLANKS, b"", HEADERS + "'X-A: a +…'"),
    "a wrong header": (START + b"X-A: a\x01b\r\n\r\n", b"", r"Invalid header value char, at 'X-A: a\\x01b'"),
    "headers": (START, b"X-A: a\r\n" * 1000, HEADERS + "'X-A: a'"),
    "interim answers": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 1000, HEADERS),
    "interim answers one by one": (b"", b"HTTP/1.1 100 Continue\r\n\r\n", HEADERS),
    "trailers": (CHUNKED + b"0\r\n", b"X-A: a\r\n" * 1000, FRAMING),
    "the size of a chunk": (CHUNKED + b"1;", b"a" * 10_000, FRAMING),
    "crumbs": (CHUNKED, b"6\r\nxxxxxx\r\n" * 5000, "the page is larger than 1000000 bytes"),
}
"""Begins so, goes on so for ever, fails so."""


async def scraped_beside_others(server: OddServer, send: Behaviour) -> ScrapeError:
    """How the scrape of a server fails that sends so, while another is scraped."""
    client = Client(600.0, 1_000_000)
    async with OddServer(send) as hostile:
        scrape = asyncio.create_task(client.get(URL(f"http://127.0.0.1:{hostile.port}/"), True))
        others = 0
        while not scrape.done() or not others:
            await client.get(url(server), True)
            others += 1
        await client.close()
    with pytest.raises(ScrapeError) as raised:
        await scrape
    return raised.value


@pytest.mark.parametrize("what", ENDLESS)
async def test_fails_for_a_named_reason_while_others_are_scraped(what: str, server: OddServer) -> None:
    begin, repeated, why = ENDLESS[what]

    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while repeated:
            writer.write(repeated)
            await writer.drain()
            await asyncio.sleep(0)

    error = await scraped_beside_others(server, send)
    assert re.search(why, str(error))
    assert error.kind is (Failure.TOO_LARGE if "larger" in why else Failure.PROTOCOL)


async def test_a_header_that_comes_byte_by_byte_fails_for_its_size(server: OddServer) -> None:
    async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in BLANKS:
            writer.write(bytes([byte]))
            await writer.drain()

    error = await scraped_beside_others(server, send)
    assert re.search(HEADERS + "'X-A: a +…'", str(error))
    assert error.kind is Failure.PROTOCOL


async def test_others_have_their_turn_after_each_large_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop reads on while a server sends, whatever else there is to do."""
    protocols: list[asyncio.Protocol] = []

    class Transport(asyncio.Transport):
        reading = True

        def write(self, data: object) -> None:
            pass

        def is_closing(self) -> bool:
            return False

        def abort(self) -> None:
            pass

        def pause_reading(self) -> None:
            self.reading = False

        def resume_reading(self) -> None:
            self.reading = True

    async def connect(factory: Callable[[], asyncio.Protocol], *_: object, **__: object) -> tuple[object, object]:
        protocols.append(factory())
        protocols[0].connection_made(transport)
        return transport, protocols[0]

    transport, client = Transport(), Client(600.0, 10 * MAX_READ)
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", connect, raising=False)
    scrape = asyncio.create_task(client.get(URL("http://127.0.0.1:1/metrics"), True))
    await eventually(lambda: protocols, "a connection")
    for piece in (CHUNKED, b"1\r\nx\r\n"):
        protocols[0].data_received(piece)
        assert transport.reading
    for _ in range(3):
        protocols[0].data_received(b"%x\r\n%s\r\n" % (MAX_READ, b"x" * MAX_READ))
        assert not transport.reading
        await asyncio.sleep(0)
        assert transport.reading
    protocols[0].data_received(b"0\r\n\r\n")
    assert len(await scrape) == 3 * MAX_READ + 1
    await client.close()
