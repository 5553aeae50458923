"""The collector's HTTP client: GET requests over kept connections, with limits on time and size.

A model server that hangs, trickles, sends without end, redirects or answers with an error page only affects its own
endpoint. Every failure is a `ScrapeError` with a kind.
"""

import asyncio
import time
from enum import StrEnum
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import Any, TypeAlias, cast

from yarl import URL

from services.collector.http.names import Names
from services.collector.http.response import (
    HEADER_LIMIT,
    BadResponseError,
    Response,
    ResponseReader,
    TooLargeError,
    decompress,
)
from services.collector.http.tls import tls_context
from shared.quantities import format_duration
from shared.tasks import Pace
from shared.tls import Handshakes, TlsConnection
from shared.version import VERSION

KEEPALIVE = 60.0
"""Seconds after which an idle connection is closed."""
CHECKS = 20
"""Checks for time-outs within the time-out: a response may take a twentieth longer."""
MAX_READ = 64 * 1024
"""Bytes that are read before other tasks run. An event loop reads on while a server sends."""


LARGE, MAX_LARGE = 256 * 2**10, 4
"""Bytes of a large page, and how many of these are held at once: usual pages have a fifth."""
CROWDED = f"{MAX_LARGE} pages of other servers have more than {LARGE} bytes, too, and took all the time"
SHARE = 10
"""A tenth of the time-out is how long a large page may take, from then on, while others wait for its place."""
SLOW = f"the page has more than {LARGE} bytes and came too slowly while such pages of other servers waited"


class Failure(StrEnum):
    """Why a scrape failed."""

    ADDRESS = "address"
    """The endpoint has no usable address."""
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"
    REDIRECT = "redirect"
    CONTENT = "content"
    """The response is HTML: an error page or a user interface."""
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"
    """The response is incomplete or not HTTP."""
    INTERNAL = "internal"
    """A plugin failed; the log has its traceback."""


