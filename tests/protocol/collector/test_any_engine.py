"""Engines by flags, by their pages and by configuration: one collector reads them all, with no change of code."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from services.collector.app import CollectorService
from services.collector.settings import CollectorSettings
from services.simulator.app import Simulator, simulator
from services.simulator.gauges import Pins
from services.simulator.settings import EngineType, SimulatorSettings
from shared.attributes import CORE, KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey
from shared.config import Invalid
from shared.service.settings import parse
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, answer, collector, endpoint, vllm
from tests.waiting import eventually

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
REQUESTS = "nv_trt_llm_request_metrics"
BLOCKS = "nv_trt_llm_kv_cache_block_metrics"

TRITON_FLAGS = (
    f"--allRequestsMetric={REQUESTS}{{request_type=active}}",
    f"--runningRequestsMetric={REQUESTS}{{request_type=scheduled}}",
    f"--usedKVCacheBlocksMetric={BLOCKS}{{kv_cache_block_type=used}}",
    f"--maxKVCacheBlocksMetric={BLOCKS}{{kv_cache_block_type=max}}",
    "--loraRequestInfoMetric=",
)
"""As the Go original's redesign had them for Triton, which gave no share of the KV cache then."""
VLLM_FLAGS = (
    "--total-queued-requests-metric=vllm:num_requests_waiting",
    "--total-running-requests-metric=vllm:num_requests_running",
    "--kv-cache-usage-percentage-metric=vllm:kv_cache_usage_perc",
    "--lora-info-metric=vllm:lora_requests_info",
)


def by_flags(*flags: str) -> dict[str, Any]:
    """The settings that metric flags give, for a collector of the test's own process."""
    made, default = parse(CollectorSettings, flags, {}, "collector"), CollectorSettings()
    names = [name for name in made.__struct_fields__ if getattr(made, name) != getattr(default, name)]
    return {name: getattr(made, name) for name in names}


@asynccontextmanager
async def servers(*engines: EngineType) -> AsyncIterator[Mapping[str, Simulator]]:
    """A simulator of each engine, with numbers of its own: 1 waits in the first, 2 in the second, …"""
    async with AsyncExitStack() as stack:
        running: dict[str, Simulator] = {}
        for number, engine in enumerate(engines, 1):
            settings = SimulatorSettings(port=0, engine=engine, kv_blocks=1000, block_tokens=32, drain_timeout=1)
            running[engine.value] = await stack.enter_async_context(simulator(settings))
            running[engine.value].server.page.pin(Pins(waiting=number, running=10 * number, kv_usage=number / 8))
        yield running


async def see(frames: Frames, number: int, name: str) -> None:
    """Wait until the numbers of the n-th server are all there."""

    def there() -> bool:
        usage = frames.value(name, KV_CACHE_USAGE)
        return (
            frames.value(name, WAITING_QUEUE_SIZE) == number
            and frames.value(name, RUNNING_REQUESTS_SIZE) == 10 * number
            and usage is not None
            and abs(usage - number / 8) < 0.01
        )

    await eventually(there, lambda: f"the numbers of {name}: {frames.values(name)}")


