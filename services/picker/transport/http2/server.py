"""Serves gRPC methods over HTTP/2: a listening socket, its connections, their time, and the end."""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from math import inf

import structlog

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Methods
from services.picker.transport.http2.errors import ConnectionFailed, ErrorCode
from services.picker.transport.http2.protocol import Http2Protocol, Reading
from services.picker.transport.http2.streams import StreamCount
from services.picker.transport.http2.unread import make_room
from shared.tasks import Turns, in_turns
from shared.tls import Handshakes, TlsConnection

log = structlog.get_logger(__name__)

TICK = 0.1
"""Seconds between two looks at deadlines and timeouts."""
LOG_EVERY = 1.0
"""Seconds between two lines about connections that ended for a failure."""
_WARNING = 0.2
"""Seconds from the first GOAWAY of a drain to the last one: what a client has sent by then is taken."""
_POLL = 0.02
_FAREWELL = 0.5
"""Seconds for the last bytes of a stopped server."""
_ACCEPTED_AT_ONCE = 100
"""Connections that are accepted before others have their turn."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RESPITE = 1.0
"""Seconds until the next connection is accepted when the system has no descriptors or memory for one."""


class Http2Server:
    """A gRPC server on one address. `tls` is where each new connection gets its context from; None serves plaintext.

    It accepts connections itself, because they count from their TLS handshake on: asyncio's server doesn't report when
    one begins or fails.
    """

    def __init__(
        self,
        methods: Methods,
        options: Http2Options,
        *,
        memory: MemoryBudget,
        clock: Callable[[], float],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._methods, self._options = methods, options
        self._memory, self._clock, self._tls = memory, clock, tls
        self._listener: socket.socket | None = None
        self._streams = StreamCount(options.max_streams)
        self._turns, self._reading, self._handshakes = Turns(), Reading(), Handshakes()
        self._ticker: asyncio.Task[None] | None = None
        self._beginning: set[Http2Protocol] = set()
        """Connections whose TLS isn't agreed upon."""
        self._accepting: set[asyncio.Task[None]] = set()
        self._connections: set[Http2Protocol] = set()
        self._released: set[Http2Protocol] = set()
        """Connections whose clients were asked to open others."""
        self._stopping = False
        self.on_closed: Callable[[], None] = _nothing
        """Called when a connection has ended."""
        self.port = 0
        self._unlogged, self._logged_at = 0, -inf
        self.ended: Counter[str] = Counter()
        """Connections that ended for a failure, by its code."""

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address can't be had."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=host == "::")
        listening.setblocking(False)
        self.port = listening.getsockname()[1]
        self._listener = listening
        if self._tls is not None:
            self._tls()  # what is wrong with it is to be known now
        self._listen()

    async def adopt(self, accepted: socket.socket) -> None:
        """Serve an accepted connection, which may be one too many. Raises OSError and ssl.SSLError."""
        if self._ticker is None:
            self._ticker = asyncio.ensure_future(self._tick())
        room = len(self._beginning) + len(self._connections) < self._options.max_connections
        if not room or self._stopping:
            self.ended["TOO_MANY"] += not room
            accepted.close()
            return
        accepted.setblocking(False)
        loop, protocol = asyncio.get_running_loop(), self._protocol()
        self._beginning.add(protocol)
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(lambda: protocol, accepted)
                return
            context = self._tls()
            certificates = self._handshakes if context.verify_mode is not ssl.CERT_NONE else None
            tls = TlsConnection(protocol, context, self._reading, server_side=True, handshakes=certificates)
            async with asyncio.timeout(self._options.handshake_timeout):
                await loop.connect_accepted_socket(lambda: tls, accepted)
                await tls.agree()
        finally:
            self._beginning.discard(protocol)

    def _listen(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        """Take what has come."""
        listener, loop = self._listener, asyncio.get_running_loop()
        for _ in range(_ACCEPTED_AT_ONCE):
            if listener is None:
                return
            try:
                accepted = listener.accept()[0]
            except OSError as error:
                if error.errno in _NO_RESOURCES:
                    log.warning("grpc.not_accepting", reason=str(error), again_in=_RESPITE)
                    loop.remove_reader(listener)
                    loop.call_later(_RESPITE, self._listen)
                return
            task = asyncio.ensure_future(self._serve(accepted))
            self._accepting.add(task)
            task.add_done_callback(self._accepting.discard)

    async def _serve(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # a client that has gone, or whose TLS fails
            await self.adopt(accepted)

    @property
    def connections(self) -> int:
        """How many are open, those aside that were released."""
        return len(self._connections - self._released)

    async def release(self) -> None:
        """Have the client of the connection with the fewest streams open another one (GOAWAY). This one ends with its
        streams."""
        kept = self._connections - self._released
        if not kept:
            return
        protocol = min(kept, key=lambda protocol: protocol.connection.open)
        self._released.add(protocol)
        protocol.connection.drain(last=False)
        await asyncio.sleep(_WARNING)
        protocol.connection.drain(last=True)
        while protocol in self._connections and protocol.connection.open:  # noqa: ASYNC110 - as in `_until_closed`
            await asyncio.sleep(TICK)
        protocol.close()

    async def stop(self, grace: float) -> None:
        """Take no new streams (GOAWAY), wait up to `grace` seconds for the open ones, end what is left as UNAVAILABLE,
        and close."""
        self._stopping = True
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        end = self._clock() + grace
        self._drain(last=False)
        if grace > 0 and self._connections:
            await asyncio.sleep(min(_WARNING, grace / 2))
        self._drain(last=True)
        await self._until_closed(end)
        for protocol in list(self._connections):
            for _ in protocol.connection.cancel("the picker stops"):
                await asyncio.sleep(0)
        await self._until_closed(self._clock() + _FAREWELL)
        for protocol in list(self._connections):
            protocol.abort()
        await asyncio.sleep(0)  # what has just been accepted is closed
        while self._connections:  # noqa: ASYNC110 - their streams end by turns
            await asyncio.sleep(0)
        for task in self._accepting:
            task.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
            with suppress(asyncio.CancelledError):
                await self._ticker
            self._ticker = None

    async def _until_closed(self, end: float) -> None:
        """Close connections without a stream, until none is open or the time is over."""
        while self._connections:
            for protocol in list(self._connections):
                if not protocol.connection.open:
                    protocol.close()
            if (left := end - self._clock()) <= 0:
                break
            await asyncio.sleep(min(_POLL, left))

    def _drain(self, *, last: bool) -> None:
        for protocol in list(self._connections):
            protocol.connection.drain(last=last)

    def _protocol(self) -> Http2Protocol:
        return Http2Protocol(
            self._methods,
            self._options,
            self._memory,
            self._streams,
            self._clock,
            turns=self._turns,
            reading=self._reading,
            opened=self._on_opened,
            closed=self._on_closed,
        )

    def _on_opened(self, protocol: Http2Protocol) -> bool:
        self._beginning.discard(protocol)
        self._connections.add(protocol)
        return not self._stopping

    def _on_closed(self, protocol: Http2Protocol) -> None:
        self._connections.discard(protocol)
        self._released.discard(protocol)
        if (failure := protocol.connection.failure) is not None:
            self.ended[failure.code.name] += 1
            if failure.code is not ErrorCode.NO_ERROR:
                self._log(protocol.peer, failure)
        self.on_closed()

    def _log(self, peer: str, failure: ConnectionFailed) -> None:
        """A connection has broken the protocol, or a limit: a client may open as many as it likes."""
        self._unlogged += 1
        now = self._clock()
        if now - self._logged_at >= LOG_EVERY:
            log.warning("grpc.connection_ended", peer=peer, reason=str(failure), since_last_line=self._unlogged)
            self._unlogged, self._logged_at = 0, now

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            async for protocol in in_turns(list(self._connections)):
                protocol.tick(self._clock())
            make_room(
                chain.from_iterable(protocol.connection.unread for protocol in self._connections),
                self._memory,
                self._clock(),
            )

    def __repr__(self) -> str:
        return f"<Http2Server on port {self.port}, {len(self._connections)} connections>"


def _nothing() -> None:
    """Nobody wants to know."""
