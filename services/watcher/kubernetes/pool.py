"""One pool of connections to the API server and the identity that goes with it, until another one replaces both.

TLS settings belong to the pool: a new certificate needs a new one. Requests and watches under way go on in the old one,
which closes itself after the last of them. What aiohttp raises becomes an error of ours here.
"""

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from msgspec import Struct

from services.watcher.kubernetes.errors import (
    BadAnswer,
    ConfigurationError,
    ConnectionFailed,
    KubernetesError,
    TimedOut,
    TlsFailed,
)
from shared.quantities import format_duration, format_size

PROBES = 3
"""TCP keep-alive probes without an answer after which a connection is given up."""


class Access(Struct, frozen=True):
    """Where the API server is, and how to send it requests as somebody; made by `Credentials`."""

    host: str
    """`https://10.96.0.1:443`"""
    send: Callable[..., Awaitable[aiohttp.ClientResponse]]
    """kubernetes-asyncio's `RESTClientObject.request`: knows TLS, proxies and server names."""
    authorization: Callable[[], Awaitable[str]]
    """The Authorization header as it is to be now; empty for none."""
    close: Callable[[], Awaitable[None]]


class Request(Struct, frozen=True):
    """What to send."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    timeout: aiohttp.ClientTimeout = aiohttp.ClientTimeout()
    begin_timeout: float | None = None
    """Seconds until the answer has to begin; None: only `timeout` counts."""


class Answer:
    """An answer whose headers are here; iterating gives its body in pieces as they come."""

    def __init__(self, response: aiohttp.ClientResponse, failed: Callable[[BaseException], KubernetesError]) -> None:
        self._response = response
        self._failed = failed
        self.status = response.status
        self.reason = response.reason or ""
        self.headers: Mapping[str, str] = response.headers

    def __aiter__(self) -> "Answer":
        return self

    async def __anext__(self) -> bytes:
        """Raises ConnectionFailed or BadAnswer."""
        try:
            data = await self._response.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._failed(error) from error
        if not data:
            raise StopAsyncIteration
        return data

    async def read(self, limit: int) -> bytes:
        """The whole body. Raises BadAnswer above `limit` bytes, ConnectionFailed."""
        pieces, size = [], 0
        async for piece in self:
            size += len(piece)
            if size > limit:
                raise BadAnswer(f"the answer is larger than the limit of {format_size(limit)} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def begin(self, limit: int) -> bytes:
        """Not more than about `limit` bytes of the body, for an error's text."""
        found = b""
        try:
            async for piece in self:
                found += piece
                if len(found) >= limit:
                    break
        except ConnectionFailed:
            pass  # the status says what matters
        return found[:limit]

    def probe(self, within: float) -> None:
        """Let the system find out within so many seconds that the other end is gone, by probes on a silent
        connection; rounded up to what it can do."""
        transport = self._transport()
        connected = transport.get_extra_info("socket") if transport is not None else None
        if connected is None or not hasattr(socket, "TCP_KEEPIDLE"):
            return  # the answer has ended, or this isn't Linux: the inactivity time-out remains
        step = max(1, round(within / (PROBES + 1)))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)

    def close(self) -> None:
        """Give the connection back, or close it if there is more to come: without TLS' farewell, for which a server
        that hangs would be waited for."""
        if self._response.content.is_eof():
            self._response.release()
            return
        if (transport := self._transport()) is not None:
            transport.abort()
        self._response.close()

    def _transport(self) -> asyncio.Transport | None:
        connection = self._response.connection
        return connection.transport if connection is not None else None

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.reason}>"


class Pool:
    """Sends requests with one identity."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._used = 0
        self._answers: set[Answer] = set()
        self._retired = False
        self._closed = False

    @property
    def host(self) -> str:
        return self._access.host

    @asynccontextmanager
    async def ask(self, request: Request) -> AsyncIterator[Answer]:
        """Send it; the answer, whatever its status is. Raises ConnectionFailed, ConfigurationError."""

        def failed(error: BaseException) -> KubernetesError:
            return translate(error, self.host, request.timeout)

        self._used += 1
        try:
            headers = dict(request.headers)
            if authorization := await self._access.authorization():
                headers["Authorization"] = authorization
            try:
                async with asyncio.timeout(request.begin_timeout) as beginning:
                    response = await self._access.send(
                        request.method,
                        self.host + request.path,
                        query_params=list(request.query),
                        headers=headers,
                        body=request.body,
                        _preload_content=False,
                        _request_timeout=request.timeout,
                    )
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                if beginning.expired():
                    limit = _seconds(request.begin_timeout)
                    raise TimedOut(f"{self.host} didn't begin to answer within {limit}") from error
                raise failed(error) from error
            answer = Answer(response, failed)
            self._answers.add(answer)
            try:
                yield answer
            finally:
                self._answers.discard(answer)
                answer.close()
        finally:
            self._used -= 1
            await self._close_unused()

    async def retire(self) -> None:
        """Close after what is under way."""
        self._retired = True
        await self._close_unused()

    async def close(self) -> None:
        """Close now, with whatever is under way."""
        self._retired = self._closed = True
        for answer in self._answers:
            answer.close()  # wakes its reader, which closing the session doesn't
        await self._access.close()

    async def _close_unused(self) -> None:
        if self._retired and not self._used and not self._closed:
            self._closed = True
            await self._access.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "retired" if self._retired else "open"
        return f"<Pool {self.host} {state}, {self._used} in use>"


def translate(error: BaseException, host: str, timeout: aiohttp.ClientTimeout) -> KubernetesError:
    """The error of ours for one that aiohttp or the system raised."""
    if isinstance(error, (aiohttp.ClientSSLError, aiohttp.ClientConnectorCertificateError)):
        return TlsFailed(f"no TLS with {host}: {_cause(error)}")
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return TimedOut(f"no connection to {host} within {_seconds(timeout.sock_connect)}")
    if isinstance(error, aiohttp.SocketTimeoutError):
        return TimedOut(f"nothing came from {host} for {_seconds(timeout.sock_read)}")
    if isinstance(error, TimeoutError) and error.errno is None:  # not the system's ETIMEDOUT
        return TimedOut(f"{host} didn't answer completely within {_seconds(timeout.total)}")
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return ConnectionFailed(f"the name in {host} can't be looked up: {_cause(error)}")
    if isinstance(error, aiohttp.ClientConnectorError):
        return ConnectionFailed(f"no connection to {host}: {_cause(error)}")
    if isinstance(error, aiohttp.InvalidURL):
        return ConfigurationError(f"{host} isn't the address of a server")
    if isinstance(error, aiohttp.ClientResponseError):
        return BadAnswer(f"{host} doesn't speak HTTP as expected: {error.message or error}")
    if isinstance(error, (aiohttp.ClientError, OSError)):
        return ConnectionFailed(f"the connection to {host} broke off: {_cause(error)}")
    return ConfigurationError(f"the request to {host} can't be made: {error}")


def _cause(error: BaseException) -> str:
    """What the system said, without what aiohttp puts around it."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(inner, OSError) and not isinstance(inner, (ssl.SSLError, socket.gaierror)) and inner.errno:
        return os.strerror(inner.errno)  # asyncio has put the address there, which the text has already
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _seconds(timeout: float | None) -> str:
    return "its time" if timeout is None else format_duration(timeout)
