"""What a page says beyond an attribute's bounds isn't taken, and is counted and named."""

import asyncio
import time
from typing import Any

import pytest

from services.collector.extractors.core import CoreMetricsExtractor, CoreParameters
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.interfaces import Binding
from services.collector.page.selection import Outcome
from services.collector.pipeline import Pipeline, PolledSource
from services.collector.scraper import Scraper
from services.collector.sources.metrics import MetricsSource
from shared.attributes import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    CORE,
    KV_CACHE_USAGE,
    STANDARD_KEYS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
)
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint
from shared.out_of_range import OutOfRange
from shared.plugin_failures import PluginFailures
from tests.unit.services.collector.test_docs import page
from tests.unit.services.collector.test_scraper import Servers
from tests.waiting import eventually


def bound(engine: str, parameters: CoreParameters | None = None) -> Binding:
    endpoint = Endpoint(id="a", name="a", address="10.0.0.1", port=8000, labels={"llm-d.ai/engine-type": engine})
    return CoreMetricsExtractor("core", parameters).bind(endpoint)


def read(binding: Binding, attributes: AttributeMap, *pages: str) -> None:
    reader = MetricsSource("m").reader([binding])
    for at, text in enumerate(pages):
        asyncio.run(reader.read(text.encode(), float(at)))
        binding.store(attributes, float(at))


NINES = "9" * 18


@pytest.mark.parametrize(
    ("engine", "key", "sound", "wrong"),
    [
        ("vllm", WAITING_QUEUE_SIZE, "vllm:num_requests_waiting 3", "vllm:num_requests_waiting 1e200"),
        ("vllm", WAITING_QUEUE_SIZE, "vllm:num_requests_waiting 3", "vllm:num_requests_waiting +Inf"),
        ("vllm", WAITING_QUEUE_SIZE, "vllm:num_requests_waiting 3", "vllm:num_requests_waiting -1"),
        ("vllm", KV_CACHE_USAGE, "vllm:kv_cache_usage_perc 0.5", "vllm:kv_cache_usage_perc 57"),
        (
            "vllm",
            CACHE_BLOCK_SIZE,
            'vllm:cache_config_info{block_size="16"} 1',
            f'vllm:cache_config_info{{block_size="{NINES}"}} 1',
        ),
        (
            "vllm",
            CACHE_NUM_BLOCKS,
            'vllm:cache_config_info{num_gpu_blocks="900"} 1',
            f'vllm:cache_config_info{{num_gpu_blocks="{NINES}"}} 1',
        ),
        (
            "vllm",
            CACHE_NUM_BLOCKS,
            'vllm:cache_config_info{num_gpu_blocks="900"} 1',
            f'vllm:cache_config_info{{num_gpu_blocks="{"9" * 5000}"}} 1',
        ),
        (
            "trtllm-serve",
            CACHE_BLOCK_SIZE,
            "trtllm_kv_cache_tokens_per_block 32",
            "trtllm_kv_cache_tokens_per_block 1e200",
        ),
        ("trtllm-serve", CACHE_NUM_BLOCKS, "trtllm_kv_cache_max_blocks 900", "trtllm_kv_cache_max_blocks 1.7e308"),
    ],
)
def test_a_number_beyond_the_bounds_is_invalid_and_leaves_the_last_one_to_age(
    engine: str, key: AttributeKey[float], sound: str, wrong: str
) -> None:
    binding, attributes = bound(engine), AttributeMap()
    read(binding, attributes, f"{sound}\n")
    known = attributes.sample(key)
    assert known is not None
    assert attributes.take_refused() == {}
    read(binding, attributes, f"{wrong}\n")
    assert attributes.sample(key) is known
    assert attributes.take_refused().keys() == {key}
    assert Outcome.INVALID in {finding.outcome for finding in binding.findings() if finding.attribute == key.name}


def decoded(kind: type[Any], **given: Any) -> Any:
    """The parameters, or what is wrong with them."""
    problems = Problems()
    made = decode(given, kind, "parameters", problems, ignore_case=True)
    return [str(error) for error in problems.errors] if made is MISSING else made


