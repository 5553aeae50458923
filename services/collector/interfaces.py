"""What the collector asks of data sources and extractors.

A source gives one answer per endpoint and interval, mostly a page, to the extractors that the configuration hangs on
it.
An extractor is bound to each endpoint: the binding knows the endpoint's engine, takes part in the reading of its pages,
and puts what it finds into the endpoint's attributes. Bindings keep what they learn of their endpoint's pages; they end
when the endpoint becomes another server, or what they read of it changes.
"""

import asyncio
import errno
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.page.selection import MetricFallback, Outcome
from shared.attributes import AttributeMap
from shared.model import Endpoint
from shared.plugin import Plugin, Role, Tier
from shared.plugin_failures import reason_of
from shared.quantities import format_duration

PROMETHEUS_TEXT = "Prometheus text"
"""The format of what a metrics source gives: its extractors' bindings are `MetricsBinding`s."""

_NETWORK_ERRNOS = frozenset(
    {
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.EPIPE,
        errno.ETIMEDOUT,
    }
)
"""Of an OSError: the server, or the way to it, is down."""

Poll: TypeAlias = Callable[[], Awaitable[Any]]
"""Asks one endpoint for one answer."""


class Finding(Struct, frozen=True):
    """What the last page said about one thing that an extractor looks for."""

    what: str
    """The specification, as the configuration writes it."""
    attribute: str
    outcome: Outcome


class Binding(ABC):
    """An extractor at work for one endpoint. Where it raises, what its extractor produces is absent there."""

    @abstractmethod
    def store(self, attributes: AttributeMap, at: float) -> bool:
        """A page has been read: put what it said into the attributes, as seen at `at` (monotonic seconds). Returns
        whether any value is new. What the page didn't say keeps its former value, which ages."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What the last page that was read said."""

    def describe(self) -> dict[str, str]:
        """What was decided when it was bound, for the debug pages."""
        return {}


class MetricsBinding(Binding):
    """A binding that reads pages of the Prometheus text format."""

    @property
    @abstractmethod
    def fallbacks(self) -> Sequence[MetricFallback]:
        """The series that it looks for: the only ones of a page that anybody reads."""


class Reader(ABC):
    """Reads the pages of one endpoint for its bindings; may remember what helps with the next one."""

    @abstractmethod
    async def read(self, page: Any, at: float) -> None:
        """Let the bindings look at an answer that was asked for at `at` (monotonic seconds). Never raises on account of
        the answer, and yields to other work while it reads a long one."""


class Extractor(Plugin):
    """Turns what a source gives into attributes."""

    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    INPUT: ClassVar[str]
    """The format that it understands; its source has to give that."""

    def bind(self, endpoint: Endpoint) -> Binding:
        """The extractor at work for an endpoint as it is now."""
        raise NotImplementedError

    def reads(self, endpoint: Endpoint) -> object:
        """What `bind` reads of an endpoint beside its id and name: while it is equal, the binding stays as it is and
        keeps what it has learnt. Everything, unless a type says less."""
        return endpoint


class PollingSource(Plugin):
    """A data source that is asked for one answer per endpoint and interval. `HttpSource` asks by one HTTP GET; a source
    that needs several requests, or another protocol, implements `poll`."""

    ROLES = frozenset({Role.DATA_SOURCE})
    TIER = Tier.COLLECTOR
    OUTPUT: ClassVar[str]
    """The format that it gives."""
    OF_SERVER: ClassVar[bool] = True
    """Whether it asks the model server itself, so that no answer means that the server is down."""

    @property
    def interval(self) -> float | None:
        """Seconds between two polls of an endpoint; None takes the collector's."""
        return None

    def place(self, endpoint: Endpoint) -> str:
        """Where the endpoint is asked, for people. Raises ValueError that says why it can't be."""
        return endpoint.authority

    def reads(self, endpoint: Endpoint) -> object:
        """What `poll` reads of an endpoint beside its id and name: while it is equal, what is known of the endpoint
        stays. Everything, unless a type says less."""
        return endpoint

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        """One answer of the endpoint, as the extractors' bindings read it; `http` is the collector's client. Never
        called again before it has ended, and cancelled after `--scrape-timeout`.

        Raises `ScrapeError` where the endpoint gives none; TimeoutError, ssl.SSLError and an OSError of the network
        mean that too. Anything else is a defect, and counted as a failure of the plugin: a file that isn't there, say.
        """
        raise NotImplementedError

    def poller(self, endpoint: Endpoint, http: Client) -> Poll:
        """Polls this endpoint; raises nothing but `ScrapeError` where the plugin is sound."""

        async def poll() -> Any:
            try:
                async with asyncio.timeout(http.timeout):
                    return await self.poll(endpoint, http)
            except TimeoutError as error:
                took = format_duration(http.timeout)
                raise ScrapeError(Failure.TIMEOUT, f"no complete answer within {took}") from error
            except ssl.SSLError as error:
                raise ScrapeError(Failure.TLS, f"TLS failed: {reason_of(error)}") from error
            except OSError as error:
                if not _of_network(error):
                    raise
                raise ScrapeError(Failure.CONNECT, f"the endpoint can't be asked: {reason_of(error)}") from error

        return poll

    def reader(self, bindings: Sequence[Binding]) -> Reader:
        """What reads the answers of one endpoint for the extractors that are bound to it."""
        return _PageByPage(self, bindings)

    async def read(self, page: Any, bindings: Sequence[Binding]) -> None:
        """Let the bindings look at an answer by itself. Never raises on account of the answer, and yields to other work
        while it reads a long one."""
        raise NotImplementedError


def _of_network(error: OSError) -> bool:
    """Whether it means that the endpoint can't be reached. asyncio has no errno where a name has several addresses and
    each of them failed."""
    if isinstance(error, (ConnectionError, socket.gaierror)) or error.errno in _NETWORK_ERRNOS:
        return True
    return error.errno is None and str(error).startswith("Multiple exceptions: ")


class _PageByPage(Reader):
    """Reads each answer by itself."""

    def __init__(self, source: PollingSource, bindings: Sequence[Binding]) -> None:
        self._source = source
        self._bindings = bindings

    async def read(self, page: Any, at: float) -> None:
        await self._source.read(page, self._bindings)
