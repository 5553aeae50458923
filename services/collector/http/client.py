"""One HTTP GET of a page, with everything that can go wrong told apart.

A model server that hangs, trickles, sends without end, redirects or answers with an error page costs its own freshness
and nothing else: time and size are bounded here, and every failure is a `ScrapeError` of some kind.
"""

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum
from ssl import SSLCertVerificationError, SSLContext, SSLError
from typing import TypeAlias, cast

from yarl import URL

from services.collector.http.response import (
    HEADER_LIMIT,
    BadResponseError,
    Response,
    ResponseReader,
    TooLargeError,
    expanded,
)
from services.collector.http.tls import tls_context
from shared.quantities import format_duration
from shared.version import VERSION

KEPT = 60.0
"""Seconds for which a connection is kept that nobody uses."""
LOOKS = 20
"""How often within the time-out the connections in use are looked after: an answer may take a twentieth longer."""
MOST_AT_ONCE = 64 * 1024
"""Bytes of an answer after which others have their turn: an event loop reads on while a server sends."""


class Failure(StrEnum):
    """Why a scrape gave no page."""

    ADDRESS = "address"
    """The endpoint has no address that a request can go to."""
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT = "timeout"
    STATUS = "status"
    REDIRECT = "redirect"
    CONTENT = "content"
    """It is HTML: somebody's error page or user interface."""
    TOO_LARGE = "too_large"
    PROTOCOL = "protocol"
    """The answer broke off, or isn't HTTP."""
    INTERNAL = "internal"
    """A defect in a plugin; the log has its traceback."""