def test_where_one_way_gives_a_number_beyond_the_bounds_the_next_one_counts() -> None:
    config = {
        "name": "own",
        "extends": "vllm",
        "kvUsageSpec": "vllm:kv_cache_usage_perc",
        "usedKvBlocksSpec": "used",
        "maxKvBlocksSpec": "most",
    }
    binding, attributes = bound("own", decoded(CoreParameters, engineConfigs=[config])), AttributeMap()
    read(binding, attributes, "vllm:kv_cache_usage_perc 1e9\nused 3\nmost 4\n")
    assert attributes.get(KV_CACHE_USAGE) == 0.75
    assert attributes.take_refused().keys() == {KV_CACHE_USAGE}
    read(binding, attributes, "vllm:kv_cache_usage_perc 0.5\nused 1e308\nmost 1e-300\n")
    assert (attributes.get(KV_CACHE_USAGE), attributes.take_refused()) == (0.5, {})


@pytest.mark.parametrize(
    ("value", "taken"), [("5", 5.0), ("0", 0.0), ("100", 100.0), ("-1", None), ("100.5", None), ("+Inf", None)]
)
def test_a_metric_of_ones_own_may_say_which_values_are_taken(value: str, taken: float | None) -> None:
    bounds = {"minValue": 0, "maxValue": 100}
    metric = {"attributeKey": "Heat", "metricSpec": "m", **bounds}
    own = decoded(CoreParameters, engineConfigs=[{"name": "own", "extends": "vllm", "customMetrics": [metric]}])
    mine = decoded(PrometheusMetricParameters, metricName="m", **bounds)
    endpoint = Endpoint(id="a", name="a", address="10.0.0.1", port=8000)
    for binding, key in (
        (bound("own", own), AttributeKey("Heat", CORE, float)),
        (PrometheusMetricExtractor("mine", mine).bind(endpoint), AttributeKey("m", "mine", float)),
    ):
        attributes = AttributeMap()
        read(binding, attributes, f"m {value}\n")
        assert attributes.get(key) == taken
        assert [str(bounds) for _, bounds in attributes.take_refused().values()] == ["0 to 100"] * (taken is None)
        (outcome,) = {finding.outcome for finding in binding.findings() if finding.attribute == key.name}
        assert outcome is (Outcome.INVALID if taken is None else Outcome.FOUND)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"minValue": 2, "maxValue": 1}, "minValue, maxValue: no value is within 2 to 1"),
        ({"maxValue": 1, "emptyValue": 2}, "emptyValue: 2.0 is outside of the accepted values, -1.84467e+19 to 1"),
    ],
)
def test_bounds_that_no_value_fits_are_refused(given: dict[str, Any], problem: str) -> None:
    (found,) = decoded(PrometheusMetricParameters, metricName="m", **given)
    assert problem in found


@pytest.mark.parametrize("wrong", ["1.7e308", "1e17"])
def test_a_rate_is_right_again_after_a_counter_that_jumped(wrong: str) -> None:
    parameters = decoded(PrometheusMetricParameters, metricName="m", function="rate", window="5s")
    binding = PrometheusMetricExtractor("mine", parameters).bind(
        Endpoint(id="a", name="a", address="10.0.0.1", port=8000)
    )
    attributes = AttributeMap()
    read(binding, attributes, "m 1\n", f"m {wrong}\n", *(f"m {value}\n" for value in range(2, 12)))
    assert attributes.get(AttributeKey("m", "mine", float)) == pytest.approx(1.0)


async def test_a_scrape_tells_of_it() -> None:
    servers, found = Servers(), OutOfRange(time.monotonic)

    async def answer() -> bytes:
        return b"vllm:num_requests_waiting 1e200\n"

    servers.answers["a"] = answer
    scraper = Scraper(
        servers,
        lambda scrape, changed: None,
        interval=0.002,
        backoff=0.01,
        failures=PluginFailures(time.monotonic),
        out_of_range=found,
    )
    scraper.use(Pipeline((PolledSource(MetricsSource("pages"), (CoreMetricsExtractor("core"),)),), ("pages",)))
    scraper.assign({"a": Endpoint(id="a", name="a", address="a", port=8000)})
    try:
        note = await eventually(lambda: found.note() or "", "a note")
    finally:
        await scraper.close()
    assert f"{WAITING_QUEUE_SIZE} was 1e+200 (endpoint 'a', source 'pages')" in note


def test_the_page_of_the_extractor_states_the_bounds() -> None:
    rows = [line for line in page(CoreMetricsExtractor).splitlines() if line.startswith("| `")]
    for key in STANDARD_KEYS:
        if key.kind is float:
            (row,) = [each_row for each_row in rows if f"`{key.name}`" in each_row.split("|")[1]]
            assert str(key.bounds) in row
