"""The interfaces of polling sources and extractors.

A source returns one answer per endpoint and interval, mostly a page, for the extractors that the configuration gives
it. An extractor creates a binding for each endpoint. The binding reads the answers, keeps state between them, and puts
values into the endpoint's attributes. It ends when the endpoint becomes another server, or when a part of the endpoint
changes that the source or the extractor reads.
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
"""The output of a metrics source; the bindings of its extractors are `MetricsBinding`s."""

_NETWORK_ERRNOS = {errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH}
"""Errors of the network beside Python's `ConnectionError`s."""

Poll: TypeAlias = Callable[[], Awaitable[Any]]
"""Gets one answer of one endpoint."""


class Finding(Struct, frozen=True):
    """The result of the last page for one metric of an extractor."""

    what: str
    """The specification as in the configuration."""
    attribute: str
    outcome: Outcome


class Binding(ABC):
    """An extractor's state for one endpoint. If it raises, the extractor's attributes of the endpoint become absent."""

    @abstractmethod
    def store(self, attributes: AttributeMap, at: float) -> bool:
        """Put the values of the last page, which was requested at `at` (monotonic seconds), into the attributes.
        Returns whether any value changes. Values that the page doesn't have stay and age."""

    @abstractmethod
    def findings(self) -> list[Finding]:
        """The results of the last page."""

    def describe(self) -> dict[str, str]:
        """What it decided about the endpoint, for the debug pages."""
        return {}


class MetricsBinding(Binding):
    """A binding for pages of the Prometheus text format."""

    @property
    @abstractmethod
    def fallbacks(self) -> Sequence[MetricFallback]:
        """The metrics to find on a page; nothing else of it is parsed."""


class Reader(ABC):
    """Reads the answers of one endpoint for its bindings. It may keep state for the next answer."""

    @abstractmethod
    async def read(self, page: Any, at: float) -> None:
        """Pass the bindings an answer that was requested at `at` (monotonic seconds). A bad answer raises nothing, and
        a long one is read with pauses for other tasks."""


class Extractor(Plugin):
    """Turns the answers of a source into attributes."""

    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    INPUT: ClassVar[str]
    """The format that it reads; equal to `OUTPUT` of its source."""

    def bind(self, endpoint: Endpoint) -> Binding:
        """Creates a binding for an endpoint."""
        raise NotImplementedError

    def reads(self, endpoint: Endpoint) -> object:
        """What `bind` reads of an endpoint beside its id and name. While it is equal, the endpoint keeps its binding.
        By default everything."""
        return endpoint


class PollingSource(Plugin):
    """A data source that is polled once per endpoint and interval. `HttpSource` sends one GET. A source with several
    requests, or another protocol, implements `poll`."""

    ROLES = frozenset({Role.DATA_SOURCE})
    TIER = Tier.COLLECTOR
    OUTPUT: ClassVar[str]
    """The format of its answers."""
    OF_SERVER: ClassVar[bool] = True
    """Whether it polls the model server itself, so that failures mean that the server is down."""

    @property
    def interval(self) -> float | None:
        """Seconds between two polls of an endpoint; None for the collector's interval."""
        return None

    def place(self, endpoint: Endpoint) -> str:
        """The URL or address, for messages. Raises ValueError with the reason if the endpoint has none."""
        return endpoint.authority

    def reads(self, endpoint: Endpoint) -> object:
        """What `poll` reads of an endpoint beside its id and name. While it is equal, the endpoint keeps its
        attributes. By default everything."""
        return endpoint

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        """One answer for the extractors' bindings; `http` is the collector's client. It isn't called again before it
        has returned, and it is cancelled after `--scrape-timeout`.

        Raises `ScrapeError`, TimeoutError, ssl.SSLError or an OSError of the network when the endpoint fails. Any other
        exception, such as that of a missing file, counts as a failure of the plugin.
        """
        raise NotImplementedError

    def poller(self, endpoint: Endpoint, http: Client) -> Poll:
        """Polls this endpoint. The function raises only `ScrapeError`, unless the plugin fails."""

        async def poll() -> Any:
            try:
                async with asyncio.timeout(http.timeout):
                    return await self.poll(endpoint, http)
            except TimeoutError as error:
                timeout = format_duration(http.timeout)
                raise ScrapeError(Failure.TIMEOUT, f"no complete response within {timeout}") from error
            except ssl.SSLError as error:
                raise ScrapeError(Failure.TLS, f"TLS failed: {reason_of(error)}") from error
            except OSError as error:
                if not _of_network(error):
                    raise
                raise ScrapeError(Failure.CONNECT, f"can't connect: {reason_of(error)}") from error

        return poll

    def reader(self, bindings: Sequence[Binding]) -> Reader:
        """Creates the reader of one endpoint's answers for these bindings."""
        return _StatelessReader(self, bindings)

    async def read(self, page: Any, bindings: Sequence[Binding]) -> None:
        """Pass the bindings an answer. A bad answer raises nothing, and a long one is read with pauses for other
        tasks."""
        raise NotImplementedError


def _of_network(error: OSError) -> bool:
    """Whether it means that the endpoint is unreachable. asyncio sets no errno when all addresses of a name failed."""
    if isinstance(error, (ConnectionError, socket.gaierror)) or error.errno in _NETWORK_ERRNOS:
        return True
    return error.errno is None and str(error).startswith("Multiple exceptions: ")


class _StatelessReader(Reader):
    """Reads each answer with the source's `read`."""

    def __init__(self, source: PollingSource, bindings: Sequence[Binding]) -> None:
        self._source = source
        self._bindings = bindings

    async def read(self, page: Any, at: float) -> None:
        await self._source.read(page, self._bindings)
