"""What the collector asks of data sources and extractors.

A source is asked for one page per endpoint and interval, and feeds the extractors that the configuration hangs on it.
An extractor is bound to each endpoint: the binding knows the endpoint's engine, takes part in the reading of its pages,
and puts what it finds into the endpoint's attributes. Bindings keep what they learn of their endpoint's pages; they end
when the endpoint becomes another server, or what they read of it changes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ssl import SSLContext
from typing import ClassVar

from msgspec import Struct

from services.collector.page.selection import Choice, Outcome
from shared.attributes import AttributeMap
from shared.model import Endpoint
from shared.plugin import Plugin, Role, Tier

PROMETHEUS_TEXT = "Prometheus text"
"""The format of what a metrics source gives: its extractors' bindings are `MetricsBinding`s."""


class Finding(Struct, frozen=True):
    """What the last page said about one thing that an extractor looks for."""

    what: str
    """The specification, as the configuration writes it."""
    attribute: str
    outcome: Outcome


class Binding(ABC):
    """An extractor at work for one endpoint."""

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
    def choices(self) -> Sequence[Choice]:
        """The series that it looks for: the only ones of a page that anybody reads."""


class Reader(ABC):
    """Reads the pages of one endpoint for its bindings; may remember what helps with the next one."""

    @abstractmethod
    async def read(self, page: bytes, at: float) -> None:
        """Let the bindings look at a page that was asked for at `at` (monotonic seconds). Never raises on account of
        the page, and yields to other work while it reads a long one."""


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
    """A data source that is asked: one HTTP GET per endpoint and interval."""

    ROLES = frozenset({Role.DATA_SOURCE})
    TIER = Tier.COLLECTOR
    OUTPUT: ClassVar[str]
    """The format that it gives."""
    OF_SERVER: ClassVar[bool] = True
    """Whether it asks the model server itself, so that no answer means that the server is down."""

    @property
    def interval(self) -> float | None:
        """Seconds between two requests to an endpoint; None takes the collector's."""
        return None

    @property
    def tls(self) -> SSLContext | bool:
        """How a https server is verified: by this context, by the system's certificates (True) or not at all."""
        return True

    def url(self, endpoint: Endpoint) -> str:
        """Where the endpoint is asked. Raises ValueError that says why it can't be."""
        raise NotImplementedError

    def reader(self, bindings: Sequence[Binding]) -> Reader:
        """What reads the pages of one endpoint for the extractors that are bound to it."""
        return _PageByPage(self, bindings)

    async def read(self, page: bytes, bindings: Sequence[Binding]) -> None:
        """Let the bindings look at a page by itself. Never raises on account of the page, and yields to other work
        while it reads a long one."""
        raise NotImplementedError


class _PageByPage(Reader):
    """Reads each page by itself."""

    def __init__(self, source: PollingSource, bindings: Sequence[Binding]) -> None:
        self._source = source
        self._bindings = bindings

    async def read(self, page: bytes, at: float) -> None:
        await self._source.read(page, self._bindings)
