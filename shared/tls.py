"""TLS with peers that may be hostile: what one of them sends takes a bounded part of an event loop's time.

TLS 1.3 has messages without data, KeyUpdate and NewSessionTicket, which a peer may send for ever (RFC 8446, sections
4.6.1 and 4.6.3). OpenSSL takes 9 µs for each, and reads on until one brings data; an event loop's own TLS gives it
megabytes at once, which is seconds. Here, it gets `PIECE` bytes at once, after other connections have had their turn if
it took long, and `MAX_SILENT` bytes that bring no data end the connection.
"""

import asyncio
import ssl
from time import perf_counter
from typing import Any, cast

from shared.tasks import Pace

PIECE = 16 * 2**10
"""Bytes that OpenSSL gets at once, a record of the largest size: 600 of the smallest messages, which take 6 ms."""
MAX_SILENT = 128 * 2**10
"""Bytes in excess of `OVERHEAD` times the data that they bring: a handshake with certificates, of which OpenSSL takes
100 KiB, is less."""
OVERHEAD = 32
"""A record with one byte of data has 23 bytes."""


class TooMuchOverhead(ssl.SSLError):
    """A peer sends much and says little."""

    def __init__(self) -> None:
        super().__init__(ssl.SSL_ERROR_SSL, f"more than {MAX_SILENT} bytes brought no data")


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """A connection with TLS: the protocol of a plain transport, and the transport of a protocol.

    The protocol is connected when the handshake succeeds. It is closed without waiting for the peer's close_notify.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        context: ssl.SSLContext,
        pace: Pace,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        """Connections of one `pace` share their time. Clients give `server_hostname`."""
        super().__init__()
        self._protocol, self._pace = protocol, pace
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._buffer = memoryview(bytearray(PIECE))
        self._transport: asyncio.Transport | None = None
        self._agreed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connected = False
        """Whether the handshake has succeeded, and the protocol knows."""
        self._closing = False
        self._paused = False
        """Whether the protocol reads nothing."""
        self._waits = False
        """Whether what has come waits for its turn."""
        self._silent = 0
        self._failure: Exception | None = None

    async def agree(self) -> None:
        """Wait for the end of the handshake. Raises ssl.SSLError and OSError; cancelled, it closes the connection."""
        try:
            await self._agreed
        except BaseException:
            self.abort()
            raise

    # The protocol of the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._work()  # a client speaks first

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._buffer[:nbytes])
        self._silent += nbytes
        if self._pace.left > 0.0:
            self._work()
        elif self._transport is not None:
            self._waits = True
            self._transport.pause_reading()
            # handshakes, and what brings no data, don't keep others waiting
            self._pace.turns.add(self._take_turn, heavy=not self._connected or self._silent > PIECE)

    def eof_received(self) -> bool:
        if self._connected:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        failure = self._failure or exc
        if self._connected:
            self._protocol.connection_lost(failure)
        elif not self._agreed.done():
            self._agreed.set_exception(failure or ConnectionResetError("closed during the TLS handshake"))

    def pause_writing(self) -> None:
        if self._connected:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._connected:
            self._protocol.resume_writing()

    def _take_turn(self) -> bool:
        self._waits = False
        self._work()
        if self._transport is not None and not self._paused and not self._closing:
            self._transport.resume_reading()
        return False

    def _work(self) -> None:
        """Read what has come, and have the protocol read what is in it."""
        if self._closing:
            return
        began = perf_counter()
        data, ended = b"", False
        try:
            if not self._connected:
                self._tls.do_handshake()
                self._connect()
            data, ended = self._read()
        except ssl.SSLWantReadError:  # the handshake goes on
            pass
        except ssl.SSLError as error:
            self._fail(error)
        self._send()
        self._pace.spend(perf_counter() - began)
        if data:
            self._silent = max(0, self._silent - OVERHEAD * len(data))
            self._protocol.data_received(data)
        if self._silent > MAX_SILENT:
            self._fail(TooMuchOverhead())
        if ended and not self._closing:
            self._protocol.eof_received()
            self.close()

    def _connect(self) -> None:
        self._connected = True
        self._protocol.connection_made(self)
        if not self._agreed.done():
            self._agreed.set_result(None)

    def _read(self) -> tuple[bytes, bool]:
        """The data, and whether the peer has ended it. Raises ssl.SSLError."""
        pieces: list[bytes] = []
        try:
            while piece := self._tls.read(PIECE):
                pieces.append(piece)
                if not self._incoming.pending and not self._tls.pending():
                    break
        except ssl.SSLWantReadError:
            piece = b"-"
        return pieces[0] if len(pieces) == 1 else b"".join(pieces), not piece

    def _fail(self, error: ssl.SSLError) -> None:
        """End the connection. The peer is told why if OpenSSL says so."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self._failure = error
            self._send()
            self._transport.close()

    def _send(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())

    # The transport of the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self._transport is None or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        if self._transport is not None and not self._waits and not self._closing:
            self._transport.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """As of the plain transport, in bytes that are encrypted."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.is_closing():
            return
        try:
            rest = memoryview(data)
            while rest:  # OpenSSL takes a record at once
                rest = rest[self._tls.write(rest) :]
        except ssl.SSLError as error:
            self._fail(error)
        self._send()

    def close(self) -> None:
        if self._transport is None or self._closing:
            return
        self._closing = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:  # the peer hasn't said the same
            pass
        self._send()
        self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        state = "closed" if self.is_closing() else "connected" if self._connected else "in its handshake"
        return f"<TlsConnection {state}, {self._silent} bytes without data>"
