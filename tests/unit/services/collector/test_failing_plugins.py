"""Third-party sources and extractors: what they may do, and that one that fails costs only its own part."""

import asyncio
import errno
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar
from unittest.mock import AsyncMock, patch

import pytest

from services.collector import target as target_module
from services.collector.admin import ScrapedEndpoint
from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.http.client import Client, Failure
from services.collector.interfaces import PROMETHEUS_TEXT, Binding, Extractor, Finding, MetricsBinding, PollingSource
from services.collector.page.selection import MetricFallback
from services.collector.pipeline import Pipeline, PolledSource
from services.collector.scraper import EndpointScrape, Scraper
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.attributes import REACHABLE, WAITING_QUEUE_SIZE, AttributeKey, AttributeMap
from shared.bus.frame_columns import pack
from shared.model import Endpoint
from shared.plugin_failures import PluginFailures
from shared.tasks import in_turns
from tests.unit.services.collector.test_scraper import Servers, endpoint, page
from tests.waiting import eventually

SIZE = AttributeKey("Size", "odd", float)
NAMES = AttributeKey("Names", "odd", tuple)


class OddBinding(MetricsBinding):
    def __init__(self, extractor: "Odd") -> None:
        self._odd = extractor

    @property
    def fallbacks(self) -> Sequence[MetricFallback]:
        self._odd.maybe("fallbacks")
        return ()

    def store(self, attributes: AttributeMap, at: float) -> bool:
        self._odd.maybe("store")
        return attributes.put(self._odd.PRODUCES[0], self._odd.value, at)

    def findings(self) -> list[Finding]:
        self._odd.maybe("findings")
        return []

    def describe(self) -> dict[str, str]:
        self._odd.maybe("describe")
        return {}


class Odd(Extractor):
    """An extractor that fails where it is told to."""

    TYPE = "odd"
    INPUT = PROMETHEUS_TEXT
    PRODUCES: ClassVar[tuple[AttributeKey[Any], ...]] = (SIZE,)

    def __init__(self, fails_at: str = "", value: Any = 2.0) -> None:
        super().__init__("odd")
        self.fails_at = fails_at
        self.value = value

    def maybe(self, at: str) -> None:
        if at == self.fails_at:
            raise KeyError("gpu")

    def bind(self, endpoint: Endpoint) -> Binding:
        self.maybe("bind")
        return OddBinding(self)

    def reads(self, endpoint: Endpoint) -> object:
        self.maybe("reads")
        return None


class OddNames(Odd):
    PRODUCES = (NAMES,)


class World:
    """A scraper of one endpoint, a, through these feeds."""

    def __init__(self, *sources: PolledSource) -> None:
        self.servers = Servers(a=page(3))
        self.failures = PluginFailures(time.monotonic)
        self.scrapes = 0
        self.scraper = Scraper(self.servers, self._on_scraped, interval=0.002, backoff=0.01, failures=self.failures)
        self.scraper.use(Pipeline(sources, ("plan",)))
        self.scraper.assign({"a": endpoint("a")})

    def _on_scraped(self, scrape: EndpointScrape, changed: bool) -> None:
        self.scrapes += 1

    async def scraped(self, times: int = 3) -> None:
        """Until it was scraped so often again."""
        wanted = self.scrapes + times
        await eventually(lambda: self.scrapes >= wanted)

    @property
    def attributes(self) -> AttributeMap:
        return self.scraper.endpoints["a"].attributes

    def failed(self, plugin: str) -> int:
        return self.failures.counts().get(plugin, 0)


@asynccontextmanager
async def world(*sources: PolledSource) -> AsyncIterator[World]:
    made = World(*sources)
    try:
        yield made
    finally:
        await made.scraper.close()


def both(odd: Odd, source: PollingSource | None = None) -> PolledSource:
    given = source or MetricsSource("metrics", MetricsParameters(interval=0.002))
    return PolledSource(given, (odd, CoreMetricsExtractor("core")))


@pytest.mark.parametrize("fails_at", ["bind", "fallbacks", "store"])
async def test_an_extractor_that_fails_costs_its_own_attributes_until_it_is_well_again(fails_at: str) -> None:
    odd = Odd()
    async with world(both(odd)) as it:
        await it.scraped()
        assert (it.attributes.get(SIZE), it.failed("odd")) == (2.0, 0)
        odd.fails_at = fails_at
        it.scraper.assign({"a": endpoint("a", port=9000)})
        await it.scraped()
        it.servers.answers["a"] = page(4)
        await eventually(lambda: it.attributes.get(WAITING_QUEUE_SIZE) == 4.0)
        sample = it.attributes.sample(SIZE)
        assert sample is not None
        assert sample.value is None, "readers are told that it has none"
        assert it.failed("odd") > 1
        assert it.failed("metrics") == it.failed("core") == 0
        odd.fails_at = ""
        await eventually(lambda: it.attributes.get(SIZE) == 2.0)
        assert it.scraper.endpoints["a"].targets[0].up


