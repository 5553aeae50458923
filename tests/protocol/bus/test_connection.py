"""The connection against a real server: restarts, stalls, credentials, TLS."""

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nats.aio.msg import Msg
from structlog.testing import capture_logs

from shared.bus import connection
from shared.bus.connection import Bus
from shared.bus.errors import BusError, NoResponders, NotConnected, RequestTimeout
from tests.certificates import Authority
from tests.nats import NatsServer, nats_server
from tests.protocol.bus.conftest import Connect
from tests.waiting import TIMEOUT, eventually


async def heard_by(bus: Bus, subject: str) -> list[bytes]:
    heard: list[bytes] = []
    await bus.subscribe(subject, lambda message: heard.append(message.data))
    with pytest.raises(NoResponders):
        await bus.request("nobody")  # a round trip: the subscription is known to the server
    return heard


# Ordinary use


async def test_a_message_arrives_at_the_others_and_not_at_its_sender(connect: Connect) -> None:
    sender, receiver = await connect("sender"), await connect("receiver")
    own, others = await heard_by(sender, "a.*"), await heard_by(receiver, "a.*")
    assert await sender.publish("a.1", b"one")
    await eventually(lambda: others == [b"one"])
    assert own == []


async def test_requests_are_answered_refused_or_time_out(connect: Connect) -> None:
    asker, answerer = await connect(), await connect()
    loop = asyncio.get_running_loop()
    tasks = set()

    def answer(message: Msg) -> None:
        task = loop.create_task(answerer.publish(message.reply, message.data.upper()))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    await answerer.subscribe("echo", answer)
    await answerer.subscribe("silent", lambda message: None)
    with pytest.raises(NoResponders):
        await answerer.request("nobody")
    answers = await asyncio.gather(*(asker.request("echo", str(number).encode() + b"x") for number in range(50)))
    assert [message.data for message in answers] == [str(number).encode() + b"X" for number in range(50)]
    with pytest.raises(RequestTimeout, match="silent"):
        await asker.request("silent", timeout=0.1)


