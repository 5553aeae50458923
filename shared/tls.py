"""TLS with peers that may be hostile: what one of them sends takes a bounded part of an event loop's time.

OpenSSL decodes the keys of all certificates of a peer, trusted or not, and one with an elliptic curve of its own takes
0.15 s, so threads read certificates.

TLS 1.3 has messages without data, KeyUpdate and NewSessionTicket, which a peer may send for ever (RFC 8446, sections
4.6.1 and 4.6.3). OpenSSL takes 9 µs for each, and reads on until one brings data; an event loop's own TLS gives it
megabytes at once, which is seconds. Here, it gets `PIECE` bytes at once, after other connections have had their turn if
it took long, and `MAX_SILENT` bytes that bring no data end the connection.
"""

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Hashable
from time import thread_time
from typing import Any, cast

from shared.daemon_threads import DaemonThreads
from shared.tasks import LONG_TURN, Pace

PIECE = 4 * 2**10
"""Bytes that OpenSSL gets at once: 150 of the smallest messages, which take 1.5 ms."""
BUSY = 1000.0
"""For so many times as long as a long turn, in CPU time, a connection has its turns behind all others."""
MAX_SILENT = 128 * 2**10
"""Bytes in excess of `OVERHEAD` times the data that they bring: a handshake with certificates, of which OpenSSL takes
100 KiB, is less."""
OVERHEAD = 32
"""A record with one byte of data has 23 bytes."""
THREADS = 4
"""Handshakes with certificates of peers that go on at once."""


class Handshakes:
    """Takes the steps of handshakes in which peers send certificates, those of one peer one after the other: it can
    occupy one thread."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(THREADS, "handshake")
        self._steps: dict[Hashable, OrderedDict[Callable[[], None], Callable[[Exception | None], None]]] = {}
        """Of each peer: the one that is taken, and those that wait."""

    def take(self, peer: Hashable, step: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        """Take a step in a thread; what it raises is given to `done` in the event loop."""
        waiting = self._steps.setdefault(peer, OrderedDict())
        waiting[step] = done
        if len(waiting) == 1:
            self._begin(peer)

    def forget(self, peer: Hashable, step: Callable[[], None]) -> None:
        """A step that waits is no longer wanted."""
        waiting = self._steps.get(peer)
        if waiting is not None and next(iter(waiting)) != step:
            waiting.pop(step, None)

    def _begin(self, peer: Hashable) -> None:
        try:
            began = asyncio.wrap_future(self._threads.submit(next(iter(self._steps[peer]))))
        except OSError as error:  # no thread can be started
            asyncio.get_running_loop().call_soon(self._end, peer, error)
        else:
            began.add_done_callback(lambda ended: self._end(peer, ended.exception()))

    def _end(self, peer: Hashable, error: BaseException | None) -> None:
        waiting = self._steps[peer]
        _, done = waiting.popitem(last=False)
        if waiting:
            self._begin(peer)
        else:
            del self._steps[peer]
        done(error if error is None or isinstance(error, Exception) else OSError(str(error)))

    def __repr__(self) -> str:
        return f"<Handshakes of {len(self._steps)} peers>"


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
        handshakes: Handshakes | None = None,
    ) -> None:
        """Connections of one `pace` share their time. Clients give `server_hostname`. Without `handshakes`, the peer
        must have no certificates to send."""
        super().__init__()
        self._protocol, self._pace, self._handshakes = protocol, pace, handshakes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        self._buffer = memoryview(bytearray(PIECE))
        self._transport: asyncio.Transport | None = None
        self._agreed: asyncio.Future[None] | None = asyncio.get_running_loop().create_future()
        self._peer: Hashable = None
        """Its address."""
        self._connected = False
        """Whether the handshake has succeeded, and the protocol knows."""
        self._closing = False
        self._paused = False
        """Whether the protocol reads nothing."""
        self._waits = False
        """Whether what has come waits for its turn."""
        self._silent = 0
        self._busy_until = 0.0
        self._failure: Exception | None = None

    async def agree(self) -> None:
        """Wait for the end of the handshake. Raises ssl.SSLError and OSError; cancelled, it closes the connection."""
        assert self._agreed is not None, "it is called once"
        try:
            await self._agreed
        except BaseException:
            self.abort()
            raise
        finally:
            self._agreed = None  # what it raised leads to this frame, and so to this connection

    # The protocol of the plain transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._peer = (transport.get_extra_info("peername") or [None])[0]
        self._work()  # a client speaks first

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._incoming.write(self._buffer[:nbytes])
        self._silent += nbytes
        if self._handshakes is not None and not self._connected:
            self._wait()
            self._handshakes.take(self._peer, self._shake_hands, self._shaken)
            return
        busy = thread_time() < self._busy_until
        if self._pace.left > 0.0 and not busy:
            self._work()
        else:
            self._wait()
            self._pace.turns.add(self._take_turn, heavy=busy or not self._connected)

    def eof_received(self) -> bool:
        if self._connected:
            self._protocol.eof_received()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._closing = None, True
        failure, self._failure = self._failure or exc, None
        if self._handshakes is not None:
            self._handshakes.forget(self._peer, self._shake_hands)
        if self._connected:
            self._protocol.connection_lost(failure)
        elif self._agreed is not None and not self._agreed.done():
            self._agreed.set_exception(failure or ConnectionResetError("closed during the TLS handshake"))

    def pause_writing(self) -> None:
        if self._connected:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._connected:
            self._protocol.resume_writing()

    def _wait(self) -> None:
        """Nothing more comes until what has come is read."""
        self._waits = True
        if self._transport is not None:
            self._transport.pause_reading()

    def _shake_hands(self) -> None:
        if not self._closing:
            self._tls.do_handshake()

    def _shaken(self, error: Exception | None) -> None:
        """A thread has taken a step of the handshake."""
        if self._closing:
            return
        if error is None:
            self._connect()
        elif not isinstance(error, ssl.SSLWantReadError):
            self._fail(error)
        elif self._silent > MAX_SILENT:
            self._fail(TooMuchOverhead())
        self._send()
        if self._connected:
            self._work()
        self._read_on()

    def _take_turn(self) -> bool:
        self._work()
        self._read_on()
        return False

    def _read_on(self) -> None:
        self._waits = False
        if self._transport is not None and not self._paused and not self._closing:
            self._transport.resume_reading()

    def _work(self) -> None:
        """Read what has come, and have the protocol read what is in it."""
        if self._closing:
            return
        began, connected = thread_time(), self._connected
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
        now = thread_time()
        if self._pace.spend(now - began) and connected and now - began > LONG_TURN:
            self._busy_until = now + BUSY * (now - began)
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
        if self._agreed is not None and not self._agreed.done():
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

    def _fail(self, error: Exception) -> None:
        """End the connection. The peer is told why if OpenSSL says so."""
        if self._transport is not None and not self._closing:
            self._closing = True
            self._failure = error.with_traceback(None)  # which leads to this connection
            self._send()
            self._transport.close()

    def _send(self) -> None:
        if self._outgoing.pending and self._transport is not None:
            self._transport.write(self._outgoing.read())

    # The transport of the protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._transport is None else self._transport.get_extra_info(name, default)

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
        """As of the plain transport, in bytes that are encrypted."""
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
