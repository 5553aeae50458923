"""One target: an endpoint and a source that polls it, with the extractors that read the answers.

Sources and extractors are plugins. When an extractor fails, its attributes of this endpoint become absent. When a
source fails, the scrape fails. To find out which extractor fails, and not to affect the others, the target then gives
each extractor a reader of its own for a while.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from services.collector.http.client import Client, Failure
from services.collector.interfaces import Binding, Extractor, Finding, Poll, Reader
from services.collector.page.reader import MetricsReader
from services.collector.pipeline import PolledSource
from shared.attributes import AttributeMap
from shared.model import Endpoint
from shared.plugin_failures import PluginFailures, reason_of
from shared.quantities import format_duration
from shared.tasks import in_turns

T = TypeVar("T")

SEPARATE_READS = 100
"""Answers without a failure after which the extractors share a reader again."""


class _BoundExtractor:
    """An extractor and its state for the endpoint."""

    __slots__ = ("binding", "error", "extractor", "keys", "reader")

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self.keys = extractor.produces(extractor.name, extractor.parameters)
        self.binding: Binding | None = None
        """None when the extractor fails to bind."""
        self.reader: Reader | None = None
        """Its own reader when the extractors don't share one."""
        self.error: Exception | None = None
        """Its failure on the present answer."""


class Target:
    """An endpoint and a source that polls it."""

    def __init__(self, endpoint: Endpoint, polled: PolledSource, http: Client, failures: PluginFailures) -> None:
        self.endpoint = endpoint
        self.source = polled.source
        self.name = f"{endpoint.id}|{polled.source.name}"
        self._http = http
        self._failures = failures
        self._extractors = [_BoundExtractor(extractor) for extractor in polled.extractors]
        self._reader: Reader | None = None
        """The shared reader; None when each extractor has its own."""
        self._separate_reads = 0
        """Answers that are left to be read separately."""
        self.url, self.address_error = "", ""
        """The URL, or why there is none."""
        self.poll: Poll | None = None
        try:
            self.url = polled.source.place(endpoint)
            self.poll = polled.source.poller(endpoint, http)
        except ValueError as error:
            self.address_error = str(error)
        except Exception as error:  # noqa: BLE001 - plugin failures are counted and don't affect others
            self.address_error = reason_of(error)
            failures.record(polled.source.name, error, endpoint=endpoint.id)
        try:
            if self._bind():
                self._share_reader()
        except Exception as error:  # noqa: BLE001 - as above
            failures.record(polled.source.name, error, endpoint=endpoint.id)
        self.task: asyncio.Task[None] | None = None
        self.scrapes = 0
        self.pages = 0
        self.failures: Counter[Failure] = Counter()
        self.error = self.address_error
        """The error of the last scrape; empty after a success."""
        self.last_error = self.address_error
        """The error of the last failed scrape."""
        self.logged_at: dict[Failure, float] = {}
        """Monotonic seconds when a failure of this kind was last logged."""
        self.reported = False
        """Whether a failure has been logged since the last success."""
        self.error_at: float | None = None
        """Monotonic seconds of the last failure."""
        self.page_at: float | None = None
        """Monotonic seconds of the last successful request."""
        self.page_bytes = 0
        """Size of the last answer; 0 if it wasn't bytes."""
        self.duration = 0.0
        """Seconds of the last successful scrape."""

    @property
    def up(self) -> bool:
        """Whether the last scrape succeeded."""
        return self.pages > 0 and not self.error

    async def read(self, page: Any, at: float, attributes: AttributeMap) -> bool:
        """Have the extractors read an answer that was requested at `at` and put their values into the attributes.
        Returns whether any value changes. Raises what the source raises, and TimeoutError after the scrape time-out."""
        if type(self._reader) is MetricsReader:  # awaits no I/O, and a time-out costs as much as a small page
            return await self._read(page, at, attributes)
        limit = asyncio.timeout(self._http.timeout)
        try:
            async with limit:
                return await self._read(page, at, attributes)
        except TimeoutError as error:
            if limit.expired():
                timeout = format_duration(self._http.timeout)
                raise TimeoutError(f"the extractors didn't read the answer within {timeout}") from error
            raise

    async def _read(self, page: Any, at: float, attributes: AttributeMap) -> bool:
        if self._reader is not None:
            try:
                await self._reader.read(page, at)
            except Exception:  # noqa: BLE001 - separate readers show whose it is
                self._reader, self._separate_reads = None, SEPARATE_READS
        if self._reader is None:
            await self._read_separately(page, at)
        changed = False
        async for bound in in_turns(self._extractors):  # of thousands of series, a value takes milliseconds
            if bound.error is None and bound.binding is not None:
                try:
                    changed |= bound.binding.store(attributes, at)
                    continue
                except Exception as error:  # noqa: BLE001 - as above
                    bound.error = error
            if bound.error is not None:
                self._failed(bound, bound.error)
                bound.error = None
            for key in bound.keys:
                changed |= attributes.deny(key, at)
        return changed

    async def _read_separately(self, page: Any, at: float) -> None:
        """Read once for each extractor and note failures. Raises what the source raises without extractors."""
        if not self._bind():
            self._separate_reads = SEPARATE_READS
        reading = [bound for bound in self._extractors if bound.binding is not None]
        for bound in reading:
            assert bound.binding is not None
            bound.error = None  # of an answer that timed out
            try:
                bound.reader = bound.reader or self.source.reader([bound.binding])
                await bound.reader.read(page, at)
            except Exception as error:  # noqa: BLE001 - as above
                bound.reader, bound.error, self._separate_reads = None, error, SEPARATE_READS
        if reading and all(bound.error is not None for bound in reading):
            try:
                await self.source.reader([]).read(page, at)
            except Exception:
                for bound in reading:
                    bound.error = None
                raise
        self._separate_reads -= 1
        if self._separate_reads <= 0:
            self._share_reader()

    def _share_reader(self) -> None:
        """Share a reader from the next answer on."""
        for bound in self._extractors:
            bound.reader = None
        self._reader = self.source.reader([bound.binding for bound in self._extractors if bound.binding is not None])

    def _bind(self) -> bool:
        """Bind the extractors that aren't bound. Returns whether all are."""
        for bound in self._extractors:
            if bound.binding is None:
                try:
                    bound.binding = bound.extractor.bind(self.endpoint)
                except Exception as error:  # noqa: BLE001 - as above
                    self._failed(bound, error)
        return all(bound.binding is not None for bound in self._extractors)

    def findings(self) -> list[Finding]:
        """The findings of all extractors."""
        return [finding for findings in self._of_bindings(lambda binding: binding.findings()) for finding in findings]

    def described(self) -> list[dict[str, str]]:
        """The descriptions of all bindings."""
        return self._of_bindings(lambda binding: binding.describe())

    def _of_bindings(self, ask: Callable[[Binding], T]) -> list[T]:
        answers: list[T] = []
        for bound in self._extractors:
            if bound.binding is not None:
                try:
                    answers.append(ask(bound.binding))
                except Exception as error:  # noqa: BLE001 - as above
                    self._failed(bound, error)
        return answers

    def _failed(self, bound: _BoundExtractor, error: Exception) -> None:
        self._failures.record(bound.extractor.name, error, endpoint=self.endpoint.id, source=self.source.name)

    def __repr__(self) -> str:
        state = "up" if self.up else (self.error or "not scraped yet")
        return f"<Target {self.name} {self.url} {state} scrapes={self.scrapes} pages={self.pages}>"
