"""The collector's own metrics, as its /metrics shows them."""

from prometheus_client import CollectorRegistry, generate_latest

from services.collector.http import Failure
from services.collector.metrics import CollectorMetrics
from services.collector.scraper import Scraper
from shared.bus.frame_sender import FrameSender
from tests.unit.services.collector.test_scraper import Servers, Watcher, endpoint, page, pipeline, refuse
from tests.unit.services.collector.waiting import until
from tests.unit.shared.bus.test_frame_sender import Recorder


class Reloads:
    taken = 2
    refused = 1


async def test_endpoints_show_how_their_scrapes_go_and_leave_nothing_behind() -> None:
    servers, watcher = Servers(), Watcher()
    servers.answers = {"a": page(1), "b": refuse}
    scraper = Scraper(servers, watcher, interval=0.002, backoff=0.01)
    scraper.use(pipeline())
    registry = CollectorRegistry()
    sending = FrameSender(Recorder(), lambda: scraper.watched, gather=0, refresh=1, heartbeat=1)
    registry.register(CollectorMetrics(scraper, sending, Reloads()))
    scraper.assign({"a": endpoint("a"), "b": endpoint("b")})
    await until(lambda: watcher.count("a") >= 1 and scraper.failures[Failure.CONNECT] >= 1)
    text = generate_latest(registry).decode()
    assert 'pointsman_collector_up{endpoint="a",source="metrics"} 1.0' in text
    assert 'pointsman_collector_up{endpoint="b",source="metrics"} 0.0' in text
    assert 'pointsman_collector_page_bytes{endpoint="a",source="metrics"} 28.0' in text
    assert 'pointsman_collector_page_bytes{endpoint="b"' not in text
    assert 'pointsman_collector_endpoint_failures_total{endpoint="b",kind="connect",source="metrics"}' in text
    assert "pointsman_collector_assigned_endpoints 2.0" in text
    assert 'pointsman_collector_config_reloads_total{result="refused"} 1.0' in text
    scraper.assign({})
    text = generate_latest(registry).decode()
    assert 'endpoint="a"' not in text
    assert 'pointsman_collector_scrape_failures_total{kind="connect"}' in text
    await scraper.close()
