"""The driver of the scrapes, against servers that a test plays itself."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any

import pytest
from msgspec import structs
from structlog.testing import capture_logs
from yarl import URL

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.dcgm import DcgmExtractor
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.interfaces import Extractor
from services.collector.pipeline import Pipeline, PolledSource, build
from services.collector.scraper import MIN_TOGETHER, EndpointScrape, Scraper
from services.collector.sources.dcgm import DcgmParameters, DcgmSource
from services.collector.sources.http import Override
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.attributes import GPU_UTILIZATION, REACHABLE, WAITING_QUEUE_SIZE, AttributeKey
from shared.config.loader import load
from shared.model import Endpoint
from shared.plugin import Registry
from shared.plugin_failures import PluginFailures
from tests.waiting import eventually
from tests.work import longest_turn

Answer = Callable[[], Awaitable[bytes]]
WAITS = "vllm:num_requests_waiting"


class Servers(Client):
    """A client whose servers are functions, by host; it counts what is in flight at each."""

    def __init__(self, **answers: Answer) -> None:
        super().__init__(1.0, 1 << 20)
        self.answers = answers
        self.asked: list[str] = []
        self.flying: dict[str, int] = {}
        self.most_flying = 0
        self.cancelled: list[str] = []

    async def get(self, url: URL, tls: SSLContext | bool) -> bytes:
        host = str(url.host)
        self.asked.append(str(url))
        self.flying[host] = self.flying.get(host, 0) + 1
        self.most_flying = max(self.most_flying, self.flying[host])
        try:
            return await self.answers[host]()
        except asyncio.CancelledError:
            self.cancelled.append(host)
            raise
        finally:
            self.flying[host] -= 1


def page(queue: float) -> Answer:
    async def answer() -> bytes:
        await asyncio.sleep(0)
        return f"vllm:num_requests_waiting {queue}\n".encode()

    return answer


async def hang() -> bytes:
    await asyncio.Event().wait()
    return b""


async def refuse() -> bytes:
    raise ScrapeError(Failure.CONNECT, "can't connect: refused")


async def broken() -> bytes:
    raise ScrapeError(Failure.STATUS, "status 503")


async def gpu() -> bytes:
    return b"DCGM_FI_DEV_GPU_UTIL 40\n"


def endpoint(id: str, *, address: str = "", port: int = 8000, metrics_host: str = "") -> Endpoint:
    return Endpoint(id=id, name=id, address=address or id, port=port, metrics_host=metrics_host)


def pipeline(*names: str, interval: float = 0.002) -> Pipeline:
    feeds = tuple(
        PolledSource(MetricsSource(name, MetricsParameters(interval=interval)), (CoreMetricsExtractor("core"),))
        for name in names or ("metrics",)
    )
    return Pipeline(feeds, (names, interval))


class Watcher:
    """Remembers what the scraper told, and waits for it."""

    def __init__(self) -> None:
        self.notified: list[tuple[str, bool]] = []

    def __call__(self, scrape: EndpointScrape, changed: bool) -> None:
        self.notified.append((scrape.endpoint.id, changed))

    def count(self, id: str) -> int:
        return sum(each == id for each, _ in self.notified)


@asynccontextmanager
async def scraping(servers: Servers, use: Pipeline | None = None) -> AsyncIterator[tuple[Scraper, Watcher]]:
    watcher = Watcher()
    scraper = Scraper(servers, watcher, interval=0.002, backoff=0.01, failures=PluginFailures(time.monotonic))
    scraper.use(pipeline() if use is None else use)
    try:
        yield scraper, watcher
    finally:
        await scraper.close()


async def assign(scraper: Scraper, *endpoints: Endpoint) -> None:
    """Assign these and wait until each has begun: on a busy machine, the first one may take the whole turn."""
    scraper.assign({endpoint.id: endpoint for endpoint in endpoints})
    await eventually(lambda: len(scraper.endpoints) == len(endpoints), step=0)


async def test_endpoints_are_scraped_again_and_again() -> None:
    servers = Servers(a=page(3), b=page(4))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        await eventually(lambda: watcher.count("a") >= 3 and watcher.count("b") >= 3)
        assert scraper.endpoints["a"].attributes.get(WAITING_QUEUE_SIZE) == 3.0
        assert scraper.endpoints["b"].attributes.get(WAITING_QUEUE_SIZE) == 4.0
        assert [changed for id, changed in watcher.notified if id == "a"][:3] == [True, False, False]
        assert servers.most_flying == 1


async def test_others_run_while_hundreds_of_endpoints_begin_or_change_and_all_are_scraped() -> None:
    names = [f"e{number:03}" for number in range(300)]
    config = load("", Registry.installed(), "test")
    began: list[int] = []
    servers, watcher = Servers(**{name: page(1) for name in names}), Watcher()
    scraper = Scraper(
        servers,
        watcher,
        on_begun=lambda: began.append(len(scraper.endpoints)),
        interval=3600.0,
        backoff=0.01,
        failures=PluginFailures(time.monotonic),
    )
    scraper.use(build(config))
    try:
        for port in (8000, 8001):
            began.clear()

            async def assign(port: int = port) -> None:
                scraper.assign({name: endpoint(name, port=port) for name in names})
                await eventually(lambda: began == [len(names)], step=0)

            assert await longest_turn(assign()) < 0.25
            assert [*scraper.endpoints] == names
            assert {scrape.endpoint.port for scrape in scraper.endpoints.values()} == {port}
        began.clear()
        scraper.assign({name: endpoint(name, port=8002) for name in names})
        scraper.assign({name: endpoint(name, port=8003) for name in names[:200]})
        scraper.use(pipeline(interval=3600.0))
        await eventually(lambda: began == [200])
        assert {scrape.endpoint.port for scrape in scraper.endpoints.values()} == {8003}
    finally:
        await scraper.close()
        gc.unfreeze()


async def test_endpoints_that_leave_together_are_forgotten_by_turns_and_told_of_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.collector.scraper.TURN", 0.0)
    names = [f"e{number:02}" for number in range(20)]
    answering = asyncio.Event()

    async def answer() -> bytes:
        await answering.wait()
        return await page(1)()

    servers = Servers(**dict.fromkeys(names, answer))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({name: endpoint(name) for name in names})
        await eventually(lambda: len(servers.asked) == len(names))
        scraper.assign({})
        answering.set()
        assert not scraper.endpoints
        for _ in range(5):
            await asyncio.sleep(0)
        assert 0 < len(servers.cancelled) < len(names)
        scraper.assign({"e00": endpoint("e00")})
        await eventually(lambda: watcher.count("e00") >= 2)
        assert {id for id, _ in watcher.notified} == {"e00"}
        assert servers.most_flying <= 2


async def test_an_endpoint_that_hangs_delays_no_other_and_is_not_asked_twice() -> None:
    servers = Servers(a=hang, b=page(1))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        await eventually(lambda: watcher.count("b") >= 20)
        assert servers.flying["a"] == 1
        assert servers.asked.count("http://a:8000/metrics") == 1


@pytest.mark.parametrize("last", [page(2), refuse], ids=["a page", "a failure"])
async def test_scrapes_that_start_together_end_with_the_last_one(last: Answer) -> None:
    now, answered, ended = [0.0], asyncio.Event(), list[int]()

    async def later() -> bytes:
        await answered.wait()
        return await last()

    servers, watcher = Servers(a=page(1), b=later), Watcher()
    scraper = Scraper(
        servers,
        watcher,
        lambda: ended.append(watcher.count("a")),
        interval=3600.0,
        backoff=0.01,
        failures=PluginFailures(time.monotonic),
        clock=lambda: now[0],
    )
    scraper.use(pipeline(interval=3600.0))
    await assign(scraper, endpoint("a"), endpoint("b"))
    now[0] = 1.0  # both are due
    await eventually(lambda: watcher.count("a") and servers.flying.get("b"))
    assert ended == []
    answered.set()
    await eventually(lambda: ended == [1])
    await scraper.close()


async def test_a_crowd_that_is_due_is_scraped_a_few_at_a_time() -> None:
    """The first page of those that start together waits for the last."""
    now, names, together = [0.0], [f"e{number}" for number in range(30)], list[int]()
    servers = Servers(**dict.fromkeys(names, hang))
    failures = PluginFailures(time.monotonic)
    scraper = Scraper(servers, Watcher(), interval=3600.0, backoff=0.01, failures=failures, clock=lambda: now[0])
    scraper.use(pipeline(interval=3600.0))
    await assign(scraper, *(endpoint(name) for name in names))
    now[0] = 1.0  # all are due
    while len(servers.asked) < len(names):
        asked = len(servers.asked)
        await asyncio.sleep(0)
        together.append(len(servers.asked) - asked)
    assert max(together) == MIN_TOGETHER
    await scraper.close()


async def test_a_failure_costs_only_its_own_freshness() -> None:
    servers = Servers(a=page(2), b=page(1))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        await eventually(lambda: watcher.count("a") >= 1)
        servers.answers["a"] = refuse
        seen = watcher.count("b")
        await eventually(lambda: scraper.failures[Failure.CONNECT] >= 2 and watcher.count("b") > seen)
        (failed,) = scraper.endpoints["a"].targets
        assert not failed.up
        assert failed.error == "can't connect: refused"
        assert scraper.endpoints["a"].attributes.get(WAITING_QUEUE_SIZE) == 2.0
        described = {each["id"]: each for each in scraper.describe()}
        assert described["b"]["up"]
        assert described["a"]["sources"][0]["failures"] == {"connect": failed.failures[Failure.CONNECT]}
        assert described["a"]["sources"][0]["engine"] == "vllm"
        assert described["a"]["sources"][0]["error"] == "can't connect: refused"
        servers.answers["a"] = page(5)
        await eventually(lambda: failed.up)
        assert scraper.endpoints["a"].attributes.get(WAITING_QUEUE_SIZE) == 5.0
        (recovered,) = next(scraper.describe())["sources"]
        assert recovered["error"] is None
        assert recovered["last_error"] == "can't connect: refused"
        assert recovered["last_error_age"] >= 0


async def test_a_server_that_always_fails_in_another_way_fills_no_log() -> None:
    """Each kind of failure is logged once a minute, whatever the server writes into it."""

    async def fickle() -> bytes:
        if len(servers.asked) % 3:
            raise ScrapeError(Failure.STATUS if len(servers.asked) % 2 else Failure.PROTOCOL, f"{len(servers.asked)}")
        return b""

    servers = Servers(a=fickle)
    with capture_logs() as logs:
        async with scraping(servers) as (scraper, _):
            scraper.assign({"a": endpoint("a")})
            await eventually(lambda: min(scraper.failures[Failure.STATUS], scraper.failures[Failure.PROTOCOL]) >= 5)
    failed = [line["kind"] for line in logs if line["event"] == "scrape.failed"]
    assert sorted(failed) == ["protocol", "status"]
    assert sum(line["event"] == "scrape.recovered" for line in logs) <= 2


async def test_a_changed_address_takes_effect_at_once_and_ends_the_request_to_the_former_one() -> None:
    servers = Servers(old=hang, new=page(7))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a", address="old")})
        await eventually(lambda: servers.flying.get("old") == 1)
        scraper.assign({"a": endpoint("a", address="new")})
        await eventually(lambda: watcher.count("a") >= 1)
        assert servers.cancelled == ["old"]
        assert scraper.endpoints["a"].attributes.get(WAITING_QUEUE_SIZE) == 7.0
        await assign(scraper, endpoint("a", address="new", port=9000))
        assert len(scraper.endpoints["a"].attributes) == 0, "another port is another server"


async def test_a_node_that_becomes_known_is_where_an_exporter_is_asked_from_then_on() -> None:
    servers = Servers(node=gpu)
    exporter = DcgmSource("dcgm", DcgmParameters(use_node_address=True, interval=0.002))
    here = endpoint("a")
    async with scraping(servers, Pipeline((PolledSource(exporter, (DcgmExtractor("gpu"),)),), ("dcgm",))) as (
        scraper,
        watcher,
    ):
        scraper.assign({"a": here})
        assert "the endpoint's node address is unknown" in scraper.endpoints["a"].targets[0].error
        scraper.assign({"a": structs.replace(here, node_address="node")})
        await eventually(lambda: watcher.count("a") >= 1)
        assert scraper.endpoints["a"].attributes.get(GPU_UTILIZATION) == 0.4


async def test_a_label_that_nobody_goes_by_changes_nothing_that_is_known() -> None:
    servers = Servers(a=page(7))
    override = Override(match_labels={"side": "door"}, path="/side")
    source = MetricsSource("m", MetricsParameters(interval=0.002, overrides=(override,)))
    async with scraping(servers, Pipeline((PolledSource(source, (CoreMetricsExtractor("core"),)),), ("m",))) as (
        scraper,
        _,
    ):
        here = endpoint("a")
        await assign(scraper, here)
        before = scraper.endpoints["a"]
        here = structs.replace(here, labels={"version": "2"}, node_address="10.0.0.9")
        await assign(scraper, here)
        assert scraper.endpoints["a"] is before
        assert before.endpoint is here, "what hears of endpoints has the new labels"
        for labels in ({"side": "door"}, {"llm-d.ai/engine-type": "sglang"}):
            await assign(scraper, structs.replace(here, labels=labels))
            assert scraper.endpoints["a"] is not before, labels
            await assign(scraper, here)
            before = scraper.endpoints["a"]
        await assign(scraper, structs.replace(here, uid="another"))
        assert scraper.endpoints["a"] is not before


async def test_an_extractor_that_says_nothing_of_what_it_reads_is_bound_anew_by_any_label() -> None:
    class Foreign(CoreMetricsExtractor):
        def reads(self, endpoint: Endpoint) -> Any:
            return Extractor.reads(self, endpoint)

    servers = Servers(a=page(7))
    feed = PolledSource(MetricsSource("m", MetricsParameters(interval=0.002)), (Foreign("core"),))
    async with scraping(servers, Pipeline((feed,), ("m",))) as (scraper, _):
        await assign(scraper, endpoint("a"))
        before = scraper.endpoints["a"]
        await assign(scraper, structs.replace(endpoint("a"), labels={"version": "2"}))
        assert scraper.endpoints["a"] is not before


async def test_an_endpoint_that_nobody_asks_is_neither_up_nor_down() -> None:
    async with scraping(Servers(), Pipeline((), ("nothing",))) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        (described,) = scraper.describe()
        assert described["up"] is None


async def test_an_endpoint_that_is_taken_away_is_not_asked_any_more() -> None:
    servers = Servers(a=page(7), b=page(1))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        await eventually(lambda: watcher.count("a") >= 1)
        scraper.assign({"b": endpoint("b")})
        asked = servers.asked.count("http://a:8000/metrics")
        seen = watcher.count("b")
        await eventually(lambda: watcher.count("b") >= seen + 5)
        assert servers.asked.count("http://a:8000/metrics") == asked


async def test_two_sources_ask_an_endpoint_independently_each_at_its_own_interval() -> None:
    servers = Servers(a=page(7))
    sources = (
        MetricsSource(name, MetricsParameters(path=f"/{name}", interval=interval))
        for name, interval in (("often", 0.002), ("seldom", 0.2), ("once", 3600.0))
    )
    both = Pipeline(tuple(PolledSource(source, (CoreMetricsExtractor("core"),)) for source in sources), ("both",))
    async with scraping(servers, both) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        often, seldom, once = scraper.endpoints["a"].targets
        await eventually(lambda: seldom.pages >= 3 and often.pages > 2 * seldom.pages)
        assert once.pages == 1
        assert servers.asked.count("http://a:8000/once") == 1


async def test_an_endpoint_without_a_usable_address_says_so_and_leaves_the_others() -> None:
    servers = Servers(b=page(1))
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a", metrics_host="[broken"), "b": endpoint("b")})
        await eventually(lambda: watcher.count("b") >= 1)
        (target,) = scraper.endpoints["a"].targets
        assert "is not an address" in target.error
        assert not target.up


async def test_a_pipeline_that_does_the_same_changes_nothing() -> None:
    servers = Servers(a=page(7))
    async with scraping(servers) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        before = scraper.endpoints["a"]
        scraper.use(pipeline())
        assert scraper.endpoints["a"] is before


async def test_what_a_new_pipeline_doesnt_look_for_is_denied() -> None:
    """Pickers would go by it until it is stale, and under `lastKnown` for ever."""
    servers = Servers(a=page(7))

    def reading(*names: str) -> Pipeline:
        more = tuple(PrometheusMetricExtractor(name, PrometheusMetricParameters(metric_name=WAITS)) for name in names)
        source = MetricsSource("metrics", MetricsParameters(interval=0.002))
        return Pipeline((PolledSource(source, (CoreMetricsExtractor("core"), *more)),), names)

    text, two = (AttributeKey(WAITS, name, float) for name in ("one", "two"))
    async with scraping(servers, reading("one", "two")) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        await eventually(lambda: scraper.endpoints["a"].attributes.get(two) == 7.0)
        scraper.use(reading("one"))
        attributes = scraper.endpoints["a"].attributes
        sample = attributes.sample(two)
        assert sample is not None
        assert sample.value is None
        assert attributes.sample(text) is None, "it will be there with the next page"
        assert attributes.take_changed() == {two}


async def test_after_its_end_nothing_is_scraped() -> None:
    servers = Servers(a=hang)
    async with scraping(servers) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        await eventually(lambda: servers.flying.get("a") == 1)
        await scraper.close()
        assert servers.flying["a"] == 0
        scraper.assign({"a": endpoint("a")})
        assert scraper.endpoints == {}


async def test_a_server_that_refuses_is_reported_as_unreachable_until_it_brings_a_page() -> None:
    servers = Servers(a=page(1), b=broken)
    async with scraping(servers) as (scraper, watcher):
        scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        attributes = scraper.endpoints["a"].attributes
        await eventually(lambda: attributes.get(REACHABLE) == 1.0)
        servers.answers["a"], heard = refuse, len(watcher.notified)
        await eventually(lambda: attributes.get(REACHABLE) == 0.0)
        assert ("a", True) in watcher.notified[heard:], "pickers hear of it at once"
        sample = attributes.sample(REACHABLE)
        assert sample is not None
        await eventually(lambda: attributes.sample(REACHABLE) != sample)  # every failed scrape confirms it
        servers.answers["a"] = broken
        await eventually(lambda: scraper.endpoints["a"].targets[0].error == "status 503")
        sample = attributes.sample(REACHABLE)
        await eventually(lambda: attributes.sample(REACHABLE) != sample)  # errors too: only a page ends it
        assert attributes.get(REACHABLE) == 0.0
        servers.answers["a"] = page(1)
        await eventually(lambda: attributes.get(REACHABLE) == 1.0)
        assert scraper.endpoints["b"].attributes.get(REACHABLE) is None, "a server that answers with errors runs"
        assert len(scraper.endpoints["b"].attributes) == 0


async def test_an_exporter_beside_the_server_says_nothing_of_whether_that_is_reachable() -> None:
    servers = Servers(a=gpu)
    exporter = DcgmSource("dcgm", DcgmParameters(interval=0.002))
    async with scraping(servers, Pipeline((PolledSource(exporter, (DcgmExtractor("gpu"),)),), ("dcgm",))) as (
        scraper,
        _,
    ):
        scraper.assign({"a": endpoint("a")})
        scrape = scraper.endpoints["a"]
        await eventually(lambda: scrape.targets[0].pages >= 1)
        servers.answers["a"] = refuse
        await eventually(lambda: scrape.targets[0].failures[Failure.CONNECT] >= 5)
        assert scrape.attributes.get(REACHABLE) is None


async def test_another_pipeline_doesnt_make_an_unreachable_server_reachable_unless_nobody_asks_it_any_more() -> None:
    servers = Servers(a=refuse)
    async with scraping(servers) as (scraper, _):
        scraper.assign({"a": endpoint("a")})
        await eventually(lambda: scraper.endpoints["a"].attributes.get(REACHABLE) == 0.0)
        scraper.use(pipeline("another"))
        assert scraper.endpoints["a"].attributes.sample(REACHABLE) is None, "pickers keep what they were told"
        await eventually(lambda: scraper.endpoints["a"].attributes.get(REACHABLE) == 0.0)
        scraper.use(Pipeline((), ("nothing",)))
        denied = scraper.endpoints["a"].attributes.sample(REACHABLE)
        assert denied is not None
        assert denied.value is None