class ScrapeError(Exception):
    """A scrape failed: a message for people, and `kind` for counters."""

    def __init__(self, kind: Failure, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _LargePages:
    """Places for the large pages of all servers. A task has one from then on until it ends, when the page is read."""

    def __init__(self, share: float) -> None:
        """`share`: seconds in which a page has to come while others wait."""
        self._share = share
        self._having: dict[asyncio.Task[Any], float] = {}
        """Since when."""
        self._waiting: dict[asyncio.Task[Any], asyncio.Future[None]] = {}

    def take(self, task: asyncio.Task[Any]) -> asyncio.Future[None] | None:
        """None if the task has a place; otherwise, that is done when it gets one."""
        if task in self._having:
            return None
        turn = self._waiting.get(task)
        if turn is None:
            task.add_done_callback(self._end)
            if len(self._having) < MAX_LARGE:
                self._having[task] = time.monotonic()
                return None
            turn = self._waiting[task] = asyncio.get_running_loop().create_future()
        return turn

    def is_slow(self, task: asyncio.Task[Any], now: float) -> bool:
        """Whether others wait for the task's place, and it has had it for too long."""
        return bool(self._waiting) and now - self._having.get(task, now) > self._share

    def _end(self, task: asyncio.Task[Any]) -> None:
        self._waiting.pop(task, None)
        self._having.pop(task, None)
        if self._waiting and len(self._having) < MAX_LARGE:
            following = next(iter(self._waiting))
            turn = self._waiting.pop(following)
            self._having[following] = time.monotonic()
            if not turn.done():
                turn.set_result(None)

    def __repr__(self) -> str:
        return f"<_LargePages {len(self._having)}, {len(self._waiting)} waiting>"


def _current_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    return task


class _Connection(asyncio.Protocol):
    """A connection that repeats one request, one at a time."""

    def __init__(self, request: bytes, limit: int, header_limit: int, large: _LargePages) -> None:
        self._request = request
        self._limits = limit, header_limit
        self._large = large
        self._turn: asyncio.Future[None] | None = None
        """Not done while the page is large and has to wait for others."""
        self._task: asyncio.Task[Any] | None = None
        """The one that waits for the response."""
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._response: asyncio.Future[Response] | None = None
        self.expires_at = 0.0
        """When the present request times out."""
        self.idle_since = 0.0
        self.response_started = False
        """Whether something of the last response had come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another base

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def request(self) -> Response:
        """Send the request and wait for the response. Raises what the reader raises, and OSError."""
        assert self._transport is not None, "it is connected"
        self._reader = reader = ResponseReader(*self._limits)
        self._task = _current_task()
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        try:
            return await self._response
        finally:
            self.response_started = reader.started
            self._response = self._task = self._turn = self._reader = None  # the reader holds the page

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done() or self._reader is None or self._task is None:
            self.abort()  # there is no request
            return
        try:
            response = self._reader.feed(data)
        except (BadResponseError, TooLargeError) as error:
            self._fail(error)
            return
        if response is not None:
            self._response.set_result(response)
        elif self._transport is None:
            return
        elif self._reader.size > LARGE and (turn := self._large.take(self._task)) is not None:
            self._turn = turn
            self._transport.pause_reading()
            turn.add_done_callback(lambda _: self._resume_reading())
        elif len(data) >= MAX_READ:
            self._transport.pause_reading()
            self._response.get_loop().call_soon(self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and self.open:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._response is None or self._response.done() or self._reader is None:
            return
        try:
            if exc is not None:
                raise exc
            self._response.set_result(self._reader.end())
        except Exception as error:  # noqa: BLE001 - `request` raises it
            self._response.set_exception(error)

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self.abort()

    def expire(self, now: float) -> None:
        """Fail the request if it has timed out, or if it keeps others waiting."""
        if self.expires_at <= now:
            waits = self._turn is not None and not self._turn.done()
            self._fail(TooLargeError(CROWDED) if waits else TimeoutError())
        elif self._task is not None and self._large.is_slow(self._task, now):
            self._fail(TooLargeError(SLOW))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        return f"<_Connection {'open' if self.open else 'closed'} {self._reader!r}>"


_Key: TypeAlias = tuple[URL, SSLContext | bool]


class Client:
    """Sends GET requests. It keeps connections open, one for each URL and concurrent request."""

    def __init__(
        self, timeout: float, page_limit: int, header_limit: int = HEADER_LIMIT, names: Names | None = None
    ) -> None:
        self.timeout = timeout
        self.page_limit = page_limit
        self.header_limit = header_limit
        self._names = names or Names()
        self._large = _LargePages(timeout / SHARE)
        self._idle: dict[_Key, list[_Connection]] = {}
        self._used: set[_Connection] = set()
        self._expiry: asyncio.TimerHandle | None = None
        """One timer for all requests: a timer each would cost more than the request."""
        self._sweep: asyncio.TimerHandle | None = None
        self._tls: dict[bool, SSLContext] = {}
        self._pace, self._handshakes = Pace(), Handshakes()
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for timer in (self._expiry, self._sweep):
            if timer is not None:
                timer.cancel()
        for connection in [*self._used, *(each for connections in self._idle.values() for each in connections)]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close

    async def get(self, url: URL, tls: SSLContext | bool) -> bytes:
        """The body of a response with status 200. Raises `ScrapeError`."""
        until = time.monotonic() + self.timeout
        try:
            response = await self._request((url, tls), until)
            body = await self._decompress(response, until) if response.encoding else response.body
        except TimeoutError as error:
            message = f"no complete response within {format_duration(self.timeout)}"
            raise ScrapeError(Failure.TIMEOUT, message) from error
        except SSLError as error:
            raise ScrapeError(Failure.TLS, f"TLS failed: {_cause(error)}") from error
        except TooLargeError as error:
            message = str(error) or f"the page is larger than {self.page_limit} bytes"
            raise ScrapeError(Failure.TOO_LARGE, message) from error
        except (BadResponseError, OSError) as error:
            raise ScrapeError(Failure.PROTOCOL, f"no valid response: {_cause(error)}") from error
        _check(response)
        return body

    async def _decompress(self, response: Response, until: float) -> bytes:
        pieces: list[bytes] = []
        size = 0
        for piece in decompress(response, self.page_limit):
            pieces.append(piece)
            size += len(piece)
            if size > LARGE and (turn := self._large.take(_current_task())) is not None:
                try:
                    async with asyncio.timeout(until - time.monotonic()):
                        await turn
                except TimeoutError as error:
                    raise TooLargeError(CROWDED) from error
            await asyncio.sleep(0)
        return b"".join(pieces)

    async def _request(self, key: _Key, until: float) -> Response:
        idle = self._idle.get(key)
        while idle:
            connection = idle.pop()
            if not connection.open:
                continue
            try:
                return await self._request_over(connection, key, until)
            except TimeoutError:
                raise
            except (BadResponseError, OSError):
                # A server may close an idle connection at any time: try another one.
                if connection.response_started:
                    raise
        async with asyncio.timeout(until - time.monotonic()):
            connection = await self._connect(key)
        return await self._request_over(connection, key, until)

    async def _request_over(self, connection: _Connection, key: _Key, until: float) -> Response:
        connection.expires_at = until
        self._used.add(connection)
        if self._expiry is None:
            self._expiry = asyncio.get_running_loop().call_later(self.timeout / CHECKS, self._expire)
        response = None
        try:
            response = await connection.request()
        finally:
            self._used.discard(connection)
            if response is None or not response.reusable:
                connection.abort()
        if response.reusable and not self._closed:
            connection.idle_since = time.monotonic()
            self._idle.setdefault(key, []).append(connection)
            if self._sweep is None:
                self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE / 4, self._close_idle)
        return response

    def _expire(self) -> None:
        """Fail the requests that have timed out, or keep others waiting."""
        self._expiry = None
        now = time.monotonic()
        for connection in list(self._used):
            connection.expire(now)
        if self._used and not self._closed:
            self._expiry = asyncio.get_running_loop().call_later(self.timeout / CHECKS, self._expire)

    async def _connect(self, key: _Key) -> _Connection:
        url, tls = key
        context: SSLContext | None = None
        if url.scheme == "https":
            context = tls if isinstance(tls, SSLContext) else self._default_context(verify=tls)
        failure: OSError | ValueError = OSError("its name has no address")
        try:
            request, host = _request_bytes(url), url.host or ""
            for address in await self._names.addresses(host):
                try:
                    connection = _Connection(request, self.page_limit, self.header_limit, self._large)
                    await self._open(connection, address, url.port or 0, host, context)
                except (TimeoutError, SSLError):
                    raise
                except OSError as error:
                    failure = error
                else:
                    return connection
        except (TimeoutError, SSLError):
            raise
        except (OSError, ValueError) as error:
            failure = error
        raise ScrapeError(Failure.CONNECT, f"can't connect: {_cause(failure)}") from failure

    async def _open(
        self, connection: _Connection, address: str, port: int, host: str, context: SSLContext | None
    ) -> None:
        """Connect it. Raises SSLError and OSError."""
        loop = asyncio.get_running_loop()
        if context is None:
            await loop.create_connection(lambda: connection, address, port)
            return
        tls = TlsConnection(connection, context, self._pace, server_hostname=host, handshakes=self._handshakes)
        await loop.create_connection(lambda: tls, address, port)
        await tls.agree()

    def _default_context(self, *, verify: bool) -> SSLContext:
        if verify not in self._tls:
            self._tls[verify] = tls_context(verify=verify)
        return self._tls[verify]

    def _close_idle(self) -> None:
        """Close the connections that were idle for long: their endpoint is gone, or has another address."""
        self._sweep = None
        oldest = time.monotonic() - KEEPALIVE
        for key, connections in list(self._idle.items()):
            kept: list[_Connection] = []
            for connection in connections:
                if connection.open and connection.idle_since >= oldest:
                    kept.append(connection)
                else:
                    connection.abort()
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]
        if self._idle and not self._closed:
            self._sweep = asyncio.get_running_loop().call_later(KEEPALIVE / 4, self._close_idle)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Client {state}, {len(self._used)} connections in use, {sum(map(len, self._idle.values()))} idle>"


def _request_bytes(url: URL) -> bytes:
    # Compression would cost milliseconds of the model server's event loop.
    return (
        f"GET {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        "Accept: text/plain;version=0.0.4;q=1,*/*;q=0.1\r\nAccept-Encoding: identity\r\n"
        f"User-Agent: pointsman/{VERSION}\r\n\r\n"
    ).encode("ascii")


def _check(response: Response) -> None:
    """Raises `ScrapeError` when the response isn't a page."""
    status = response.status
    if 300 <= status < 400:
        location = response.headers.get("location", "nowhere")
        raise ScrapeError(Failure.REDIRECT, f"redirected ({status}) to {location[:200]!r}, not followed")
    if status != 200:
        reason = response.reason[:200]
        raise ScrapeError(
            Failure.STATUS, f"status {status} {reason if reason.isprintable() else repr(reason)}".rstrip()
        )
    if response.headers.get("content-type", "").lower().startswith("text/html"):
        raise ScrapeError(Failure.CONTENT, "the response is HTML, not a metrics page")


def _cause(error: BaseException) -> str:
    """The reason in one line."""
    if isinstance(error, SSLCertVerificationError):
        return error.verify_message
    return (str(error) or type(error).__name__).splitlines()[0]
