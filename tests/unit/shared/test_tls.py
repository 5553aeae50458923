"""TLS in bounded steps: against Python's own at the other end, with messages that it would never send."""

import asyncio
import gc
import hmac
import ssl
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import shared.tls
from shared.tasks import SECONDS_AT_ONCE, Pace
from shared.tls import MAX_SILENT, PIECE, Handshakes, TlsConnection, TooMuchOverhead
from tests.certificates import Authority
from tests.waiting import eventually

KEY_UPDATE = b"\x18\x00\x00\x01\x00"
"""RFC 8446, section 4.6.3: the peer need not update its own."""
HANDSHAKE, DATA = b"\x16", b"\x17"
"""Kinds of records."""
END = 100
"""Bytes of a record that has no data, at most."""


class Wire(asyncio.Transport):
    """What a connection does with its socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.reading = True
        self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def take(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def is_closing(self) -> bool:
        return self.closed or self.aborted


class Application(asyncio.Protocol):
    """Notes what happens."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = b""
        self.ended = False
        self.lost: list[Exception | None] = []
        self.pauses = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, TlsConnection)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        if self.pauses:
            assert self.transport is not None
            self.transport.pause_reading()

    def eof_received(self) -> None:
        self.ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost.append(exc)


class Peer:
    """A client. It makes records itself, too (RFC 8446, sections 5.2 and 7.3)."""

    def __init__(self, context: ssl.SSLContext, log: Path) -> None:
        context.keylog_filename = str(log)
        self._log = log
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._secret = b""
        self._sent = 0

    async def shake(self, connection: TlsConnection, wire: Wire, until: Callable[[], bool] = lambda: True) -> None:
        """The whole handshake; each step goes on `until` then. Raises ssl.SSLError."""
        for _ in range(3):
            self._incoming.write(wire.take())
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            feed(connection, self._outgoing.read())
            await asyncio.sleep(0)  # until its turn
            await eventually(until)
        assert self.tls.cipher() == ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256)
        lines = [line.split() for line in self._log.read_text().splitlines()]
        self._secret = [bytes.fromhex(line[2]) for line in lines if line[0] == "CLIENT_TRAFFIC_SECRET_0"][-1]

    def write(self, data: bytes) -> bytes:
        """Its records."""
        self.tls.write(data)
        return self.take()

    def take(self) -> bytes:
        return self._outgoing.read()

    def read(self, sent: bytes) -> bytes:
        self._incoming.write(sent)
        data = b""
        while self._incoming.pending > END:
            data += self.tls.read(2**16)
        return data

    def record(self, content: bytes, kind: bytes) -> bytes:
        """The next record."""
        header = b"\x17\x03\x03" + (len(content) + 17).to_bytes(2, "big")
        nonce = int.from_bytes(self._derive(b"iv", 12), "big") ^ self._sent
        self._sent += 1
        return header + AESGCM(self._derive(b"key", 32)).encrypt(nonce.to_bytes(12, "big"), content + kind, header)

    def key_update(self) -> bytes:
        """A record that brings no data."""
        made = self.record(KEY_UPDATE, HANDSHAKE)
        self._secret, self._sent = self._derive(b"traffic upd", 48), 0
        return made

    def _derive(self, label: bytes, length: int) -> bytes:
        label = b"tls13 " + label
        info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
        return hmac.digest(self._secret, info + b"\1", "sha384")[:length]


def feed(connection: TlsConnection, sent: bytes) -> None:
    """As an event loop does: no more at once than there is room for."""
    while sent:
        buffer = connection.get_buffer(-1)
        part, sent = sent[: len(buffer)], sent[len(buffer) :]
        buffer[: len(part)] = part
        connection.buffer_updated(len(part))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


class Ends:
    """A server's connection and its client."""

    def __init__(self, authority: Authority, pace: Pace | None = None, handshakes: Handshakes | None = None) -> None:
        context = ssl.create_default_context(cafile=str(authority.ca))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.pace = pace or Pace()
        self.application, self.wire = Application(), Wire()
        server = authority.server()
        server.set_ciphers("ECDHE+AESGCM")
        self.connection = TlsConnection(self.application, server, self.pace, server_side=True, handshakes=handshakes)
        self.peer = Peer(context, authority.ca.with_name("keys"))
        self.connection.connection_made(self.wire)


@pytest.fixture
async def ends(authority: Authority) -> Ends:
    made = Ends(authority)
    await made.peer.shake(made.connection, made.wire)
    await made.connection.agree()
    return made


async def test_data_arrives_and_goes_out_whole(ends: Ends) -> None:
    sent = bytes(range(256)) * 60
    feed(ends.connection, ends.peer.write(sent))
    await asyncio.sleep(0)  # until its turn
    assert ends.application.received == sent
    ends.connection.write(sent)
    assert ends.peer.read(ends.wire.take()) == sent