@pytest.mark.parametrize(
    "odd",
    [
        *(Odd(value=value) for value in ("large", float("nan"), True, None, (1.0,))),
        OddNames(value=("x",) * 10_001),
        OddNames(value=("x" * 2_000,) * 100),
    ],
)
async def test_a_value_that_its_key_cannot_have_never_reaches_a_frame(odd: Odd) -> None:
    async with world(both(odd)) as it:
        await it.scraped()
        assert it.attributes.get(WAITING_QUEUE_SIZE) == 3.0
        columns = pack([("a", it.attributes)], time.monotonic())
        assert odd.PRODUCES[0].wire in columns.absent
        assert not columns.objects
        assert it.failed("odd") > 1


@pytest.mark.parametrize("fails_at", ["findings", "describe", "reads"])
async def test_what_an_extractor_fails_to_tell_of_itself_stops_no_debug_page_and_no_assignment(fails_at: str) -> None:
    async with world(both(Odd(fails_at))) as it:
        await it.scraped()
        (described,) = it.scraper.describe()
        ScrapedEndpoint.model_validate(described)
        assert described["sources"][0]["engine"] == "vllm"
        it.scraper.assign({"a": Endpoint(id="a", name="a", address="a", port=8000, labels={"zone": "b"})})
        await it.scraped()
        assert it.attributes.get(WAITING_QUEUE_SIZE) == 3.0
        assert it.failed("odd") > 0


class BadSource(MetricsSource):
    TYPE = "bad-source"
    fails_at = ""

    def maybe(self, at: str) -> None:
        if at == self.fails_at:
            raise KeyError("gpu")

    @property
    def interval(self) -> float | None:
        self.maybe("interval")
        return 0.002

    def place(self, endpoint: Endpoint) -> str:
        self.maybe("place")
        return super().place(endpoint)

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        self.maybe("poll")
        return await super().poll(endpoint, http)

    def reader(self, bindings: Sequence[Binding]) -> Any:
        self.maybe("reader")
        return super().reader(bindings)


@pytest.mark.parametrize("fails_at", ["place", "poll", "reader", "interval"])
async def test_a_source_that_fails_costs_what_it_brings_and_nobody_elses(fails_at: str) -> None:
    source = BadSource("bad")
    source.fails_at = fails_at
    good = PolledSource(MetricsSource("good", MetricsParameters(interval=0.002)), (CoreMetricsExtractor("core"),))
    async with world(both(Odd(), source), good) as it:
        await it.scraped()
        bad, sound = it.scraper.endpoints["a"].targets
        await eventually(lambda: it.failed("bad") > 0 and sound.up)
        assert it.attributes.get(WAITING_QUEUE_SIZE) == 3.0
        if fails_at != "interval":
            assert not bad.up
            assert bad.error == "KeyError: 'gpu'"
        assert it.failed("odd") == it.failed("core") == 0, "it isn't them who failed"


class Called(PollingSource):
    """Asks by something else than HTTP: what it returns is no page."""

    TYPE = "called"
    OUTPUT = "numbers"
    interval = 0.002

    def __init__(self, does: Any) -> None:
        super().__init__("called")
        self.does = does

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        return await self.does(endpoint)

    async def read(self, page: Any, bindings: Sequence[Binding]) -> None:
        for binding in bindings:
            assert isinstance(binding, NumberBinding)
            binding.number = page["size"]


class NumberBinding(Binding):
    number = 0.0

    def store(self, attributes: AttributeMap, at: float) -> bool:
        return attributes.put(SIZE, self.number, at)

    def findings(self) -> list[Finding]:
        return []


class Numbers(Extractor):
    TYPE = "numbers"
    INPUT = "numbers"
    PRODUCES = (SIZE,)

    def bind(self, endpoint: Endpoint) -> Binding:
        return NumberBinding()


async def test_a_source_may_ask_by_any_protocol_and_give_anything() -> None:
    async def answer(endpoint: Endpoint) -> dict[str, float]:
        await asyncio.sleep(0)
        return {"size": float(endpoint.port)}

    async with world(PolledSource(Called(answer), (Numbers("numbers"),))) as it:
        await it.scraped()
        assert it.attributes.get(SIZE) == 8000.0
        (described,) = it.scraper.describe()
        assert (described["sources"][0]["url"], described["sources"][0]["page_bytes"]) == ("a:8000", 0)
        assert it.servers.asked == []


async def hangs(endpoint: Endpoint) -> Any:
    await asyncio.Event().wait()


def fails(error: BaseException) -> Any:
    async def poll(endpoint: Endpoint) -> Any:
        raise error

    return poll


async def connects(endpoint: Endpoint) -> Any:
    """To a name with two addresses where nobody listens."""
    loop = asyncio.get_running_loop()
    addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", 1)) for last in (1, 2)]
    with patch.object(loop, "getaddrinfo", AsyncMock(return_value=addresses)):
        await loop.create_connection(asyncio.Protocol, "server", 1)


