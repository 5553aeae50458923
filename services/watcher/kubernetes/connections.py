"""A pool of connections to the API server with one identity, until another pool replaces it.

TLS settings belong to the pool: a new certificate needs a new one. Requests and watches under way go on in the old
pool, which closes after the last of them. Errors of aiohttp become `KubernetesError`s here.
"""

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from msgspec import Struct

from services.watcher.kubernetes.errors import (
    AnswerTooLarge,
    BadAnswer,
    ConfigurationError,
    ConnectionFailed,
    KubernetesError,
    TimedOut,
    TlsFailed,
)
from shared.quantities import format_duration, format_size

PROBES = 3
"""Unanswered TCP keep-alive probes that close a connection."""


class Transport(Struct, frozen=True):
    """The API server, and how to send it requests with an identity; made by `Credentials`."""

    host: str
    """`https://10.96.0.1:443`"""
    send: Callable[..., Awaitable[aiohttp.ClientResponse]]
    """kubernetes-asyncio's `RESTClientObject.request`: knows TLS, proxies and server names."""
    authorization: Callable[[], Awaitable[str]]
    """The current Authorization header; empty for none."""
    close: Callable[[], Awaitable[None]]


class Request(Struct, frozen=True):
    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = {}
    body: Mapping[str, Any] | None = None
    timeout: aiohttp.ClientTimeout = aiohttp.ClientTimeout()
    header_timeout: float | None = None
    """Seconds until the response's headers; None: only `timeout` counts."""


class ConnectionPool:
    """Sends requests with one identity."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._used = 0
        self._responses: set[aiohttp.ClientResponse] = set()
        self._retired = False
        self._closed = False

    @property
    def host(self) -> str:
        return self._transport.host

    @asynccontextmanager
    async def send(self, request: Request) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response, whatever its status. Raises ConnectionFailed, BadAnswer and ConfigurationError, also for what
        fails while the response is read in the context."""
        self._used += 1
        waiting = asyncio.timeout(request.header_timeout)
        try:
            headers = dict(request.headers)
            if authorization := await self._transport.authorization():
                headers["Authorization"] = authorization
            async with waiting:
                response = await self._transport.send(
                    request.method,
                    self.host + request.path,
                    query_params=list(request.query),
                    headers=headers,
                    body=request.body,
                    _preload_content=False,
                    _request_timeout=request.timeout,
                )
            self._responses.add(response)
            try:
                yield response
            finally:
                self._responses.discard(response)
                _close(response)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            if waiting.expired():
                limit = _seconds(request.header_timeout)
                raise TimedOut(f"{self.host} didn't begin to answer within {limit}") from error
            raise to_kubernetes_error(error, self.host, request.timeout) from error
        finally:
            self._used -= 1
            await self._close_unused()

    async def retire(self) -> None:
        """Close after the last request under way."""
        self._retired = True
        await self._close_unused()

    async def close(self) -> None:
        """Close now, and abort what is under way."""
        self._retired = self._closed = True
        for response in self._responses:
            _close(response)  # wakes its reader, which closing the session doesn't
        await self._transport.close()

    async def _close_unused(self) -> None:
        if self._retired and not self._used and not self._closed:
            self._closed = True
            await self._transport.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "retired" if self._retired else "open"
        return f"<ConnectionPool {self.host} {state}, {self._used} in use>"


async def read(response: aiohttp.ClientResponse, limit: int) -> bytearray:
    """The whole body. Raises AnswerTooLarge above `limit` bytes."""
    body = bytearray()  # to join many pieces at the end would hold the event loop as long as decoding them
    async for piece in response.content.iter_any():
        if len(body) + len(piece) > limit:
            raise AnswerTooLarge(f"the answer is larger than the limit of {format_size(limit)} bytes")
        body += piece
    return body


async def read_error(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """At most `limit` bytes of an error's body, or what there is of it: the status is what matters."""
    found = b""
    with contextlib.suppress(aiohttp.ClientError, OSError):
        async for piece in response.content.iter_any():
            found += piece
            if len(found) >= limit:
                break
    return found[:limit]


def enable_keepalive(response: aiohttp.ClientResponse, within: float) -> None:
    """Make the system detect within about so many seconds that the peer is gone, by probes on a silent connection."""
    transport = _transport(response)
    connected = transport.get_extra_info("socket") if transport is not None else None
    if connected is None or not hasattr(socket, "TCP_KEEPIDLE"):
        return  # the response has ended, or this isn't Linux: the inactivity time-out remains
    step = max(1, round(within / (PROBES + 1)))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, step)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, step)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)


def _close(response: aiohttp.ClientResponse) -> None:
    """Return the connection to the pool, or abort it if there is more to come: a TLS shutdown would wait for a hanging
    server."""
    if response.content.is_eof():
        response.release()
        return
    if (transport := _transport(response)) is not None:
        transport.abort()
    response.close()


def _transport(response: aiohttp.ClientResponse) -> asyncio.Transport | None:
    return response.connection.transport if response.connection is not None else None


def to_kubernetes_error(error: BaseException, host: str, timeout: aiohttp.ClientTimeout) -> KubernetesError:
    """The error for one that aiohttp or the system raised."""
    match error:
        case aiohttp.ClientSSLError() | aiohttp.ClientConnectorCertificateError():
            return TlsFailed(f"no TLS with {host}: {_cause(error)}")
        case aiohttp.ConnectionTimeoutError():
            return TimedOut(f"no connection to {host} within {_seconds(timeout.sock_connect)}")
        case aiohttp.SocketTimeoutError():
            return TimedOut(f"nothing came from {host} for {_seconds(timeout.sock_read)}")
        case TimeoutError(errno=None):  # not the system's ETIMEDOUT
            return TimedOut(f"{host} didn't answer completely within {_seconds(timeout.total)}")
        case aiohttp.ClientConnectorDNSError():
            return ConnectionFailed(f"the name in {host} can't be looked up: {_cause(error)}")
        case aiohttp.ClientConnectorError():
            return ConnectionFailed(f"no connection to {host}: {_cause(error)}")
        case aiohttp.InvalidURL():
            return ConfigurationError(f"{host} isn't the address of a server")
        case aiohttp.ClientResponseError():
            return BadAnswer(f"{host} doesn't speak HTTP as expected: {error.message or error}")
        case aiohttp.ClientError() | OSError():
            return ConnectionFailed(f"the connection to {host} broke off: {_cause(error)}")
        case _:
            return ConfigurationError(f"the request to {host} can't be made: {error}")


def _cause(error: BaseException) -> str:
    """The system's message, without what aiohttp adds."""
    inner = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
    if isinstance(inner, OSError) and not isinstance(inner, (ssl.SSLError, socket.gaierror)) and inner.errno:
        return os.strerror(inner.errno)  # asyncio adds the address, which the text already has
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _seconds(timeout: float | None) -> str:
    return "its time" if timeout is None else format_duration(timeout)
