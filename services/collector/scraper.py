"""Scrapes endpoints on schedule and keeps their attributes and results.

Each target (endpoint and source) has at most one scrape in flight, in a task of its own, so that a slow endpoint
doesn't delay others. Attributes belong to the server at the endpoint's address. When the address, the port, the URL or
anything that its extractors read changes, the scraper forgets them and scrapes the endpoint at once.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import structlog

from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.interfaces import Extractor, PollingSource
from services.collector.pipeline import Pipeline
from services.collector.reachability import Reachability
from services.collector.schedule import Schedule, phase
from services.collector.target import Target
from shared.attributes import REACHABLE, AttributeKey, AttributeMap
from shared.long_lived import long_lived
from shared.model import Endpoint
from shared.out_of_range import OutOfRange
from shared.plugin_failures import PluginFailures, reason_of
from shared.tasks import TURN, cancel

log = structlog.get_logger(__name__)

_server = attrgetter("address", "port", "uid", "name", "namespace")
"""The identity of an endpoint's server."""

LOG_INTERVAL = 60.0
"""Seconds for which no other failure of the same kind of a target is logged."""
EARLY_LIMITS = (0.001, 0.002)
"""Limits of the seconds by which a scrape may start early, a tenth of the shortest interval. Scrapes that start
together cost the event loop a third less, but the first page waits for the last to travel with it."""
PAUSE = 0.001
"""Seconds, the resolution of timers, between scrapes that start together and the next ones."""
MIN_TOGETHER, CROWD = 4, 2.5
"""At most so many scrapes start together, or `CROWD` times as many as are due in a pause on average: phases are random,
and a crowd's pages wait for each other."""


class Round:
    """Scrapes that start together."""

    __slots__ = ("left",)

    def __init__(self, scrapes: int) -> None:
        self.left = scrapes
        """How many of them haven't ended. One that is cancelled never does."""


class EndpointScrape:
    """One endpoint, its targets and its attributes."""

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
        self.gone = False
        """Whether it has left."""
        self.targets = [Target(endpoint, polled, http, failures) for polled in pipeline.sources]

    def __repr__(self) -> str:
        return f"<EndpointScrape {self.endpoint.id} {self.attributes!r} {self.targets}>"