class ScrapeError(Exception):
    """No page. Says what happened, for people; `kind` says it for counters."""

    def __init__(self, kind: Failure, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Connection(asyncio.Protocol):
    """A connection to one server, for one request at a time, always the same."""

    def __init__(self, request: bytes, limit: int, header_limit: int) -> None:
        self._request = request
        self._limits = limit, header_limit
        self._transport: asyncio.Transport | None = None
        self._reader: ResponseReader | None = None
        self._waiting: asyncio.Future[Response] | None = None
        self.expires_at = 0.0
        """When an answer that isn't complete by then is given up."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports have another base

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def begun(self) -> bool:
        """Whether anything of an answer has come to the last request."""
        return self._reader is not None and self._reader.begun

    async def ask(self) -> Response:
        """Send the request, wait for the answer. Raises what the reader does, and OSError."""
        assert self._transport is not None, "it is connected"
        self._reader = ResponseReader(*self._limits)
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(self._request)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def data_received(self, data: bytes) -> None:
        if self._waiting is None or self._waiting.done() or self._reader is None:
            self.abort()  # nobody has asked
            return
        try:
            answer = self._reader.feed(data)
        except (BadResponseError, TooLargeError) as error:
            self._fail(error)
            return
        if answer is not None:
            self._waiting.set_result(answer)
        elif len(data) >= MOST_AT_ONCE and self._transport is not None:
            self._transport.pause_reading()
            self._waiting.get_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and self.open:
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._waiting is None or self._waiting.done() or self._reader is None:
            return
        if exc is not None:
            self._waiting.set_exception(exc)
            return
        try:
            self._waiting.set_result(self._reader.end())
        except BadResponseError as error:
            self._waiting.set_exception(error)

    def _fail(self, error: Exception) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self.abort()

    def expire(self) -> None:
        """The time for an answer is over."""
        self._fail(TimeoutError())

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def __repr__(self) -> str:
        return f"<_Connection {'open' if self.open else 'closed'} {self._reader!r}>"


Place: TypeAlias = tuple[URL, SSLContext | bool]


class Client:
    """The collector's HTTP client: connections are kept open, one per endpoint and source."""

    def __init__(
        self,
        timeout: float,
        page_limit: int,
        header_limit: int = HEADER_LIMIT,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.timeout = timeout
        self.page_limit = page_limit
        self.header_limit = header_limit
        self._clock = clock
        self._idle: dict[Place, list[_Connection]] = {}
        self._used: set[_Connection] = set()
        self._timer: asyncio.TimerHandle | None = None
        """Looks after the connections in use: one timer for all of them, because each scrape's own would cost more than
        the scrape's request."""
        self._tls: dict[bool, SSLContext] = {}
        self._sweep_at = 0.0
        self._sweeper: asyncio.TimerHandle | None = None
        """Looks after idle connections when nobody asks anything any more."""
        self._opened = False

    async def open(self) -> None:
        """Begin; needs a running event loop."""
        self._opened = True

    async def close(self) -> None:
        self._opened = False
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        self._timer = self._sweeper = None
        for connection in [*self._used, *(one for many in self._idle.values() for one in many)]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # for the transports to notice

    async def get(self, url: URL, tls: SSLContext | bool) -> bytes:
        """The body of a 200 answer. Raises `ScrapeError`."""
        assert self._opened, "the client is open"
        try:
            answer = await self._ask((url, tls), self._clock() + self.timeout)
            body = await self._expand(answer) if answer.encoding else answer.body
        except TimeoutError as error:
            raise ScrapeError(Failure.TIMEOUT, f"no complete answer within {format_duration(self.timeout)}") from error
        except SSLError as error:
            raise ScrapeError(Failure.TLS, f"TLS failed: {_cause(error)}") from error
        except TooLargeError as error:
            raise ScrapeError(Failure.TOO_LARGE, f"the page is larger than {self.page_limit} bytes") from error
        except (BadResponseError, OSError) as error:
            raise ScrapeError(Failure.PROTOCOL, f"the answer failed: {_cause(error)}") from error
        _check(answer)
        return body

    async def _expand(self, answer: Response) -> bytes:
        """The body of a compressed answer; others have their turn meanwhile."""
        pieces: list[bytes] = []
        for piece in expanded(answer, self.page_limit):
            pieces.append(piece)
            await asyncio.sleep(0)
        return b"".join(pieces)

    async def _ask(self, place: Place, until: float) -> Response:
        idle = self._idle.get(place)
        while idle:
            connection = idle.pop()
            if not connection.open:
                continue
            try:
                return await self._ask_by(connection, place, until)
            except TimeoutError:
                raise
            except (BadResponseError, OSError):
                # The server had closed it while nobody asked: that says nothing about this request.
                if connection.begun:
                    raise
        async with asyncio.timeout(until - self._clock()):
            connection = await self._connect(place)
        return await self._ask_by(connection, place, until)

    async def _ask_by(self, connection: _Connection, place: Place, until: float) -> Response:
        connection.expires_at = until
        self._used.add(connection)
        if self._timer is None:
            self._look_again()
        answer = None
        try:
            answer = await connection.ask()
        finally:
            self._used.discard(connection)
            if answer is None or not answer.reusable:
                connection.abort()
        if answer.reusable and self._opened:
            connection.idle_since = now = self._clock()
            self._idle.setdefault(place, []).append(connection)
            if now >= self._sweep_at:
                self._sweep(now)
            if self._sweeper is None:
                self._sweep_again()
        return answer

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.timeout / LOOKS, self._expire)

    def _expire(self) -> None:
        """Give up answers whose time is over."""
        self._timer = None
        now = self._clock()
        for connection in [one for one in self._used if one.expires_at <= now]:
            connection.expire()
        if self._used and self._opened:
            self._look_again()

    async def _connect(self, place: Place) -> _Connection:
        url, tls = place
        context: SSLContext | None = None
        if url.scheme == "https":
            context = tls if isinstance(tls, SSLContext) else self._default(verify=tls)
        request, host = _request(url), url.host or ""
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(request, self.page_limit, self.header_limit),
                host,
                url.port or 0,
                ssl=context,
                server_hostname=host if context else None,
            )
        except (TimeoutError, SSLError):
            raise
        except (OSError, ValueError) as error:
            raise ScrapeError(Failure.CONNECT, f"can't connect: {_cause(error)}") from error
        return connection

    def _default(self, *, verify: bool) -> SSLContext:
        context = self._tls.get(verify)
        if context is None:
            context = self._tls[verify] = tls_context(verify=verify)
        return context

    def _sweep_again(self) -> None:
        self._sweeper = asyncio.get_running_loop().call_later(1.25 * KEPT, self._sweep_late)

    def _sweep_late(self) -> None:
        self._sweeper = None
        self._sweep(self._clock())
        if self._idle and self._opened:
            self._sweep_again()

    def _sweep(self, now: float) -> None:
        """Close what nobody has used for long: its endpoint is gone, or has another address."""
        self._sweep_at = now + KEPT / 4
        for place, connections in list(self._idle.items()):
            kept = [one for one in connections if one.open and one.idle_since >= now - KEPT]
            for one in connections:
                if one not in kept:
                    one.abort()
            if kept:
                self._idle[place] = kept
            else:
                del self._idle[place]

    def __repr__(self) -> str:
        state = "open" if self._opened else "closed"
        return f"<Client {state}, {len(self._used)} connections in use, {sum(map(len, self._idle.values()))} idle>"


def _request(url: URL) -> bytes:
    # A compressed page would cost the model server's own event loop milliseconds.
    return (
        f"GET {url.raw_path_qs} HTTP/1.1\r\nHost: {url.host_port_subcomponent}\r\n"
        "Accept: text/plain;version=0.0.4;q=1,*/*;q=0.1\r\nAccept-Encoding: identity\r\n"
        f"User-Agent: pointsman/{VERSION}\r\n\r\n"
    ).encode("ascii")


def _check(answer: Response) -> None:
    """Raises `ScrapeError` where the answer is no page."""
    status = answer.status
    if status != 200:
        if 300 <= status < 400:
            where = answer.headers.get("location", "nowhere")
            raise ScrapeError(Failure.REDIRECT, f"redirected ({status}) to {where[:200]!r}, not followed")
        reason = answer.reason[:200]
        raise ScrapeError(
            Failure.STATUS, f"status {status} {reason if reason.isprintable() else repr(reason)}".rstrip()
        )
    if answer.headers.get("content-type", "").lower().startswith("text/html"):
        raise ScrapeError(Failure.CONTENT, "the answer is HTML, not a metrics page")


def _cause(error: BaseException) -> str:
    """The reason, in one line."""
    if isinstance(error, SSLCertVerificationError):
        return error.verify_message
    text = str(error) or type(error).__name__
    return text.splitlines()[0][:300]