async def engines(service: CollectorService) -> dict[str, tuple[str, str]]:
    """How each endpoint is read, as the debug page says."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{service.admin_port}") as client:
        described = (await client.get("/debug/endpoints")).json()
    return {
        one["id"].partition("/")[2]: (one["sources"][0]["engine"], one["sources"][0]["engine_chosen_by"])
        for one in described
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (TRITON_FLAGS, {"vllm": ("vllm", "recognized"), "triton-tensorrt-llm": ("flags", "default")}),
        (VLLM_FLAGS, {"vllm": ("flags", "default"), "triton-tensorrt-llm": ("triton-tensorrt-llm", "recognized")}),
    ],
    ids=["triton-by-flags", "vllm-by-flags"],
)
async def test_both_live_in_one_pool_whichever_the_flags_say(
    nats: NatsServer,
    owner: Owner,
    frames: Frames,
    flags: tuple[str, ...],
    expected: dict[str, tuple[str, str]],
) -> None:
    async with (
        servers(EngineType.VLLM, EngineType.TRITON_TENSORRT_LLM) as running,
        collector(nats.url, **by_flags(*flags)) as it,
    ):
        await owner.publish([endpoint(name, server.port) for name, server in running.items()])
        for number, name in enumerate(running, 1):
            await see(frames, number, name)
        assert await engines(it) == expected
        triton = frames.values("triton-tensorrt-llm")
        assert (triton["CacheBlockSize"], triton["CacheNumBlocks"]) == (32, 1000)


async def test_an_unlabelled_pool_of_four_engines_is_recognized_from_its_pages(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """A label says where trtllm-serve has its page; none says which engine anything is."""
    config = HEAD + (
        "plugins:\n- type: metrics-data-source\n"
        "  parameters: {overrides: [{matchLabels: {page: prometheus}, path: /prometheus/metrics}]}\n"
    )
    kinds = (EngineType.VLLM, EngineType.SGLANG, EngineType.TRTLLM_SERVE, EngineType.TRITON_TENSORRT_LLM)
    async with servers(*kinds) as running, collector(nats.url, scrape_timeout=10.0) as it:
        paths = {"trtllm-serve": {"page": "prometheus"}}
        await owner.publish(
            [endpoint(name, server.port, **paths.get(name, {})) for name, server in running.items()], config
        )
        for number, name in enumerate(running, 1):
            await see(frames, number, name)
        assert await engines(it) == {
            "vllm": ("vllm", "default"),
            "sglang": ("sglang", "recognized"),
            "trtllm-serve": ("trtllm-serve", "recognized"),
            "triton-tensorrt-llm": ("triton-tensorrt-llm", "recognized"),
        }
        assert it.scraper.failures.total() == 0


async def test_an_engine_that_nobody_has_heard_of_needs_configuration_only(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """Derived quantities, a metric of its own, and recognition from the page, beside a vLLM."""
    page = answer(
        b'my_requests{state="all"} 9\nmy_requests{state="running"} 6\n'
        b"my_tokens_used 300\nmy_tokens_max 1200\nmy_cost 0.5\n"
    )
    config = HEAD + (
        "plugins:\n- type: core-metrics-extractor\n  parameters:\n    engineConfigs:\n    - name: mine\n"
        "      allRequestsSpec: my_requests{state=all}\n      runningRequestsSpec: my_requests{state=running}\n"
        "      usedKvTokensSpec: my_tokens_used\n      maxKvTokensSpec: my_tokens_max\n"
        "      customMetrics: [{attributeKey: Cost, metricSpec: my_cost}]\n"
        "- type: queue-scorer\n- type: kv-cache-utilization-scorer\n"
    )
    async with OddServer(page) as own, OddServer(vllm(4)) as other, collector(nats.url) as it:
        await owner.publish([endpoint("own", own.port), endpoint("other", other.port)], config)
        await eventually(lambda: frames.value("own", AttributeKey("Cost", CORE, float)) == 0.5, "the own metric")
        assert frames.value("own", WAITING_QUEUE_SIZE) == 3.0
        assert frames.value("own", RUNNING_REQUESTS_SIZE) == 6.0
        assert frames.value("own", KV_CACHE_USAGE) == 0.25
        await eventually(lambda: frames.value("other", WAITING_QUEUE_SIZE) == 4.0, "the other's queue")
        assert await engines(it) == {"own": ("mine", "recognized"), "other": ("vllm", "default")}


async def test_flags_that_lack_something_wait_for_a_configuration_that_they_suit(
    nats: NatsServer, owner: Owner, frames: Frames
) -> None:
    """The default configuration needs the KV cache's use; the one that comes doesn't."""
    config = HEAD + "plugins: [{type: queue-scorer}]\n"
    async with (
        OddServer(answer(b"mine 3\n")) as server,
        collector(nats.url, total_queued_requests_metric="mine") as it,
    ):
        assert "--kv-cache-usage-percentage-metric" in it.readiness.reasons()["configuration"]
        await owner.publish([endpoint("a", server.port)], config)
        await eventually(lambda: frames.value("a", WAITING_QUEUE_SIZE) == 3.0, "the queue")
        assert "configuration" not in it.readiness.reasons()


def test_flags_that_do_not_suit_the_configuration_file_end_the_start(tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(HEAD + "plugins: [{type: running-requests-size-scorer}]\n")
    with pytest.raises(Invalid) as caught:
        CollectorService(CollectorSettings(config_file=str(file), total_queued_requests_metric="mine"))
    assert caught.value.lines()[0].startswith(f"{file}: --total-running-requests-metric: nothing gives RunningRequests")
