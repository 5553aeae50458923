"""The HTTP client's connections, against servers of the test's own."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from services.collector.http import client as http_client
from services.collector.http.client import KEPT, Client, Failure, ScrapeError
from tests.waiting import eventually

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"


class Server:
    """Answers with the requests' count; `per_connection` answers end a connection. Without any it is silent."""

    def __init__(self, per_connection: int = 1_000_000) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self.connections = 0
        self.requests: list[bytes] = []
        self.per_connection = per_connection
        self.port = 0

    async def __aenter__(self) -> "Server":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.append(task)
        self.connections += 1
        try:
            if not self.per_connection:
                await reader.read()
            for _ in range(self.per_connection):
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(OK + b"%02d" % len(self.requests))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client has left
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # the client has left in a hurry

    def url(self, path: str = "/metrics?a=%20b") -> URL:
        return URL(f"http://127.0.0.1:{self.port}{path}", encoded=True)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with Server() as made:
        yield made


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    made = Client(5.0, 1000)
    await made.open()
    yield made
    await made.close()


async def test_one_connection_serves_request_after_request(server: Server, client: Client) -> None:
    assert [await client.get(server.url(), True) for _ in range(3)] == [b"01", b"02", b"03"]
    assert server.connections == 1
    assert repr(client) == "<Client open, 0 connections in use, 1 idle>"
    first, *headers = server.requests[0].decode().split("\r\n")
    assert first == "GET /metrics?a=%20b HTTP/1.1"
    assert f"Host: 127.0.0.1:{server.port}" in headers
    assert "Accept-Encoding: identity" in headers


async def test_requests_at_a_time_have_connections_of_their_own(server: Server, client: Client) -> None:
    answers = await asyncio.gather(*(client.get(server.url(), True) for _ in range(3)))
    assert sorted(answers) == [b"01", b"02", b"03"]
    assert server.connections == 3


async def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(server: Server, client: Client) -> None:
    server.per_connection = 1
    assert [await client.get(server.url(), True) for _ in range(5)] == [b"01", b"02", b"03", b"04", b"05"]


async def test_connections_that_nobody_uses_are_closed(server: Server) -> None:
    now = 0.0
    client = Client(5.0, 1000, clock=lambda: now)
    await client.open()
    await client.get(server.url("/former"), True)
    now = KEPT + 1
    await client.get(server.url("/present"), True)
    assert repr(client) == "<Client open, 0 connections in use, 1 idle>"
    await client.close()
    assert repr(client) == "<Client closed, 0 connections in use, 0 idle>"


async def test_connections_that_nobody_uses_are_closed_also_when_nobody_asks_anything(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last endpoints of a pool are gone."""
    monkeypatch.setattr(http_client, "KEPT", 0.02)
    await client.get(server.url(), True)
    await eventually(lambda: repr(client) == "<Client open, 0 connections in use, 0 idle>")


async def test_an_answer_too_late_fails_and_its_connection_is_not_used_again() -> None:
    client = Client(0.1, 1000)
    await client.open()
    async with Server(per_connection=0) as silent:
        with pytest.raises(ScrapeError, match="no complete answer within 100ms") as raised:
            await client.get(silent.url(), True)
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


async def test_a_long_reason_is_cut_to_its_first_line_and_300_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError("x" * 400 + "\nmore")

    client = Client(60.0, 1000)
    await client.open()
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", refuse, raising=False)
    with pytest.raises(ScrapeError) as raised:
        await client.get(URL("http://127.0.0.1:1/metrics"), True)
    assert str(raised.value) == "can't connect: " + "x" * 300
    await client.close()
