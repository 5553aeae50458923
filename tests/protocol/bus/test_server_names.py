"""Connections to servers whose names are looked up slowly, or not at all."""

import asyncio
import gc
import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from shared.bus.connection import Bus
from shared.bus.server_names import ServerNames
from tests.nats import NatsServer
from tests.waiting import TIMEOUT, eventually

SLOW = "nats.slow"


class SlowNames:
    """Look-ups of `SLOW` hang until they are released."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.released = threading.Event()
        self.found = True
        self._real = socket.getaddrinfo

    def ask(self, host: str, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(host)
        if host != SLOW:
            return self._real(host, *args, **kwargs)
        self.released.wait(2 * TIMEOUT)
        if not self.found:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self._real("127.0.0.1", *args, **kwargs)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowNames]:
    names = SlowNames()
    monkeypatch.setattr(socket, "getaddrinfo", names.ask)
    yield names
    names.released.set()


def url(server: NatsServer) -> str:
    return server.url.replace("127.0.0.1", SLOW)


async def test_a_look_up_that_takes_longer_than_an_attempt_is_made_once_and_used(
    server: NatsServer, names: SlowNames
) -> None:
    async with Bus(url(server), name="test", connect_timeout=0.05, reconnect_wait=(0.0, 0.01)) as bus:
        await eventually(lambda: "the look-up of nats.slow takes longer than 0.05 s" in bus.error, lambda: bus.error)
        bus.error = ""
        await eventually(lambda: "takes longer" in bus.error)
        assert names.asked == [SLOW]
        names.released.set()
        await bus.wait_connected(TIMEOUT)


@pytest.mark.parametrize("hangs", [True, False])
async def test_without_an_answer_the_last_address_is_used(server: NatsServer, names: SlowNames, hangs: bool) -> None:
    names.released.set()
    async with Bus(url(server), name="test", reconnect_wait=(0.0, 0.01)) as bus:
        await bus.wait_connected(TIMEOUT)
        names.found = False
        if hangs:
            names.released.clear()
        server.kill()
        told = f"at the last known address: the look-up of {SLOW} {'takes long' if hangs else 'fails: [Errno'}"
        await eventually(lambda: told in bus.error, lambda: bus.error)
        await server.start()
        await eventually(lambda: bus.connected and bus.connections == 2, lambda: repr(bus))


async def test_a_name_that_hangs_keeps_nobody_from_the_other_servers(server: NatsServer, names: SlowNames) -> None:
    servers = [url(server), server.url.replace("127.0.0.1", "localhost")]
    async with Bus(servers, name="test", connect_timeout=0.5, reconnect_wait=(0.0, 0.01)) as bus:
        for connections in range(1, 4):
            await eventually(lambda: bus.connected and bus.connections == connections, lambda: repr(bus))  # noqa: B023
            server.kill()
            await server.start()
        assert names.asked.count(SLOW) <= 1


async def test_a_name_that_is_none_is_told(names: SlowNames) -> None:
    """Nothing else is, though the client has never begun to connect."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: complaints.append(about))
    async with Bus(f"nats://{'x' * 70}.invalid:4222", name="test", reconnect_wait=(0.0, 0.01)) as bus:
        for _ in range(2):
            bus.error = ""
            await eventually(lambda: "is no host name" in bus.error, lambda: bus.error)
    gc.collect()
    assert complaints == []


@pytest.mark.parametrize("rotates", [False, True])
async def test_the_addresses_of_each_server_take_turns(rotates: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a name server that rotates them with each answer."""
    found = deque((socket.AF_INET, 0, 0, "", (f"127.0.0.{number}", 0)) for number in (1, 2))

    def getaddrinfo(*_: object, **__: object) -> list[Any]:
        if rotates:
            found.rotate()
        return list(found)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    names = ServerNames()
    servers = [("a", 1), ("b", 1), ("b", 2)]
    first, second, third = [[(await names.addresses(*server, TIMEOUT))[0] for server in servers] for _ in range(3)]
    assert set(first + second) == {"127.0.0.1", "127.0.0.2"}
    assert [one != other for one, other in zip(first, second, strict=True)] == [True] * 3
    assert third == first