async def test_messages_without_data_end_the_connection(ends: Ends) -> None:
    flood = b"".join(ends.peer.key_update() for _ in range(2 * MAX_SILENT // 27))
    pieces = [flood[at : at + PIECE] for at in range(0, len(flood), PIECE)]
    for number, piece in enumerate(pieces):
        assert ends.wire.closed == (number * PIECE >= MAX_SILENT)
        feed(ends.connection, piece)
        await asyncio.sleep(0)  # until its turn
    ends.connection.connection_lost(None)
    [error] = ends.application.lost
    assert isinstance(error, TooMuchOverhead)
    assert str(error) == f"more than {MAX_SILENT} bytes brought no data"


async def test_messages_without_data_that_come_at_once_are_read_in_turns(ends: Ends) -> None:
    assert len(ends.connection.get_buffer(10 * PIECE)) == PIECE
    ends.pace.spend(2 * SECONDS_AT_ONCE)
    feed(ends.connection, b"".join(ends.peer.key_update() for _ in range(10)))
    assert not ends.wire.reading, "the rest waits"
    ends.connection.pause_reading()
    ends.connection.resume_reading()
    assert not ends.wire.reading, "whatever the application wants"
    await asyncio.sleep(0)
    assert ends.wire.reading


async def test_of_those_whose_bytes_take_long_one_has_its_turn_after_all_others(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    pace = Pace()
    made = [Ends(authority, pace) for _ in range(3)]
    for ends in made:
        await ends.peer.shake(ends.connection, ends.wire)
    slow, seconds = made[:2], count(time.thread_time())

    def feed_all(connections: Sequence[Ends], text: bytes) -> None:
        for ends in connections:
            feed(ends.connection, ends.peer.record(text, DATA))

    pace.left = 3600.0
    with monkeypatch.context() as patched:
        patched.setattr(shared.tls, "thread_time", lambda: next(seconds))
        feed_all(slow, b"slow")
    pace.left = 3600.0
    feed_all(made, b" data")
    assert [ends.application.received for ends in made] == [b"slow", b"slow", b" data"]
    await asyncio.sleep(0)
    assert [ends.application.received for ends in made] == [b"slow data", b"slow", b" data"]


async def test_what_waits_when_the_connection_is_lost_reaches_nobody(ends: Ends) -> None:
    ends.pace.left = 0.0
    feed(ends.connection, ends.peer.write(b"data"))
    ends.connection.connection_lost(None)
    await asyncio.sleep(0)
    assert (ends.application.received, ends.application.lost) == (b"", [None])


async def test_an_application_that_pauses_in_its_turn_gets_no_more(ends: Ends) -> None:
    ends.application.pauses = True
    ends.pace.spend(2 * SECONDS_AT_ONCE)
    feed(ends.connection, ends.peer.write(b"data"))
    await asyncio.sleep(0)
    assert ends.application.received == b"data"
    assert not ends.wire.reading
    ends.connection.resume_reading()
    assert ends.wire.reading


async def test_records_with_a_byte_each_and_rare_key_updates_are_in_order(ends: Ends) -> None:
    fed = number = 0
    while fed < 2 * MAX_SILENT:
        records = b"".join(ends.peer.record(b"-", DATA) for _ in range(100)) + ends.peer.key_update()
        feed(ends.connection, records)
        await asyncio.sleep(0)  # until its turn
        fed += len(records)
        number += 100
    assert ends.application.received == b"-" * number
    assert not ends.wire.closed


async def test_the_end_of_the_peers_data_closes(ends: Ends) -> None:
    last = ends.peer.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        ends.peer.tls.unwrap()
    feed(ends.connection, last + ends.peer.take())
    assert (ends.application.received, ends.application.ended) == (b"last", True)
    assert ends.wire.closed
    ends.connection.connection_lost(None)
    assert ends.application.lost == [None]


async def test_a_connection_says_that_it_ends(ends: Ends) -> None:
    ends.connection.write(b"last")
    ends.connection.close()
    assert ends.connection.is_closing()
    assert ends.wire.closed
    sent = ends.wire.take()
    assert ends.peer.read(sent) == b"last"
    assert ends.peer.tls.read() == b"", "close_notify"
    ends.connection.write(b"more")
    assert ends.wire.take() == b""


async def test_a_broken_record_ends_the_connection(ends: Ends) -> None:
    broken = bytearray(ends.peer.write(b"data"))
    broken[-1] ^= 1
    feed(ends.connection, bytes(broken))
    assert ends.wire.closed
    with pytest.raises(ssl.SSLError, match="BAD_RECORD_MAC"):
        ends.peer.read(ends.wire.take())
    ends.connection.connection_lost(None)
    assert isinstance(ends.application.lost[0], ssl.SSLError)


async def test_a_connection_that_is_lost_in_its_handshake_fails(authority: Authority) -> None:
    ends = Ends(authority)
    ends.connection.connection_lost(None)
    with pytest.raises(ConnectionResetError, match="closed during the TLS handshake"):
        await ends.connection.agree()
    assert ends.application.transport is None
    assert ends.application.lost == []


async def test_a_peer_that_speaks_no_tls_fails_the_handshake(authority: Authority) -> None:
    ends = Ends(authority)
    feed(ends.connection, b"GET / HTTP/1.1\r\n\r\n")
    assert ends.wire.closed
    ends.connection.connection_lost(None)
    with pytest.raises(ssl.SSLError, match="HTTP_REQUEST"):
        await ends.connection.agree()


async def test_whoever_stops_waiting_for_the_handshake_closes_the_connection(authority: Authority) -> None:
    ends = Ends(authority)
    waiting = asyncio.ensure_future(ends.connection.agree())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ends.wire.aborted
    ends.connection.connection_lost(None)


async def test_certificates_of_a_peer_are_read_in_one_thread_at_a_time() -> None:
    handshakes, going_on, done = Handshakes(), threading.Event(), list[str]()

    def take(peer: str, name: str, step: Callable[[], object] = bool) -> None:
        def taken() -> None:
            step()

        handshakes.take(peer, taken, lambda error: done.append(f"{name}: {error}"))

    take("hostile", "slow", going_on.wait)
    take("hostile", "behind it", lambda: 1 / 0)
    take("good", "other")
    await eventually(lambda: done == ["other: None"])
    going_on.set()
    await eventually(lambda: done == ["other: None", "slow: None", "behind it: division by zero"])


async def test_a_handshake_with_certificates_is_taken_in_threads(authority: Authority) -> None:
    ends = Ends(authority, handshakes=Handshakes())
    shaking = asyncio.ensure_future(ends.peer.shake(ends.connection, ends.wire, until=lambda: ends.wire.reading))
    await ends.connection.agree()
    await shaking
    feed(ends.connection, ends.peer.write(b"data"))
    await eventually(lambda: ends.application.received == b"data")


async def test_a_connection_that_is_lost_while_a_thread_has_it_stays_lost(authority: Authority) -> None:
    handshakes = Handshakes()
    ends = Ends(authority, handshakes=handshakes)
    feed(ends.connection, b"GET / HTTP/1.1\r\n\r\n")
    assert not ends.wire.reading
    ends.connection.connection_lost(None)
    with pytest.raises(ConnectionResetError):
        await ends.connection.agree()
    await eventually(lambda: not handshakes._steps)
    assert ends.application.transport is None


@pytest.mark.parametrize("handshakes", [None, Handshakes()], ids=["in the event loop", "in threads"])
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\0\5\1\0\0\1\0"])
async def test_a_connection_whose_handshake_fails_is_freed_at_once(
    authority: Authority, handshakes: Handshakes | None, sent: bytes
) -> None:
    """Pickers search for circles of references once a minute at most."""
    ends = Ends(authority, handshakes=handshakes)
    agreeing, left, wire = asyncio.ensure_future(ends.connection.agree()), weakref.ref(ends.connection), ends.wire
    await asyncio.sleep(0)
    feed(ends.connection, sent)
    await eventually(lambda: wire.closed or not sent)
    gc.disable()
    try:
        ends.connection.connection_lost(None)
        assert isinstance((await asyncio.gather(agreeing, return_exceptions=True))[0], OSError)
        del ends, agreeing
        await eventually(lambda: left() is None)
    finally:
        gc.enable()


async def test_a_connection_that_breaks_is_freed_at_once(authority: Authority) -> None:
    ends = Ends(authority)
    await ends.peer.shake(ends.connection, ends.wire)
    await ends.connection.agree()
    left = weakref.ref(ends.connection)
    feed(ends.connection, b"\x17\x03\x03\x00\x20" + bytes(32))
    gc.disable()
    try:
        ends.connection.connection_lost(None)
        del ends
        await eventually(lambda: left() is None)
    finally:
        gc.enable()


async def test_the_steps_of_connections_that_are_lost_wait_no_more(authority: Authority) -> None:
    handshakes, going_on = Handshakes(), threading.Event()
    handshakes.take(None, lambda: [going_on.wait()].clear(), lambda error: None)
    ends = Ends(authority, handshakes=handshakes)
    feed(ends.connection, b"GET / HTTP/1.1\r\n\r\n")
    left = weakref.ref(ends.connection)
    gc.disable()
    try:
        ends.connection.connection_lost(None)
        with pytest.raises(ConnectionResetError):
            await ends.connection.agree()
        del ends
        await eventually(lambda: left() is None)
    finally:
        gc.enable()
        going_on.set()
    await eventually(lambda: not handshakes._steps)