async def leaks(endpoint: Endpoint) -> Any:
    """Awaits a task that somebody cancels."""
    inner = asyncio.create_task(asyncio.sleep(3600))
    asyncio.get_running_loop().call_soon(inner.cancel)
    await inner


class Reads(Called):
    """Fails to read what it is given, while `does` fails."""

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        return {}

    async def read(self, page: Any, bindings: Sequence[Binding]) -> None:
        await self.does(Endpoint(id="a", name="a", address="a", port=1))


@pytest.mark.parametrize("kind", [Called, Reads])
async def test_a_cancelled_task_that_a_source_awaits_is_a_failure_of_the_source_and_ends_no_scraping(
    kind: type[Called],
) -> None:
    source = kind(leaks)
    async with world(PolledSource(source, (Numbers("numbers"),))) as it:
        (target,) = it.scraper.endpoints["a"].targets
        await eventually(lambda: it.failed("called") > 3)
        assert target.error == "RuntimeError: a task that it awaits was cancelled"
        assert target.failures.keys() == {Failure.INTERNAL}
        source.does = answers
        await eventually(lambda: target.up)


async def answers(endpoint: Endpoint) -> Any:
    return {"size": 1.0}


async def test_others_run_between_values_that_take_long_to_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "in_turns", partial(in_turns, turn=0.0))
    turns, stored = [0], list[tuple[str, int]]()

    class Noting(Odd):
        def maybe(self, at: str) -> None:
            if at == "store":
                stored.append((self.name, turns[0]))

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    first, second = Noting(), Noting()
    second.name = "even"
    source = PolledSource(MetricsSource("metrics", MetricsParameters(interval=0.002)), (first, second))
    async with world(source) as it:
        await it.scraped()
    beside.cancel()
    assert [name for name, _ in stored[:4]] == ["odd", "even"] * 2
    assert all(before < after for (_, before), (_, after) in pairwise(stored))


async def test_a_source_that_never_ends_reading_fails_after_the_time_of_a_scrape_and_is_asked_again() -> None:
    source = Reads(hangs)
    async with world(PolledSource(source, (Numbers("numbers"),))) as it:
        it.servers.timeout = 0.01
        (target,) = it.scraper.endpoints["a"].targets
        await eventually(lambda: it.failed("called") > 1)
        assert target.error == "TimeoutError: the extractors didn't read the answer within 10ms"
        source.does = answers
        await eventually(lambda: target.up)


async def test_a_scrape_that_nobody_wants_any_more_is_no_failure_of_its_source() -> None:
    began = asyncio.Event()

    async def waits(endpoint: Endpoint) -> Any:
        began.set()
        await hangs(endpoint)

    async with world(PolledSource(Called(waits), (Numbers("numbers"),))) as it:
        await began.wait()
        (target,) = it.scraper.endpoints["a"].targets
        assert target.task is not None
        it.scraper.assign({})
        with pytest.raises(asyncio.CancelledError):
            await target.task
        assert it.failures.counts() == {}


CANT = "can't connect:"


@pytest.mark.parametrize(
    ("does", "kind", "error"),
    [
        (hangs, Failure.TIMEOUT, "no complete response within 10ms"),
        (fails(ConnectionRefusedError("no")), Failure.CONNECT, f"{CANT} ConnectionRefusedError: no"),
        (fails(socket.gaierror(-2, "no name")), Failure.CONNECT, f"{CANT} gaierror: [Errno -2] no name"),
        (
            fails(OSError(errno.EHOSTUNREACH, "far")),
            Failure.CONNECT,
            f"{CANT} OSError: [Errno {errno.EHOSTUNREACH}] far",
        ),
        (fails(ssl.SSLError(1, "no cipher")), Failure.TLS, "TLS failed: SSLError: no cipher"),
        (connects, Failure.CONNECT, f"{CANT} OSError: Multiple exceptions: "),
    ],
)
async def test_an_endpoint_that_gives_no_answer_is_no_failure_of_its_source(
    does: Any, kind: Failure, error: str
) -> None:
    async with world(PolledSource(Called(does), (Numbers("numbers"),))) as it:
        it.servers.timeout = 0.01
        (target,) = it.scraper.endpoints["a"].targets
        await eventually(lambda: target.failures[kind] > 1)
        assert target.error.startswith(error)
        assert it.failures.counts() == {}


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "no token"), PermissionError(errno.EACCES, "secret"), OSError("odd")],
)
async def test_an_error_of_the_operating_system_that_isnt_the_networks_is_the_sources_own(error: OSError) -> None:
    async with world(PolledSource(Called(fails(error)), (Numbers("numbers"),))) as it:
        await eventually(lambda: it.failed("called") > 3)
        (target,) = it.scraper.endpoints["a"].targets
        assert target.failures.keys() == {Failure.INTERNAL}
        assert it.attributes.get(REACHABLE) is None, "nothing is known of the server"
