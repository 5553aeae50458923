"""One HTTP GET of a page, with everything that can go wrong told apart.

A model server that hangs, trickles, sends without end, redirects or answers with an error page costs its own freshness
and nothing else: time and size are bounded here, and every failure is a `ScrapeError` of some kind.
"""

from enum import StrEnum
from ssl import SSLCertVerificationError, SSLContext, SSLError

import aiohttp
from yarl import URL

from shared.quantities import format_duration
from shared.version import VERSION


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


class Client:
    """The collector's HTTP client: connections are kept open, one per endpoint and source."""

    def __init__(self, timeout: float, page_limit: int) -> None:
        self.timeout = timeout
        self.page_limit = page_limit
        self._total = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Begin; needs a running event loop."""
        self._session = aiohttp.ClientSession(
            # No limit: a hanging server must never hold the connection that another one waits for.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, ttl_dns_cache=30),
            cookie_jar=aiohttp.DummyCookieJar(),
            # A compressed page would cost the model server's own event loop milliseconds.
            headers={
                "Accept": "text/plain;version=0.0.4;q=1,*/*;q=0.1",
                "Accept-Encoding": "identity",
                "User-Agent": f"pointsman/{VERSION}",
            },
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, url: URL, tls: SSLContext | bool) -> bytes:
        """The body of a 200 answer. Raises `ScrapeError`."""
        assert self._session is not None, "the client is open"
        try:
            async with self._session.get(url, ssl=tls, allow_redirects=False, timeout=self._total) as response:
                return await self._body(response)
        except TimeoutError as error:
            raise ScrapeError(Failure.TIMEOUT, f"no complete answer within {format_duration(self.timeout)}") from error
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError, SSLError) as error:
            raise ScrapeError(Failure.TLS, f"TLS failed: {_cause(error)}") from error
        except aiohttp.ClientConnectorError as error:
            raise ScrapeError(Failure.CONNECT, f"can't connect: {_cause(error)}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ScrapeError(Failure.PROTOCOL, f"the answer failed: {_cause(error)}") from error

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        if response.status != 200:
            if 300 <= response.status < 400:
                where = response.headers.get("Location", "nowhere")
                raise ScrapeError(Failure.REDIRECT, f"redirected ({response.status}) to {where[:200]!r}, not followed")
            raise ScrapeError(Failure.STATUS, f"status {response.status} {response.reason or ''}".rstrip())
        if response.headers.get("Content-Type", "").lower().startswith("text/html"):
            raise ScrapeError(Failure.CONTENT, "the answer is HTML, not a metrics page")
        if response.content_length is not None and response.content_length > self.page_limit:
            raise self._too_large()
        content = response.content
        first = await content.readany()
        if content.at_eof():
            if len(first) > self.page_limit:
                raise self._too_large()
            return first
        pieces, size = [first], len(first)
        while not content.at_eof():
            piece = await content.readany()
            pieces.append(piece)
            size += len(piece)
            if size > self.page_limit:
                raise self._too_large()
        return b"".join(pieces)

    def _too_large(self) -> ScrapeError:
        return ScrapeError(Failure.TOO_LARGE, f"the page is larger than {self.page_limit} bytes")

    def __repr__(self) -> str:
        state = "closed" if self._session is None or self._session.closed else "open"
        return f"<Client {state}>"


def _cause(error: BaseException) -> str:
    """The innermost reason, in one line."""
    inner: BaseException = error
    if isinstance(error, aiohttp.ClientConnectorError):
        inner = error.os_error
    if isinstance(inner, SSLCertVerificationError):
        return inner.verify_message
    text = str(inner) or type(inner).__name__
    return text.splitlines()[0][:300]