class Scraper:
    """Scrapes a set of endpoints with a pipeline; both can be replaced at any time.

    It calls `on_scraped(scrape, changed)` after each page, with `changed` when any value differs, and after each failed
    scrape of an unreachable server; `on_round()` when scrapes that started together have ended; and `on_begun()` when
    new endpoints have begun after the call of `assign` or `use` that named them. `interval` applies
    to sources without one, and `backoff` is the longest pause after failures, both in seconds. A server is unreachable
    after `failure_threshold` consecutive scrapes that were refused or timed out.
    """

    def __init__(
        self,
        client: Client,
        on_scraped: Callable[[EndpointScrape, bool], None],
        on_round: Callable[[], None] = lambda: None,
        on_begun: Callable[[], None] = lambda: None,
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
        self._on_round = on_round
        self._on_begun = on_begun
        self._interval = interval
        self._failure_threshold = failure_threshold
        self._plugin_failures = failures
        self._out_of_range = out_of_range or OutOfRange(clock)
        self._clock = clock
        self.pipeline = Pipeline()
        self._schedule: Schedule[Target] = Schedule(backoff)
        self._scrapes: dict[Target, EndpointScrape] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._shortest = interval
        """Seconds, of the intervals of all sources."""
        self._next_start = -math.inf
        """Until then, no scrape starts."""
        self._early = EARLY_LIMITS[0]
        self._closed = False
        self.endpoints: dict[str, EndpointScrape] = {}
        """By endpoint id, sorted. Replaced, never changed; sorted as soon as all have begun."""
        self._gone: list[EndpointScrape] = []
        """Endpoints that have left and aren't forgotten."""
        self._new: list[Endpoint] = []
        """Endpoints that haven't begun, the next one last."""
        self._changing: asyncio.Task[None] | None = None
        self._produced: frozenset[AttributeKey[Any]] = frozenset()
        """The attributes that the pipeline produces."""
        self._retired: dict[str, AttributeMap] = {}
        """By endpoint id: what a former pipeline produced for those that haven't begun with this one."""
        self.pages = 0
        self.failures: Counter[Failure] = Counter()
        """Failed scrapes by kind, of all endpoints since the start."""

    def use(self, pipeline: Pipeline) -> None:
        """Replace the pipeline, unless the new one is equal.

        Attributes that the new one doesn't produce are denied, so that pickers forget them.
        """
        if pipeline.plan == self.pipeline.plan:
            return
        self._shortest = min((self._interval_of(polled.source) for polled in pipeline.sources), default=self._interval)
        self._early = min(max(self._shortest / 10, EARLY_LIMITS[0]), EARLY_LIMITS[1])
        retired = self._retired | {id: scrape.attributes for id, scrape in self.endpoints.items()}
        endpoints = {endpoint.id: endpoint for endpoint in self._new}
        endpoints |= {id: scrape.endpoint for id, scrape in self.endpoints.items()}
        self.assign({})
        self.pipeline, self._retired, self._produced = pipeline, retired, pipeline.keys
        if any(polled.source.OF_SERVER for polled in pipeline.sources):
            self._produced |= {REACHABLE}
        self.assign(endpoints)

    def assign(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Scrape exactly these endpoints. New ones take half a millisecond each, and thousands may leave at once: some
        come and go at once, others in turns with other work. Those that have left are told of no more."""
        if self._closed:
            return
        self._compare(endpoints)
        self._change_some()
        if (self._gone or self._new) and (self._changing is None or self._changing.done()):
            self._changing = asyncio.create_task(self._change_others(), name="new endpoints")

    def _compare(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Find out which endpoints stay, have left and are new."""
        before, known_here = self.endpoints, dict[str, EndpointScrape]()
        new: list[Endpoint] = []
        for id in sorted(endpoints):
            endpoint, known = endpoints[id], before.get(id)
            if known is not None and self._same_server(known.endpoint, endpoint):
                known.endpoint = endpoint
                known_here[id] = known
            else:
                new.append(endpoint)
        for id, scrape in before.items():
            if id not in known_here:
                scrape.gone = True
                self._gone.append(scrape)
        self._retired = {id: former for id, former in self._retired.items() if id in endpoints}
        self.endpoints, self._new = known_here, new[::-1]

    async def _change_others(self) -> None:
        await long_lived(self._change_all())
        self._on_begun()

    async def _change_all(self) -> None:
        while self._gone or self._new:
            await asyncio.sleep(0)
            try:
                self._change_some()
            except Exception:
                log.exception("endpoints.begin.failed")

    def _change_some(self) -> None:
        """Forget endpoints that have left, and then begin new ones, as many as a turn has time for."""
        until = time.monotonic() + TURN
        while self._gone:
            self._forget(self._gone.pop())
            if time.monotonic() >= until:
                self._arm()
                return
        self._begin_some(until)

    def _begin_some(self, until: float) -> None:
        """Begin new endpoints until then, at least one."""
        begun: dict[str, EndpointScrape] = {}
        try:
            while self._new and (not begun or time.monotonic() < until):
                endpoint = self._new.pop()
                begun[endpoint.id] = self._begin(endpoint)
        finally:
            found = self.endpoints | begun
            self.endpoints = found if self._new else dict(sorted(found.items()))
            self._arm()

    def _same_server(self, before: Endpoint, after: Endpoint) -> bool:
        """Whether the attributes of an endpoint are valid after its change."""
        if before is after or before == after:
            return True
        if _server(before) != _server(after):
            return False
        plugins: list[PollingSource | Extractor] = []
        for polled in self.pipeline.sources:
            plugins += [polled.source, *polled.extractors]
        return all(self._reads(plugin, before) == self._reads(plugin, after) for plugin in plugins)

    def _reads(self, plugin: PollingSource | Extractor, endpoint: Endpoint) -> object:
        """The part of an endpoint that a plugin reads."""
        try:
            return plugin.reads(endpoint)
        except Exception as error:  # noqa: BLE001 - plugin failures are counted and don't affect others
            self._plugin_failures.record(plugin.name, error, endpoint=endpoint.id)
            return endpoint

    def _interval_of(self, source: PollingSource) -> float:
        """Seconds between two scrapes."""
        try:
            interval = source.interval or self._interval
            if interval > 0:
                return interval
            raise ValueError(f"interval: {interval} isn't positive")
        except Exception as error:  # noqa: BLE001 - as above
            self._plugin_failures.record(source.name, error)
            return self._interval

    def _begin(self, endpoint: Endpoint) -> EndpointScrape:
        scrape = EndpointScrape(endpoint, self.pipeline, self._client, self._plugin_failures, self._failure_threshold)
        now = self._clock()
        for target in scrape.targets:
            self._scrapes[target] = scrape
            if target.address_error:
                log.warning("endpoint.unscrapable", endpoint=endpoint.id, reason=target.address_error)
                target.error_at = now
                target.failures[Failure.ADDRESS] += 1
                continue
            self._schedule.add(target, self._interval_of(target.source), phase(target.name), now)
        if (former := self._retired.pop(endpoint.id, None)) is not None:
            for key, sample in former.items():
                if sample.value is not None and key not in self._produced:
                    scrape.attributes.deny(key, now)
        return scrape

    def _forget(self, scrape: EndpointScrape) -> None:
        for target in scrape.targets:
            self._schedule.remove(target)
            del self._scrapes[target]
            if target.task is not None:
                target.task.cancel()

    def _arm(self) -> None:
        """Set the timer to the next due target."""
        at = None if self._closed else self._schedule.next_at()
        if self._timer is not None:
            if at is not None and self._timer_at <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            at = max(at, self._next_start)
            self._timer_at = at
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - self._clock()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, most = self._clock(), max(MIN_TOGETHER, CROWD * PAUSE * len(self._schedule) / self._shortest)
        due = self._schedule.due(now + self._early, most)
        if len(due) >= most:
            self._next_start = now + PAUSE
        together = Round(len(due))
        for target in due:
            scrape = self._scrapes[target]
            if scrape.gone:
                together.left -= 1
                continue
            target.task = asyncio.create_task(self._scrape(target, scrape, together), name=f"scrape {target.name}")
        self._arm()

    async def _scrape(self, target: Target, scrape: EndpointScrape, together: Round) -> None:
        started = self._clock()
        target.scrapes += 1
        ok = False
        assert target.poll is not None, "only targets with a URL are scheduled"
        try:
            page = await target.poll()
            target.duration = self._clock() - started
            target.page_bytes = len(page) if isinstance(page, bytes) else 0
            reachable_again = False
            if target.source.OF_SERVER:
                scrape.reachability.answered(target.source.name, started)
                reachable_again = scrape.attributes.put(REACHABLE, 1.0, started)
            changed = await target.read(page, started, scrape.attributes) or reachable_again
            for key, (value, bounds) in scrape.attributes.take_refused().items():
                id, source = scrape.endpoint.id, target.source.name
                self._out_of_range.record(key.wire, value, bounds, endpoint=id, source=source)
            ok = True
        except ScrapeError as error:
            self._failed(target, scrape, error.kind, str(error), started)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # the endpoint was removed
            defect = RuntimeError("a task that it awaits was cancelled")
            defect.__cause__ = error
            self._defect(target, scrape, defect, started)
        except Exception as error:  # noqa: BLE001 - as above
            self._defect(target, scrape, error, started)
        target.task = None
        if ok:
            if target.reported:
                target.reported = False
                log.info("scrape.recovered", endpoint=scrape.endpoint.id, source=target.source.name)
            target.error, target.page_at = "", started
            target.pages += 1
            self.pages += 1
            self._report_scraped(scrape, changed)
        together.left -= 1
        if not together.left:
            self._on_round()
        self._schedule.finished(target, ok, self._clock())
        self._arm()

    def _defect(self, target: Target, scrape: EndpointScrape, error: Exception, started: float) -> None:
        """Count an exception that sources must not raise."""
        self._plugin_failures.record(target.source.name, error, endpoint=scrape.endpoint.id)
        self._failed(target, scrape, Failure.INTERNAL, reason_of(error), started)

    def _failed(self, target: Target, scrape: EndpointScrape, kind: Failure, message: str, started: float) -> None:
        now = self._clock()
        if message != target.error and now >= target.logged_at.get(kind, -math.inf) + LOG_INTERVAL:
            # A dead endpoint fails with every scrape: log each reason once. Servers write some of the reasons.
            target.logged_at[kind], target.reported = now, True
            log.warning(
                "scrape.failed",
                endpoint=scrape.endpoint.id,
                source=target.source.name,
                url=target.url,
                kind=kind.value,
                reason=message,
            )
        target.error = target.last_error = message
        target.error_at = now
        target.failures[kind] += 1
        self.failures[kind] += 1
        if target.source.OF_SERVER and scrape.reachability.failed(target.source.name, kind, started):
            self._report_scraped(scrape, scrape.attributes.put(REACHABLE, 0.0, target.error_at))

    def _report_scraped(self, scrape: EndpointScrape, changed: bool) -> None:
        if not scrape.gone:
            self._on_scraped(scrape, changed)

    async def close(self) -> None:
        """Stop scraping and cancel the scrapes in flight."""
        tasks = [target.task for target in self._scrapes if target.task is not None]
        self.assign({})
        self._closed = True
        if self._changing is not None:
            await cancel(self._changing)
        while self._gone:
            self._forget(self._gone.pop())
        self._arm()
        await asyncio.gather(*tasks, return_exceptions=True)

    def describe(self) -> Iterator[dict[str, Any]]:
        """All endpoints for the debug pages; they may change before the last one is made."""
        for scrape in tuple(self.endpoints.values()):
            yield _describe(scrape, self._clock())

    def about(self, id: str) -> dict[str, Any]:
        """What is known of an endpoint: nothing, unless it is scraped here."""
        scrape = self.endpoints.get(id)
        return {"assigned": False} if scrape is None else {"assigned": True, **_describe(scrape, self._clock())}

    def values(self) -> Iterator[dict[str, Any]]:
        """The attributes of each endpoint, sorted, without ages."""
        for id, scrape in list(self.endpoints.items()):
            known = {key.wire: sample.value for key, sample in scrape.attributes.items()}
            yield {"endpoint": id, "values": {name: known[name] for name in sorted(known)}}

    def __repr__(self) -> str:
        up = sum(target.up for target in self._scrapes)
        return f"<Scraper {len(self.endpoints)} endpoints, {up} of {len(self._scrapes)} targets up, {self._schedule!r}>"


def _describe(scrape: EndpointScrape, now: float) -> dict[str, Any]:
    return {
        "id": scrape.endpoint.id,
        "address": scrape.endpoint.authority,
        "up": all(target.up for target in scrape.targets) if scrape.targets else None,
        "attributes": {
            key.name: {"value": sample.value, "age": round(sample.age(now), 4)}
            for key, sample in scrape.attributes.items()
        },
        "sources": [_describe_target(target, now) for target in scrape.targets],
    }


def _describe_target(target: Target, now: float) -> dict[str, Any]:
    described: dict[str, Any] = {
        "source": target.source.name,
        "url": target.url,
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
    for decisions in target.described():
        described |= decisions
    described["specifications"] = [
        {"specification": finding.what, "attribute": finding.attribute, "outcome": finding.outcome.value}
        for finding in target.findings()
    ]
    return described
