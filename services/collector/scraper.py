"""Drives the scrapes: which endpoint is asked when, over one HTTP client, and what became of it.

One request at most is in flight per endpoint and source, and each is a task of its own, so an endpoint that hangs
delays nobody. What the collector knows of an endpoint belongs to the server at its address: when the address, the port,
where it is asked or what its extractors go by changes, all of it is dropped and the endpoint is scraped anew at once.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import structlog

from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.interfaces import Extractor, PollingSource
from services.collector.pipeline import Pipeline
from services.collector.reachability import Reachability
from services.collector.schedule import Schedule, phase
from services.collector.target import Target
from shared.attributes import REACHABLE, AttributeMap
from shared.model import Endpoint
from shared.out_of_range import OutOfRange
from shared.plugin_failures import PluginFailures, reason_of

log = structlog.get_logger(__name__)

_server = attrgetter("address", "port", "uid", "name", "namespace")
"""What of an endpoint says which server it is."""

GRAIN = (0.001, 0.005)
"""Seconds by which a scrape may be early, at least and at most: timers have no finer grain, and what is begun in one go
costs the event loop a third less than one by one. A tenth of the shortest interval, within these bounds."""


class EndpointScrape:
    """What the collector knows of one of its endpoints."""

    def __init__(
        self,
        endpoint: Endpoint,
        pipeline: Pipeline,
        http: Client,
        failures: PluginFailures,
        failure_threshold: int,
    ) -> None:
        self.endpoint = endpoint
        self.attributes = AttributeMap()
        self.reachability = Reachability(failure_threshold)
        self.targets = [Target(endpoint, feed, http, failures) for feed in pipeline.feeds]

    def __repr__(self) -> str:
        return f"<EndpointScrape {self.endpoint.id} {self.attributes!r} {self.targets}>"


class Scraper:
    """Scrapes a set of endpoints through a pipeline; both can be replaced at any time.

    `on_scraped(watched, changed)` is called after each page, `changed` when any value is another than before, and
    after each failed scrape of a server that can't be reached. `interval` is that of sources that have none of their
    own; `backoff` the longest pause after failures, both seconds. After `failure_threshold` scrapes in a row that were
    refused or timed out, a server can't be reached.
    """

    def __init__(
        self,
        client: Client,
        on_scraped: Callable[[EndpointScrape, bool], None],
        *,
        interval: float,
        backoff: float,
        failures: PluginFailures,
        out_of_range: OutOfRange | None = None,
        failure_threshold: int = 3,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_scraped = on_scraped
        self._interval = interval
        self._failure_threshold = failure_threshold
        self._plugin_failures = failures
        self._out_of_range = out_of_range or OutOfRange(clock)
        self._clock = clock
        self._pipeline = Pipeline()
        self._schedule: Schedule[Target] = Schedule(backoff)
        self._owner: dict[Target, EndpointScrape] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._grain = GRAIN[0]
        self._closed = False
        self.endpoints: dict[str, EndpointScrape] = {}
        """By endpoint id, in the order of the ids."""
        self.pages = 0
        self.failures: Counter[Failure] = Counter()
        """Scrapes without a page, by kind, over all endpoints that there were."""

    @property
    def pipeline(self) -> Pipeline:
        return self._pipeline

    def use(self, pipeline: Pipeline) -> None:
        """Scrape through this pipeline from now on; one that does the same as the present one changes nothing.

        What was known and no longer is looked for is denied, so that pickers forget it.
        """
        if pipeline.plan == self._pipeline.plan:
            return
        self._pipeline = pipeline
        shortest = min((self._interval_of(feed.source) for feed in pipeline.feeds), default=self._interval)
        self._grain = min(max(shortest / 10, GRAIN[0]), GRAIN[1])
        former, kept, now = self.endpoints, pipeline.keys, self._clock()
        self.assign({})
        self.assign({id: one.endpoint for id, one in former.items()})
        if any(feed.source.OF_SERVER for feed in pipeline.feeds):
            kept |= {REACHABLE}
        for id, one in self.endpoints.items():
            for key, sample in former[id].attributes.items():
                if sample.value is not None and key not in kept:
                    one.attributes.deny(key, now)

    def assign(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Scrape these endpoints from now on, and no others."""
        if self._closed:
            return
        before = self.endpoints
        self.endpoints = {}
        for id in sorted(endpoints):
            endpoint, known = endpoints[id], before.pop(id, None)
            if known is not None and self._same_server(known.endpoint, endpoint):
                known.endpoint = endpoint
                self.endpoints[id] = known
                continue
            if known is not None:
                self._forget(known)
            self.endpoints[id] = self._begin(endpoint)
        for gone in before.values():
            self._forget(gone)
        self._arm()

    def _same_server(self, one: Endpoint, other: Endpoint) -> bool:
        """Whether what is known of the one holds for the other."""
        if one is other or one == other:
            return True
        if _server(one) != _server(other):
            return False
        plugins: list[PollingSource | Extractor] = []
        for feed in self._pipeline.feeds:
            plugins += [feed.source, *feed.extractors]
        return all(self._reads(plugin, one) == self._reads(plugin, other) for plugin in plugins)

    def _reads(self, plugin: PollingSource | Extractor, endpoint: Endpoint) -> object:
        """What a plugin goes by."""
        try:
            return plugin.reads(endpoint)
        except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and costs nobody else's endpoints
            self._plugin_failures.record(plugin.name, error, endpoint=endpoint.id)
            return endpoint

    def _interval_of(self, source: PollingSource) -> float:
        """Seconds between two polls."""
        try:
            interval = source.interval or self._interval
            if interval > 0:
                return interval
            raise ValueError(f"interval: {interval} isn't positive")
        except Exception as error:  # noqa: BLE001 - as above
            self._plugin_failures.record(source.name, error)
            return self._interval

    def _begin(self, endpoint: Endpoint) -> EndpointScrape:
        watched = EndpointScrape(endpoint, self._pipeline, self._client, self._plugin_failures, self._failure_threshold)
        now = self._clock()
        for target in watched.targets:
            self._owner[target] = watched
            if target.fault:
                log.warning("endpoint.unscrapable", endpoint=endpoint.id, reason=target.fault)
                target.error_at = now
                target.failures[Failure.ADDRESS] += 1
                continue
            self._schedule.add(target, self._interval_of(target.source), phase(target.name), now)
        return watched

    def _forget(self, watched: EndpointScrape) -> None:
        for target in watched.targets:
            self._schedule.remove(target)
            del self._owner[target]
            if target.task is not None:
                target.task.cancel()

    def _arm(self) -> None:
        """Have the timer go off when the next target comes due."""
        at = None if self._closed else self._schedule.next_at()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        for target in self._schedule.due(self._clock() + self._grain):
            target.task = asyncio.create_task(self._scrape(target, self._owner[target]), name=f"scrape {target.name}")
        self._arm()

    async def _scrape(self, target: Target, watched: EndpointScrape) -> None:
        started = self._clock()
        target.scrapes += 1
        ok = False
        assert target.poll is not None, "only targets that can be asked are scheduled"
        try:
            page = await target.poll()
            target.duration = self._clock() - started
            target.page_bytes = len(page) if isinstance(page, bytes) else 0
            reached = False
            if target.source.OF_SERVER:
                watched.reachability.answered(target.source.name, started)
                reached = watched.attributes.put(REACHABLE, 1.0, started)
            changed = await target.read(page, started, watched.attributes) or reached
            for key, (value, bounds) in watched.attributes.take_refused().items():
                where, source = watched.endpoint.id, target.source.name
                self._out_of_range.record(key.wire, value, bounds, endpoint=where, source=source)
            ok = True
        except ScrapeError as error:
            self._failed(target, watched, error.kind, str(error), started)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # nobody wants the scrape any more
            leaked = RuntimeError("a task that it awaits was cancelled")
            leaked.__cause__ = error
            self._defect(target, watched, leaked, started)
        except Exception as error:  # noqa: BLE001 - a source's defect
            self._defect(target, watched, error, started)
        target.task = None
        if ok:
            if target.error:
                log.info("scrape.recovered", endpoint=watched.endpoint.id, source=target.source.name)
            target.error, target.page_at = "", started
            target.pages += 1
            self.pages += 1
            self._on_scraped(watched, changed)
        self._schedule.finished(target, ok, self._clock())
        self._arm()

    def _defect(self, target: Target, watched: EndpointScrape, error: Exception, started: float) -> None:
        """A source did what no source may."""
        self._plugin_failures.record(target.source.name, error, endpoint=watched.endpoint.id)
        self._failed(target, watched, Failure.INTERNAL, reason_of(error), started)

    def _failed(self, target: Target, watched: EndpointScrape, kind: Failure, message: str, started: float) -> None:
        if message != target.error:
            # Once a reason, not once a scrape: a dead endpoint fails again and again.
            log.warning(
                "scrape.failed",
                endpoint=watched.endpoint.id,
                source=target.source.name,
                url=target.place,
                kind=kind.value,
                reason=message,
            )
        target.error = target.last_error = message
        target.error_at = self._clock()
        target.failures[kind] += 1
        self.failures[kind] += 1
        if target.source.OF_SERVER and watched.reachability.failed(target.source.name, kind, started):
            self._on_scraped(watched, watched.attributes.put(REACHABLE, 0.0, target.error_at))

    async def close(self) -> None:
        """Stop scraping; what is under way is given up."""
        tasks = [target.task for target in self._owner if target.task is not None]
        self.assign({})
        self._closed = True
        self._arm()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self) -> list[dict[str, Any]]:
        """Every endpoint for the debug pages."""
        now = self._clock()
        return [_describe(one, now) for one in self.endpoints.values()]

    def __repr__(self) -> str:
        up = sum(target.up for target in self._owner)
        return f"<Scraper {len(self.endpoints)} endpoints, {up} of {len(self._owner)} targets up, {self._schedule!r}>"


def _describe(watched: EndpointScrape, now: float) -> dict[str, Any]:
    return {
        "id": watched.endpoint.id,
        "address": watched.endpoint.authority,
        "up": all(target.up for target in watched.targets) if watched.targets else None,
        "attributes": {
            key.name: {"value": sample.value, "age": round(sample.age(now), 4)}
            for key, sample in watched.attributes.items()
        },
        "sources": [_describe_target(target, now) for target in watched.targets],
    }


def _describe_target(target: Target, now: float) -> dict[str, Any]:
    described: dict[str, Any] = {
        "source": target.source.name,
        "url": target.place,
        "up": target.up,
        "age": None if target.page_at is None else round(now - target.page_at, 4),
        "scrapes": target.scrapes,
        "pages": target.pages,
        "page_bytes": target.page_bytes,
        "duration": round(target.duration, 6),
        "error": target.error or None,
        "last_error": target.last_error or None,
        "last_error_age": None if target.error_at is None else round(now - target.error_at, 4),
        "failures": {kind.value: count for kind, count in target.failures.items()},
    }
    for one in target.described():
        described |= one
    described["specifications"] = [
        {"specification": one.what, "attribute": one.attribute, "outcome": one.outcome.value}
        for one in target.findings()
    ]
    return described
