"""One running collector follows a configuration that it can't use, and a file of its own."""

from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from shared.attributes import WAITING_QUEUE_SIZE, AttributeMap
from shared.datalayer.endpoints import EndpointEvent, EndpointExtractor
from shared.plugin import Registry, Tier
from shared.service import reload
from tests.in_process import serving
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, answer, collector, endpoint
from tests.waiting import eventually

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
PAGE = answer(b"vllm:num_requests_waiting 1\nmine 8\nother 9\n")
ODD = HEAD + "plugins: [{type: odd-extractor}]\n"


def reading(metric: str) -> str:
    """A configuration by which this metric is the length of the queue."""
    return HEAD + (
        "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor, parameters: "
        f"{{defaultEngine: mine, engineConfigs: [{{name: mine, queuedRequestsSpec: '{metric}'}}]}}}}]\n"
    )


class OddExtractor(EndpointExtractor):
    """Somebody's plugin, whose constructor fails as long as something isn't there."""

    TYPE = "odd-extractor"
    TIER = Tier.COLLECTOR
    fails = True

    def __init__(self, name: str, parameters: object = None) -> None:
        super().__init__(name, parameters)
        if self.fails:
            raise KeyError("nothing there")

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        pass


async def test_a_configuration_on_which_a_plugin_fails_leaves_the_good_one_is_told_and_tried_again(
    nats: NatsServer, owner: Owner, frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "RETRY", 0.05)
    settings = CollectorSettings(nats_url=(nats.url,), admin_host="127.0.0.1", admin_port=0, drain_timeout=2.0)
    made = CollectorService(settings, Registry([*Registry.installed(), OddExtractor]))
    async with OddServer(PAGE) as server, serving(made) as service:
        here = [endpoint("a", server.port)]
        await owner.publish(here, reading("mine"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 8.0, "the configured engine")
        running = service.scraper.pipeline
        with capture_logs() as logs:
            await owner.publish(here, ODD)
            await eventually(lambda: bool(service.config.problem), "the failure")
        (line,) = [one for one in logs if one["event"] == "config.failed"]
        assert line["exc_info"]
        problem = "test: KeyError: 'nothing there'"
        assert service.state()["config"]["problem"] == service.readiness.notes()["configuration"] == problem
        assert service.state()["config"]["refused"] == 1
        assert service.scraper.pipeline is running
        assert service.bus.handler_errors == 0
        monkeypatch.setattr(OddExtractor, "fails", False)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "another try: the default engine")
        assert service.readiness.notes() == {}


async def test_a_first_configuration_on_which_a_plugin_fails_keeps_no_endpoint_from_being_scraped(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    settings = CollectorSettings(nats_url=(nats.url,), admin_host="127.0.0.1", admin_port=0, drain_timeout=2.0)
    made = CollectorService(settings, Registry([*Registry.installed(), OddExtractor]))
    async with OddServer(PAGE) as server:
        await owner.publish([endpoint("a", server.port)], ODD)
        async with serving(made) as service:
            await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "the built-in default")
            assert "nothing there" in service.config.problem


async def test_a_collector_follows_a_file_of_its_own_whatever_is_published(
    nats: NatsServer, owner: Owner, frames: Frames, tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(reading("mine"))
    async with OddServer(PAGE) as server, collector(nats.url, config_file=str(path)) as service:
        await owner.publish([endpoint("a", server.port)], reading("vllm:num_requests_waiting"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 8.0, "the file's engine")
        path.write_text(reading("mine{"))
        await eventually(lambda: bool(service.config.problem), "the refusal")
        assert f"{path}: plugins[1].parameters" in service.readiness.notes()["configuration"]
        assert service.state()["config"] == {
            "origin": str(path),
            "taken": 0,
            "refused": 1,
            "problem": service.config.problem,
        }
        path.write_text(reading("other"))
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 9.0, "the mended file's engine")
        assert service.readiness.notes() == {}


async def test_a_new_configuration_is_applied_and_a_bad_one_refused(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    page = answer(b"vllm:num_requests_waiting 1\nmine 8\n")
    mine = HEAD + (
        "plugins: [{type: metrics-data-source}, {type: core-metrics-extractor, parameters: "
        "{defaultEngine: mine, engineConfigs: [{name: mine, queuedRequestsSpec: mine}]}}]\n"
    )
    async with OddServer(page) as server, collector(nats.url) as service:
        here = [endpoint("a", server.port)]
        await owner.publish(here)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "the built-in default")
        await owner.publish(here, mine)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 8.0, "the configured engine")
        before = len(server.requests)
        await owner.publish(here, mine.replace("queuedRequestsSpec: mine", "queuedRequestsSpec: 'mine{'"))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.admin_port}") as client:
            await eventually(lambda: bool(service.state()["config"]["problem"]), "the refusal")
            state = (await client.get("/debug/state")).json()
            assert "queuedRequestsSpec: 'mine{'" in state["config"]["problem"]
            metrics = (await client.get("/metrics")).text
            assert 'pointsman_collector_config_reloads_total{result="refused"} 1.0' in metrics
            (described,) = (await client.get("/debug/endpoints")).json()
        await eventually(lambda: len(server.requests) >= before + 3, "scrapes that go on")
        assert described["attributes"]["WaitingQueueSize"]["value"] == 8.0
        assert described["sources"][0]["engine"] == "mine"
        assert described["sources"][0]["specifications"] == [
            {"specification": "mine", "attribute": "WaitingQueueSize", "outcome": "found"}
        ]
        await owner.publish(here)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 1.0, "the default again")
        assert service.state()["config"]["problem"] is None
