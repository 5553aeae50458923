"""One running collector reads a pool of several engines, and follows its configuration."""

import httpx
import pytest

from services.simulator.app import simulator
from services.simulator.gauges import Pins
from services.simulator.settings import EngineType, SimulatorSettings
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, answer, collector, endpoint, eventually, vllm

pytestmark = pytest.mark.serial

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"


def settings(engine: EngineType) -> SimulatorSettings:
    adapters = ("tuned",) if engine is EngineType.VLLM else ()
    return SimulatorSettings(port=0, engine=engine, adapters=adapters, kv_blocks=1000, block_tokens=32, drain_timeout=1)


async def test_a_pool_of_three_engines_is_read_by_one_instance(nats: NatsServer, owner: Owner, frames: Frames) -> None:
    async with (
        simulator(settings(EngineType.VLLM)) as vllm_server,
        simulator(settings(EngineType.SGLANG)) as sglang_server,
        simulator(settings(EngineType.TRITON_TENSORRT_LLM)) as triton_server,
        collector(nats.url) as service,
    ):
        servers = {"vllm": vllm_server, "sglang": sglang_server, "triton-tensorrt-llm": triton_server}
        for number, server in enumerate(servers.values(), 1):
            server.server.page.pin(Pins(waiting=number, running=10 * number, kv_usage=number / 4))
        await owner.publish([endpoint(name, server.port, engine=name) for name, server in servers.items()])
        for number, name in enumerate(servers, 1):
            await eventually(lambda name=name: "CacheNumBlocks" in frames.values(name), f"the page of {name}")  # type: ignore[misc]
            values = frames.values(name)
            assert values["WaitingQueueSize"] == number
            assert values["RunningRequestsSize"] == 10 * number
            assert abs(values["KVCacheUsagePercent"] - number / 4) < 0.01
            assert values["CacheBlockSize"] == 32
            assert values["CacheNumBlocks"] == 1000
        vllm_server.server.page.pin(Pins(running_adapters=("tuned",), waiting_adapters=("other",), max_adapters=3))
        await eventually(lambda: frames.values("vllm").get("ActiveModels") == ["tuned"], "the adapters")
        assert frames.values("vllm")["WaitingModels"] == ["other"]
        assert frames.values("vllm")["MaxActiveModels"] == 3
        assert "ActiveModels" not in frames.values("sglang")
        assert service.scraper.failures.total() == 0


async def test_a_changed_gauge_is_published_soon_and_an_unchanged_one_stays_fresh(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    async with OddServer(vllm(1)) as server, collector(nats.url, interval=0.05):
        await owner.publish([endpoint("a", server.port)])
        for value in range(2, 12):
            server.behaviour = vllm(value)
            took = await eventually(lambda value=value: frames.value("a", WAITING_QUEUE_SIZE) == value, "the value")  # type: ignore[misc]
            assert took < 1.0
        await eventually(lambda: frames.age("a", WAITING_QUEUE_SIZE) < 0.5, "freshness")


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


async def test_a_source_with_a_port_of_its_own_scrapes_that_and_only_that(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    async with OddServer(vllm(1)) as serving, OddServer(answer(b"vllm:kv_cache_usage_perc 0.5\n")) as metrics:
        config = HEAD + (
            f"plugins: [{{name: mine, type: metrics-data-source, parameters: {{port: {metrics.port}, path: /m}}}},\n"
            "  {type: core-metrics-extractor}]\n"
            "dataLayer: {sources: [{pluginRef: mine, extractors: [{pluginRef: core-metrics-extractor}]}]}\n"
        )
        async with collector(nats.url):
            await owner.publish([endpoint("a", serving.port)], config)
            await eventually(lambda: frames.value("a", KV_CACHE_USAGE) == 0.5, "the metrics port's value")
            assert metrics.heads[0].startswith(b"GET /m HTTP/1.1\r\n")
            assert serving.requests == []