@pytest.mark.parametrize("payload", [b"", b"x" * 900_000])
async def test_a_subject_that_is_longer_than_the_servers_line_is_refused_and_the_connection_stays(
    connect: Connect, payload: bytes
) -> None:
    bus, other = await connect(), await connect()
    longest = "a." + "é" * ((connection.MAX_SUBJECTS - 100) // 2)
    heard = await heard_by(other, "a.*")
    for subject, reply in ((longest, "r" * 99), (longest + "x" * 99, "")):
        with pytest.raises(BusError, match=r"^a\.é+…: it takes 4001 bytes with its reply subject; 4000 are allowed$"):
            await bus.publish(subject, payload, reply=reply)
        assert await bus.publish(subject[:-1] if not reply else subject, payload, reply=reply[1:], headers={"a": "b"})
    await eventually(lambda: len(heard) == 2)
    assert bus.connections == other.connections == 1


async def test_a_handler_that_fails_is_counted_and_the_next_message_is_handled(connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    heard: list[bytes] = []

    def handle(message: Msg) -> None:
        heard.append(message.data)
        if message.data == b"bad":
            raise ValueError("bad")

    subscription = await receiver.subscribe("a", handle)
    with pytest.raises(NoResponders):
        await receiver.request("nobody")
    await sender.publish("a", b"bad")
    await sender.publish("a", b"good")
    await eventually(lambda: heard == [b"bad", b"good"])
    assert receiver.handler_errors == 1
    await subscription.unsubscribe()
    with pytest.raises(NoResponders):
        await receiver.request("nobody")
    await sender.publish("a", b"late")
    with pytest.raises(NoResponders):
        await sender.request("a")
    assert len(heard) == 2


async def test_a_close_keeps_the_connection_until_the_server_has_taken_what_was_published(
    server: NatsServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", TIMEOUT)
    sender, receiver = await connect(), await connect()
    heard = await heard_by(receiver, "a")
    lost: list[str | None] = []
    sender.on_disconnect(lambda: lost.append(sender.readiness()))
    server.pause()
    await sender.publish("a", b"last")
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0.4)
    assert not lost
    assert not closing.done()
    server.resume()
    await closing
    assert ["closed" in str(error) for error in lost] == [True]
    await eventually(lambda: heard == [b"last"])


# Restarts


async def arrives(sender: Bus, payload: bytes, heard: list[bytes]) -> None:
    """Publish it until it is heard, and nothing else: the server may read the subscription, which comes by another
    connection, after the first ones."""

    async def so() -> bool:
        await sender.publish("a", payload)
        return bool(heard)

    await eventually(so, "the message")
    assert set(heard) == {payload}


async def test_after_a_restart_of_the_server_subscriptions_are_there_before_callbacks_are_called(
    server: NatsServer, connect: Connect
) -> None:
    sender, receiver = await connect(), await connect()
    heard = await heard_by(receiver, "a")
    connected: list[int] = []
    lost: list[str | None] = []
    receiver.on_connect(lambda: connected.append(receiver.connections))
    take_back = receiver.on_disconnect(lambda: lost.append(receiver.readiness()))
    assert connected == [1], "there is a connection, so it is called at once"
    server.kill()
    await eventually(lambda: lost)
    assert "connection lost" in str(lost[0])
    await server.start()
    await eventually(lambda: sender.connected and receiver.connected, what=lambda: (sender, receiver))
    assert connected == [1, 2]
    await arrives(sender, b"after", heard)
    take_back()
    server.kill()
    await eventually(lambda: not receiver.connected)
    assert len(lost) == 1


async def test_publishes_while_disconnected_are_dropped_and_counted(server: NatsServer, connect: Connect) -> None:
    sender, receiver = await connect(), await connect()
    heard = await heard_by(receiver, "a")
    server.kill()
    await eventually(lambda: not sender.connected and not receiver.connected)
    for _ in range(10):
        assert not await sender.publish("a", b"of the past")
    assert sender.dropped == 10
    await server.start()
    await eventually(lambda: sender.connected and receiver.connected)
    await arrives(sender, b"now", heard)


async def test_a_publish_right_after_a_reset_is_dropped(connect: Connect) -> None:
    """nats-py doesn't know of it yet, and uvloop's transports raise at a write."""
    bus = await connect()
    client = bus._client
    assert client is not None
    client._transport._io_writer.transport.abort()  # type: ignore[union-attr]
    assert [client.is_connected, await bus.publish("a.b")] == [True, False]
    assert bus.dropped == 1
    await eventually(lambda: bus.connections == 2, lambda: repr(bus))


async def test_a_request_fails_as_soon_as_the_connection_is_lost(server: NatsServer, connect: Connect) -> None:
    asker, answerer = await connect(), await connect()
    await heard_by(answerer, "silent")
    request = asyncio.create_task(asker.request("silent", timeout=600.0))
    many = asyncio.create_task(asker.request_many("silent", b"", last=lambda message: False, timeout=600.0))
    await asyncio.sleep(0.05)
    server.kill()
    with pytest.raises(NotConnected, match="connection lost"):
        await asyncio.wait_for(request, TIMEOUT)
    with pytest.raises(NotConnected, match="connection lost"):
        await asyncio.wait_for(many, TIMEOUT)


async def test_reconnecting_goes_on_for_ever(server: NatsServer) -> None:
    """nats-py alone would give up for good after its 60 attempts."""
    bus = Bus(server.url, name="test", reconnect_wait=(0.0, 0.001))
    await bus.start()
    await bus.wait_connected(TIMEOUT)
    server.kill()
    await eventually(lambda: not bus.connected)
    await asyncio.sleep(1.0)
    await server.start()
    await eventually(lambda: bus.connected)
    await bus.close()


# Stalls


async def test_a_server_that_hangs_is_noticed_by_its_missing_pongs(server: NatsServer, connect: Connect) -> None:
    bus = await connect(ping_interval=0.2)
    server.pause()
    try:
        await eventually(lambda: not bus.connected)
        await eventually(lambda: "stale connection" in bus.error, what=lambda: bus)
        assert not await bus.publish("a", b"x")
    finally:
        server.resume()
    await eventually(lambda: bus.connected)


async def test_a_hanging_server_whose_buffers_are_full_is_left_behind_all_the_same(
    server: NatsServer, connect: Connect
) -> None:
    """Closing would wait for it to take what is in the socket's buffer, which it never does."""
    bus = await connect(ping_interval=0.2)
    server.pause()
    try:
        for _ in range(200):
            await bus.publish("a", bytes(100_000))
        await eventually(lambda: not bus.connected)
        await asyncio.wait_for(bus.close(), TIMEOUT)
    finally:
        server.resume()


async def test_what_a_stalled_connection_still_held_is_not_sent_over_the_next_one(
    server: NatsServer, connect: Connect
) -> None:
    """The server is stopped, then killed: what was published meanwhile is gone, and doesn't come after the restart."""
    sender = await connect()
    server.pause()
    for _ in range(100):
        await sender.publish("a", bytes(50_000))
    server.kill()
    await server.start()
    receiver = await connect()
    heard = await heard_by(receiver, "a")
    await eventually(lambda: sender.connections >= 2 and sender.connected, what=lambda: sender)
    await arrives(sender, b"now", heard)


# Who may come in


async def test_user_and_password_a_token_and_the_url_let_in_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    config = 'authorization { user: "u", password: "secret" }'
    async with nats_server(tmp_path, config=config) as server:
        good = [
            Bus(server.url, name="arguments", user="u", password="secret"),
            Bus(server.url.replace("//", "//u:secret@"), name="url"),
        ]
        bad = [Bus(server.url, name="wrong", user="u", password="wrong"), Bus(server.url, name="none")]
        for bus in good:
            await bus.start()
            await bus.wait_connected(TIMEOUT)
            assert bus.connected, bus.readiness()
            await bus.close()
        for bus in bad:
            await bus.start()
            await eventually(lambda: "Authorization Violation" in (bus.readiness() or ""))  # noqa: B023
            await bus.close()
    async with nats_server(tmp_path / "token", config='authorization { token: "t0k" }') as server:
        bus = Bus(server.url, name="token", token="t0k")
        await bus.start()
        await bus.wait_connected(TIMEOUT)
        assert bus.connected, bus.readiness()
        await bus.close()


PERMISSIONS = "authorization {{ users: [{{user: u, password: p, permissions: {{subscribe: {{deny: [{}]}}}}}}] }}"


@pytest.mark.parametrize("begun", [False, True], ids=["before it connects", "while it is connected"])
@pytest.mark.parametrize("refused", ["a", "_INBOX.>"])
async def test_what_was_refused_is_heard_as_soon_as_it_is_permitted(tmp_path: Path, refused: str, begun: bool) -> None:
    """Permissions that a server loads end subscriptions, and those that it loads later don't begin them again."""
    async with nats_server(tmp_path, config=PERMISSIONS.format("" if begun else f'"{refused}"')) as server:
        url = server.url.replace("//", "//u:p@")
        async with Bus(url, name="sender") as sender, Bus(url, name="test", refused_interval=0.05) as bus:
            heard: list[bytes] = []
            await bus.subscribe("a", lambda message: heard.append(message.data))
            await bus.wait_connected(TIMEOUT)
            await sender.wait_connected(TIMEOUT)
            if begun:
                server.reload(PERMISSIONS.format(f'"{refused}"'))
            await eventually(lambda: bus.malformed.refused.total > 0)
            connections = bus.connections
            await asyncio.sleep(0.2)
            assert bus.connections == connections, "trials keep the connection"
            with capture_logs() as logs:
                server.reload(PERMISSIONS.format(""))
                await eventually(lambda: bus.connected and bus.connections == connections + 1, lambda: repr(bus))
            reasons = [entry["reason"] for entry in logs if entry["event"] == "bus.disconnected"]
            assert reasons == ["connection made anew: subscriptions are permitted again"]
            with pytest.raises(NoResponders):
                await bus.request("nobody")
            assert await sender.publish("a", b"now")
            await eventually(lambda: heard == [b"now"])


def nkey(prefix: int, raw: bytes) -> str:
    body = bytes([prefix]) + raw
    return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")


class Identity:
    """A key pair as `nsc` makes it; kinds O(perator), A(ccount), U(ser)."""

    PREFIXES = {"operator": 14 << 3, "account": 0, "user": 20 << 3}  # noqa: RUF012 - a table, never changed

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.key = Ed25519PrivateKey.generate()
        public = self.key.public_key().public_bytes_raw()
        self.public = nkey(self.PREFIXES[kind], public)

    @property
    def seed(self) -> str:
        prefix = self.PREFIXES[self.kind]
        body = bytes([(18 << 3) | (prefix >> 5), (prefix & 31) << 3]) + self.key.private_bytes_raw()
        return base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).decode().rstrip("=")

    def token(self, subject: "Identity", **nats: object) -> str:
        claims = {
            "jti": subject.public,
            "iat": 1_700_000_000,
            "iss": self.public,
            "name": subject.kind,
            "sub": subject.public,
            "nats": {"type": subject.kind, "version": 2, **nats},
        }
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        body = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
        return (body + b"." + base64.urlsafe_b64encode(self.key.sign(body)).rstrip(b"=")).decode()


async def test_a_credentials_file_lets_in_and_a_renewed_one_is_read_at_the_next_connection(tmp_path: Path) -> None:
    operator, account, system = Identity("operator"), Identity("account"), Identity("account")
    user, stranger = Identity("user"), Identity("user")
    unlimited = dict.fromkeys(("subs", "conn", "leaf", "imports", "exports", "data", "payload"), -1)
    accounts = "\n".join(
        f"{one.public}: {operator.token(one, limits={**unlimited, 'wildcards': True})}" for one in (account, system)
    )
    config = (
        f"operator: {operator.token(operator)}\nsystem_account: {system.public}\n"
        f"resolver: MEMORY\nresolver_preload: {{\n{accounts}\n}}"
    )
    permissions = {"subs": -1, "data": -1, "payload": -1}
    path = tmp_path / "user.creds"

    def write(jwt: str, seed: str) -> None:
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"************************* IMPORTANT *************************\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        )

    write(account.token(user, **permissions), stranger.seed)
    async with nats_server(tmp_path / "nats", config=config) as server:
        bus = Bus(server.url, name="creds", credentials=path)
        await bus.start()
        await eventually(lambda: "Authorization Violation" in (bus.readiness() or ""))
        write(account.token(user, **permissions), user.seed)
        await bus.wait_connected(TIMEOUT)
        await bus.close()


def expiry(certificate: Path) -> float:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()


async def test_tls_with_a_ca_of_ones_own_and_a_server_that_it_does_not_know_is_refused(tmp_path: Path) -> None:
    ours, other = Authority(tmp_path, "ours"), Authority(tmp_path, "others")
    certificate, key = ours.issue()
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}'
    async with nats_server(tmp_path / "nats", config=config) as server:
        good = Bus(server.url, name="tls", ca=ours.ca, ping_interval=0.2)
        await good.start()
        await good.wait_connected(TIMEOUT)
        assert good.connected, good.readiness()
        ends = {"nats_ca": ours.ca, "nats_server": certificate}
        assert good.expirations() == {name: expiry(file) for name, file in ends.items()}
        server.pause()
        await eventually(lambda: not good.connected)
        server.resume()
        await eventually(lambda: good.connected)
        await good.close()
        bad = Bus(server.url, name="tls", ca=other.ca)
        await bad.start()
        await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in (bad.readiness() or ""))
        await bad.close()


