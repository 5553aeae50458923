"""Options of the connection, and what a bus does while there is no server. Real servers: tests/protocol/bus."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from nats.aio.client import Client

from shared.bus import connection
from shared.bus.connection import Bus
from shared.bus.credentials import CredentialsFile
from shared.bus.errors import BusOptionError, NotConnected
from tests.nats import free_port
from tests.waiting import eventually

REFUSED = r"Connect call failed|Connection refused"
"""asyncio's words, uvloop's words."""


@pytest.mark.parametrize(
    ("servers", "message"),
    [
        ([], "at least one URL"),
        ("http://127.0.0.1:4222", r"url: 'http://127\.0\.0\.1:4222' is no URL of a NATS server"),
        ("ws://127.0.0.1:4222", "is no URL of a NATS server"),
        ("nats://:4222", "is no URL of a NATS server"),
        ("nats://host:port", "is no URL of a NATS server"),
        (["nats://fine:4222", "nats://[::1"], r"url: '\(not shown: it may have a password\)' is no URL"),
    ],
)
def test_a_server_that_is_no_url_is_refused_by_name(servers: str | list[str], message: str) -> None:
    with pytest.raises(BusOptionError, match=message):
        Bus(servers, name="test")


def test_a_password_in_a_url_is_never_shown() -> None:
    with pytest.raises(BusOptionError, match="'http://host'") as refused:
        Bus("http://user:secret@host", name="test")
    assert "secret" not in str(refused.value)
    bus = Bus("nats://user:secret@host:4222", name="test")
    assert "secret" not in f"{bus!r} {bus.readiness()}"


def test_a_host_without_a_scheme_means_nats() -> None:
    assert Bus(["localhost:4222", "tls://other"], name="test").servers == ("nats://localhost:4222", "tls://other")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"user": "u"}, "user and password: one is given without the other"),
        ({"token": "t", "user": "u", "password": "p"}, "user and token: only one of them"),
        ({"ca": Path("/nowhere/ca.pem")}, "ca: '/nowhere/ca.pem' can't be used"),
        ({"credentials": Path("/nowhere/user.creds")}, "'/nowhere/user.creds' can't be read: No such file"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_at_once(options: dict[str, object], message: str) -> None:
    with pytest.raises(BusOptionError, match=message):
        Bus("nats://127.0.0.1:4222", name="test", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no section BEGIN NATS USER JWT"),
        ("-----BEGIN NATS USER JWT-----\neyJ\n------END NATS USER JWT------\n", "no section BEGIN USER NKEY SEED"),
        (
            "-----BEGIN NATS USER JWT-----\neyJ\n------END NATS USER JWT------\n"
            "-----BEGIN USER NKEY SEED-----\nSUAB\n------END USER NKEY SEED------\n",
            "length or checksum",
        ),
        (
            "-----BEGIN NATS USER JWT-----\neyJ\n------END NATS USER JWT------\n"
            "-----BEGIN USER NKEY SEED-----\n!!!!\n------END USER NKEY SEED------\n",
            "a seed that isn't base32",
        ),
    ],
)
def test_a_credentials_file_that_is_none_is_refused_with_what_is_missing(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "user.creds"
    path.write_text(text)
    with pytest.raises(BusOptionError, match=message):
        CredentialsFile(path)


async def test_without_a_server_a_bus_starts_says_why_it_is_not_ready_and_goes_on_trying() -> None:
    port = free_port()
    bus = Bus(f"nats://127.0.0.1:{port}", name="test", reconnect_wait=(0.01, 0.02))
    assert "not started" in (bus.readiness() or "")
    await bus.start()
    try:
        await eventually(lambda: re.search(REFUSED, bus.readiness() or "") is not None)
        assert not bus.connected
        reason = bus.readiness()
        assert reason is not None
        assert f"not connected to NATS at nats://127.0.0.1:{port}" in reason
        assert re.search(REFUSED, reason)
        assert not await bus.publish("a", b"now")
        assert bus.dropped == 1
        with pytest.raises(NotConnected, match=REFUSED):
            await bus.request("a")
        with pytest.raises(NotConnected, match=REFUSED):
            await bus.wait_connected(0.01)
    finally:
        await bus.close()
    assert "closed" in (bus.readiness() or "")


@pytest.mark.parametrize("step", ["connect", "subscribe", "flush"])
async def test_a_client_that_swallows_the_cancellation_doesnt_keep_a_bus_from_closing(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As asyncio.wait_for of Python 3.11 does, when what it waits for is there at the same moment."""
    begun = asyncio.Event()

    async def swallows() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

    class Connected(Client):
        is_connected = True

        async def connect(self, *_: Any, **__: Any) -> None:
            if step == "connect":
                await swallows()

        async def subscribe(self, *_: Any, **__: Any) -> Any:
            if step == "subscribe" and not begun.is_set():
                await swallows()

        async def flush(self, *_: Any, **__: Any) -> None:
            if step == "flush":
                await swallows()

        async def close(self) -> None:
            pass

        @property
        def connected_server_version(self) -> Any:
            return SimpleNamespace(major=2, minor=15, patch=0)

        def new_inbox(self) -> str:
            return "_INBOX.a"

    monkeypatch.setattr(connection, "NatsClient", lambda *_: Connected())
    bus = Bus("nats://127.0.0.1:4222", name="test", connect_timeout=600.0)
    await bus.start()
    await begun.wait()
    await asyncio.wait_for(bus.close(), 60.0)
    assert not bus.connected


async def test_something_that_is_no_nats_server_is_named_as_the_reason() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    bus = Bus(f"nats://127.0.0.1:{port}", name="test")
    await bus.start()
    await eventually(lambda: "expecting INFO message" in (bus.readiness() or ""))
    await bus.close()
    server.close()
    await server.wait_closed()
