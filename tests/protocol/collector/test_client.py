"""The HTTP client's connections, against servers of the test's own."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from services.collector.http import client as http_client
from services.collector.http.client import KEPT, Client, Failure, ScrapeError
from tests.protocol.collector.harness import OddServer
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
    await made.open()
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


async def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(server: OddServer, client: Client) -> None:
    async def count_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"%02d" % len(server.requests))
        writer.close()
        raise ConnectionResetError

    server.behaviour = count_and_close
    assert [await client.get(url(server), True) for _ in range(5)] == [b"01", b"02", b"03", b"04", b"05"]


async def test_connections_that_nobody_uses_are_closed(server: OddServer) -> None:
    now = 0.0
    client = Client(5.0, 1000, clock=lambda: now)
    await client.open()
    await client.get(url(server, "/former"), True)
    now = KEPT + 1
    await client.get(url(server, "/present"), True)
    assert repr(client) == "<Client open, 0 connections in use, 1 idle>"
    await client.close()
    assert repr(client) == "<Client closed, 0 connections in use, 0 idle>"


async def test_connections_that_nobody_uses_are_closed_also_when_nobody_asks_anything(
    server: OddServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last endpoints of a pool are gone."""
    monkeypatch.setattr(http_client, "KEPT", 0.02)
    await client.get(url(server), True)
    await eventually(lambda: repr(client) == "<Client open, 0 connections in use, 0 idle>")


async def test_an_answer_too_late_fails_and_its_connection_is_not_used_again() -> None:
    client = Client(0.1, 1000)
    await client.open()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()  # until the client leaves

    async with OddServer(hang) as silent:
        with pytest.raises(ScrapeError, match="no complete answer within 100ms") as raised:
            await client.get(url(silent), True)
        await eventually(lambda: silent.connections == 1)
        assert raised.value.kind is Failure.TIMEOUT
        assert repr(client) == "<Client open, 0 connections in use, 0 idle>"
        await client.close()


async def test_a_name_that_nobody_has_is_a_failure_to_connect() -> None:
    client = Client(60.0, 1000)  # a resolver whose packet was lost asks again after 5 s
    await client.open()
    with pytest.raises(ScrapeError, match="can't connect") as raised:
        await client.get(URL("http://nobody.invalid:1/metrics"), True)
    assert raised.value.kind is Failure.CONNECT
    await client.close()
