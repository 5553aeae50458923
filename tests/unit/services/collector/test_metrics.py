"""The collector's own metrics, as its /metrics shows them."""

import time
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from services.collector.http.client import Failure
from services.collector.metrics import CollectorMetrics
from services.collector.scraper import Scraper
from shared.bus.frame_sender import FrameSender
from shared.plugin_failures import PluginFailures
from shared.service.reload import Reloader, ReloadMetrics
from tests.unit.services.collector.test_scraper import Servers, Watcher, endpoint, page, pipeline, refuse
from tests.unit.shared.bus.test_frame_sender import Recorder
from tests.waiting import eventually


class Watching:
    """A scraper of two servers, one of which refuses; `time` is what its clock says."""

    def __init__(self) -> None:
        self.servers, self.watcher = Servers(a=page(1), b=refuse), Watcher()
        self.scraper = Scraper(
            self.servers,
            self.watcher,
            interval=0.002,
            backoff=0.01,
            failures=PluginFailures(time.monotonic),
            failure_threshold=10**6,  # however often it refuses, it isn't unreachable yet
        )
        self.scraper.use(pipeline())
        self.registry = CollectorRegistry()
        sending = FrameSender(Recorder(), lambda: self.scraper.endpoints, linger=0, refresh=1, heartbeat=1)
        self.registry.register(CollectorMetrics(self.scraper, sending, clock=lambda: self.time))
        config: Reloader[str] = Reloader(lambda text, _: text, lambda _: None)
        config.accepted, config.refused = 2, 1
        self.registry.register(ReloadMetrics("pointsman_collector_config_reloads", config))
        self.time = 0.0

    async def scraped(self) -> None:
        self.scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
        await eventually(lambda: self.watcher.count("a") >= 1 and self.scraper.failures[Failure.CONNECT] >= 1)
        self.time = time.monotonic()

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
async def watching() -> AsyncIterator[Watching]:
    made = Watching()
    yield made
    await made.scraper.close()


async def test_endpoints_show_how_their_scrapes_go_and_leave_nothing_behind(watching: Watching) -> None:
    await watching.scraped()
    text = watching.text()
    assert 'pointsman_collector_up{endpoint="a",source="metrics"} 1.0' in text
    assert 'pointsman_collector_up{endpoint="b",source="metrics"} 0.0' in text
    assert 'pointsman_collector_page_bytes{endpoint="a",source="metrics"} 28.0' in text
    assert 'pointsman_collector_page_bytes{endpoint="b"' not in text
    assert 'pointsman_collector_endpoint_failures_total{endpoint="b",kind="connect",source="metrics"}' in text
    assert "pointsman_collector_assigned_endpoints 2.0" in text
    assert 'pointsman_collector_config_reloads_total{result="refused"} 1.0' in text
    engines = [line for line in text.splitlines() if line.startswith("pointsman_collector_engine{")]
    assert [line.count('engine="vllm"') + line.count('chosen_by="default"') for line in engines] == [2, 2]
    assert all(line.endswith(" 1.0") for line in engines)
    watching.scraper.assign({})
    text = watching.text()
    assert 'endpoint="a"' not in text
    assert 'pointsman_collector_scrape_failures_total{kind="connect"}' in text


async def test_pages_and_failures_show_how_long_ago_they_were(watching: Watching) -> None:
    await watching.scraped()
    (a,), (b,) = (watching.scraper.endpoints[id].targets for id in "ab")
    assert a.page_at is not None
    assert b.error_at is not None
    watching.time = a.page_at + 3
    assert watching.value("pointsman_collector_page_age_seconds", endpoint="a", source="metrics") == pytest.approx(3)
    assert watching.value("pointsman_collector_oldest_value_age_seconds", endpoint="a") == pytest.approx(3)
    assert watching.value("pointsman_collector_page_age_seconds", endpoint="b", source="metrics") is None
    assert watching.value("pointsman_collector_oldest_value_age_seconds", endpoint="b") is None
    watching.time = b.error_at + 4
    name = "pointsman_collector_last_failure_age_seconds"
    assert watching.value(name, endpoint="b", source="metrics") == pytest.approx(4)
    assert watching.value(name, endpoint="a", source="metrics") is None


async def test_attributes_are_counted_by_outcome_over_all_endpoints(watching: Watching) -> None:
    await watching.scraped()

    def endpoints(attribute: str, outcome: str) -> float | None:
        name = "pointsman_collector_attributes"
        return watching.value(name, source="metrics", attribute=attribute, outcome=outcome)

    assert endpoints("WaitingQueueSize", "found") == 1
    assert endpoints("WaitingQueueSize", "unknown") == 1
    assert endpoints("RunningRequestsSize", "absent") == 1
    assert endpoints("RunningRequestsSize", "found") == 0
