"""One endpoint as one source sees it: what asks it, who reads the answers, and how it went.

Sources and extractors are plugins. One that fails costs its own part: an extractor its attributes of this endpoint,
which become absent, a source its answer. So that it can be told who failed, and the others get what they read, the
answers of an endpoint with a failing extractor are read for each of its extractors apart.
"""

import asyncio
from collections import Counter
from typing import Any

from services.collector.http.client import Client, Failure
from services.collector.interfaces import Binding, Extractor, Finding, Poll, Reader
from services.collector.page.reader import MetricsReader
from services.collector.pipeline import PolledSource
from shared.attributes import AttributeMap
from shared.model import Endpoint
from shared.plugin_failures import PluginFailures, reason_of
from shared.quantities import format_duration

APART = 100
"""Answers without a failure after which all extractors share a reader again."""


class _Bound:
    """An extractor, and what it has for the endpoint."""

    __slots__ = ("binding", "error", "extractor", "keys", "reader")

    def __init__(self, extractor: Extractor) -> None:
        self.extractor = extractor
        self.keys = extractor.produces(extractor.name, extractor.parameters)
        self.binding: Binding | None = None
        """None while the extractor fails to bind."""
        self.reader: Reader | None = None
        """Where the extractors read apart."""
        self.error: Exception | None = None
        """What it failed with on the present answer."""


class Target:
    """One endpoint as one source sees it."""

    def __init__(self, endpoint: Endpoint, feed: PolledSource, http: Client, failures: PluginFailures) -> None:
        self.endpoint = endpoint
        self.source = feed.source
        self.name = f"{endpoint.id}|{feed.source.name}"
        self._http = http
        self._failures = failures
        self._extractors = [_Bound(one) for one in feed.extractors]
        self._reader: Reader | None = None
        """Reads for all; None where they read apart."""
        self._apart = 0
        """Answers that are to be read apart still."""
        self.place, self.fault = "", ""
        """Where it is asked; why it can't be, if it can't."""
        self.poll: Poll | None = None
        """Asks it."""
        try:
            self.place = feed.source.place(endpoint)
            self.poll = feed.source.poller(endpoint, http)
        except ValueError as error:
            self.fault = str(error)
        except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and costs nobody else's endpoints
            self.fault = reason_of(error)
            failures.record(feed.source.name, error, endpoint=endpoint.id)
        try:
            if self._bind():
                self._share()
        except Exception as error:  # noqa: BLE001 - as above
            failures.record(feed.source.name, error, endpoint=endpoint.id)
        self.task: asyncio.Task[None] | None = None
        self.scrapes = 0
        self.pages = 0
        self.failures: Counter[Failure] = Counter()
        self.error = self.fault
        """What the last scrape failed with; empty after a success."""
        self.last_error = self.fault
        """What the last scrape that failed did so with, however long ago."""
        self.error_at: float | None = None
        """When it failed, in monotonic seconds."""
        self.page_at: float | None = None
        """When the last page was asked for, in monotonic seconds."""
        self.page_bytes = 0
        """Size of the last answer; 0 where it wasn't bytes."""
        self.duration = 0.0
        """Seconds from the request to the end of the last page."""

    @property
    def up(self) -> bool:
        """Whether the last scrape brought a page."""
        return self.pages > 0 and not self.error

    async def read(self, page: Any, at: float, attributes: AttributeMap) -> bool:
        """Let the extractors read an answer that was asked for at `at`, and put what they found into the attributes.
        Whether any value is new. Raises what the source raises, and TimeoutError where it takes longer than a scrape
        may."""
        if type(self._reader) is MetricsReader:  # waits for nothing, and a time-out costs as much as a small page
            return await self._read(page, at, attributes)
        limit = asyncio.timeout(self._http.timeout)
        try:
            async with limit:
                return await self._read(page, at, attributes)
        except TimeoutError as error:
            if limit.expired():
                took = format_duration(self._http.timeout)
                raise TimeoutError(f"an answer wasn't read within {took}") from error
            raise

    async def _read(self, page: Any, at: float, attributes: AttributeMap) -> bool:
        if self._reader is not None:
            try:
                await self._reader.read(page, at)
            except Exception:  # noqa: BLE001 - whose it is shows when each reads by itself
                self._reader, self._apart = None, APART
        if self._reader is None:
            await self._read_apart(page, at)
        changed = False
        for one in self._extractors:
            if one.error is None and one.binding is not None:
                try:
                    changed |= one.binding.store(attributes, at)
                    continue
                except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and no other plugin's
                    one.error = error
            if one.error is not None:
                self._failed(one, one.error)
                one.error = None
            for key in one.keys:
                changed |= attributes.deny(key, at)
        return changed

    async def _read_apart(self, page: Any, at: float) -> None:
        """Read for each extractor by itself, and note which fail. Raises what the source raises with none."""
        if not self._bind():
            self._apart = APART
        bound = [one for one in self._extractors if one.binding is not None]
        for one in bound:
            assert one.binding is not None
            one.error = None  # of an answer whose reading was given up
            try:
                one.reader = one.reader or self.source.reader([one.binding])
                await one.reader.read(page, at)
            except Exception as error:  # noqa: BLE001 - as above
                one.reader, one.error, self._apart = None, error, APART
        if bound and all(one.error is not None for one in bound):
            try:
                await self.source.reader([]).read(page, at)
            except Exception:
                for one in bound:
                    one.error = None
                raise
        self._apart -= 1
        if self._apart <= 0:
            self._share()

    def _share(self) -> None:
        """One reader for all from the next answer on."""
        for one in self._extractors:
            one.reader = None
        self._reader = self.source.reader([one.binding for one in self._extractors if one.binding is not None])

    def _bind(self) -> bool:
        """Bind the extractors that aren't; whether all are."""
        for one in self._extractors:
            if one.binding is None:
                try:
                    one.binding = one.extractor.bind(self.endpoint)
                except Exception as error:  # noqa: BLE001 - as above
                    self._failed(one, error)
        return all(one.binding is not None for one in self._extractors)

    def findings(self) -> list[Finding]:
        """What the last page said, of everything that is looked for."""
        found: list[Finding] = []
        for one in self._extractors:
            try:
                found += one.binding.findings() if one.binding is not None else ()
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(one, error)
        return found

    def described(self) -> list[dict[str, str]]:
        """What each extractor decided when it was bound."""
        described: list[dict[str, str]] = []
        for one in self._extractors:
            try:
                described.append(one.binding.describe() if one.binding is not None else {})
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(one, error)
        return described

    def _failed(self, one: _Bound, error: Exception) -> None:
        self._failures.record(one.extractor.name, error, endpoint=self.endpoint.id, source=self.source.name)

    def __repr__(self) -> str:
        state = "up" if self.up else (self.error or "not scraped yet")
        return f"<Target {self.name} {self.place} {state} scrapes={self.scrapes} pages={self.pages}>"