@asynccontextmanager
async def nats_like(info: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that begins as nats-server does, and what it receives then; it answers PINGs."""
    received: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"INFO {" + info + b',"max_payload":1000000}\r\n')
        while data := await reader.read(1000):
            received.append(data)
            if b"PING" in data:
                writer.write(b"PONG\r\n")
        received.append(b"")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", received
    server.close()
    await server.wait_closed()


async def test_credentials_are_not_sent_to_a_server_that_does_not_offer_the_tls_that_was_asked_for() -> None:
    async with nats_like(b'"version":"2.12.0","auth_required":true') as (address, received):
        bus = Bus(f"tls://{address}", name="test", user="u", password="secret")
        await bus.start()
        await eventually(lambda: "TLS is asked for, and the server doesn't offer it" in (bus.readiness() or ""))
        await eventually(lambda: received)
        await bus.close()
    assert not any(b"secret" in data for data in received)


async def test_a_server_that_is_too_old_is_refused_with_the_version_that_is_needed() -> None:
    async with nats_like(b'"version":"2.10.29","headers":true') as (address, _):
        bus = Bus(f"nats://{address}", name="test")
        await bus.start()
        await eventually(lambda: "nats-server 2.10.29 is too old, 2.11 or newer is needed" in (bus.readiness() or ""))
        await bus.close()
