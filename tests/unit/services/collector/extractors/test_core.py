"""What the core extractor makes of pages of each engine."""

import asyncio
from typing import Any

import pytest

from services.collector.extractors.core import CoreMetricsExtractor, CoreParameters
from services.collector.interfaces import Binding
from services.collector.page.selection import Outcome
from services.collector.sources.metrics import MetricsSource
from shared.attributes import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    CORE,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    STANDARD_KEYS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
    AttributeMap,
)
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint


def labelled(engine: str) -> Endpoint:
    return Endpoint(id="a", name="a", address="10.0.0.1", port=8000, labels={"llm-d.ai/engine-type": engine})


def read(binding: Binding, page: str | bytes, attributes: AttributeMap, at: float = 1.0) -> bool:
    asyncio.run(MetricsSource("m").reader([binding]).read(page if isinstance(page, bytes) else page.encode(), 0.0))
    return binding.store(attributes, at)


def extract(engine: str, page: str | bytes, **given: Any) -> dict[str, Any]:
    made = parameters(**given)
    assert isinstance(made, CoreParameters), made
    attributes = AttributeMap()
    read(CoreMetricsExtractor("core", made).bind(labelled(engine)), page, attributes)
    return {key.name: sample.value for key, sample in attributes.items()}


def parameters(**given: Any) -> CoreParameters | list[str]:
    """The parameters as the loader decodes them, or the problems."""
    problems = Problems()
    decoded = decode(given, CoreParameters, "parameters", problems, ignore_case=True)
    if decoded is MISSING:
        return [str(problem) for problem in problems.errors]
    assert isinstance(decoded, CoreParameters)
    return decoded


VLLM = """\
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 1.7e9
vllm:cache_config_info{block_size="16",num_gpu_blocks="2048"} 1.0
"""


VALUES = {
    "WaitingQueueSize": 2.0,
    "RunningRequestsSize": 3.0,
    "KVCacheUsagePercent": 0.25,
    "ActiveModels": ("a", "b"),
    "WaitingModels": ("c",),
    "MaxActiveModels": 4.0,
    "CacheBlockSize": 16.0,
    "CacheNumBlocks": 2048.0,
}
LORA = ("ActiveModels", "WaitingModels", "MaxActiveModels")


def test_vllm() -> None:
    assert extract("vllm", VLLM) == VALUES


@pytest.mark.parametrize(
    ("engine", "page", "expected"),
    [
        ("vllm", "vllm:gpu_cache_usage_perc 0.75\n", (None, None, 0.75, None, None)),  # before 0.10
        (
            "sglang",
            'sglang:num_running_reqs{m="m"} 5\nsglang:num_queue_reqs{m="m"} 1\nsglang:token_usage 0.5\n'
            'sglang:cache_config_info{page_size="64",num_pages="1000"} 1\n',
            (1.0, 5.0, 0.5, 64.0, 1000.0),
        ),
        (
            "trtllm-serve",
            "trtllm_num_requests_waiting 4\ntrtllm_num_requests_running 2\ntrtllm_kv_cache_utilization 0.1\n"
            "trtllm_kv_cache_tokens_per_block 32.9\ntrtllm_kv_cache_max_blocks 100\n",
            (4.0, 2.0, 0.1, 32.0, 100.0),
        ),
        (
            "triton-tensorrt-llm",
            "".join(
                f'nv_trt_llm_request_metrics{{model="m",request_type="{kind}"}} {value}\n'
                for kind, value in (("active", 9), ("scheduled", 6), ("waiting", 3))
            )
            + "".join(
                f'nv_trt_llm_kv_cache_block_metrics{{kv_cache_block_type="{kind}",model="m"}} {value}\n'
                for kind, value in (("fraction", 0.4), ("max", 500), ("tokens_per", 64), ("used", 200))
            ),
            (3.0, 6.0, 0.4, 64.0, 500.0),
        ),
        (
            "triton",
            "nv_inference_pending_request_count 7\nnv_inference_exec_count 3\n",  # a count, no gauge
            (7.0, None, None, None, None),
        ),
    ],
)
def test_other_engines_publish_the_same_quantities_by_other_names(
    engine: str, page: str, expected: tuple[float | None, ...]
) -> None:
    keys = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS)
    wanted = {key.name: value for key, value in zip(keys, expected, strict=True) if value is not None}
    assert extract(engine, page) == wanted


# The engine of an endpoint


@pytest.mark.parametrize(
    ("labels", "engine"),
    [
        ({}, "vllm"),
        ({"llm-d.ai/engine-type": "sglang"}, "sglang"),
        ({"inference.networking.k8s.io/engine-type": "triton"}, "triton"),
        ({"llm-d.ai/engine-type": "", "inference.networking.k8s.io/engine-type": "triton"}, "triton"),
        ({"llm-d.ai/engine-type": "sglang", "inference.networking.k8s.io/engine-type": "triton"}, "sglang"),
        ({"llm-d.ai/engine-type": "unheard-of"}, "vllm"),
    ],
)
def test_an_engine_is_chosen_by_label(labels: dict[str, str], engine: str) -> None:
    endpoint = Endpoint(id="a", name="a", address="10.0.0.1", port=1, labels=labels)
    assert CoreMetricsExtractor("core").bind(endpoint).engine.name == engine


def test_the_label_and_the_default_engine_can_be_configured() -> None:
    extractor = CoreMetricsExtractor("core", parameters(engineLabelKey="engine", defaultEngine="sglang"))
    assert extractor.bind(Endpoint(id="a", name="a", address="a", port=1)).engine.name == "sglang"
    triton = Endpoint(id="a", name="a", address="a", port=1, labels={"engine": "triton"})
    assert extractor.bind(triton).engine.name == "triton"


@pytest.mark.parametrize(
    ("given", "engine", "page", "values"),
    [
        (
            {"engineConfigs": [{"name": "vllm", "queuedRequestsSpec": "my_queue{tier=gold}"}]},
            "vllm",
            VLLM + 'my_queue{tier="gold"} 8\n',
            {"WaitingQueueSize": 8.0},
        ),
        (
            {
                "engineConfigs": [
                    {"name": "mine", "cacheInfoSpec": "my_cache", "cacheBlockSizeLabelName": "bs"}
                    | {"cacheNumBlocksLabelName": "n"}
                ]
            },
            "mine",
            'my_cache{bs="8",n="9"} 1\n',
            {"CacheBlockSize": 8.0, "CacheNumBlocks": 9.0},
        ),
        (
            {"queueRequestsSpec": "q", "loraSpec": ""},
            "vllm",
            VLLM + "q 6\n",
            {name: value for name, value in VALUES.items() if name not in LORA} | {"WaitingQueueSize": 6.0},
        ),
    ],
    ids=["in place of a built-in one", "added", "fields of the default one, as the first generation has them"],
)
def test_engines_of_the_configuration(given: dict[str, Any], engine: str, page: str, values: dict[str, Any]) -> None:
    assert extract(engine, page, **given) == values


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"defaultEngine": "vlm"}, "parameters: defaultEngine: 'vlm' is not an engine; known: sglang, triton"),
        ({"engineConfigs": [{"name": ""}]}, "parameters.engineConfigs[0]: name: required"),
        ({"engineConfigs": [{"name": "default"}]}, "'default' is reserved"),
        ({"engineConfigs": [{"name": "a"}, {"name": "a"}]}, "'a' is configured twice"),
        ({"engineConfigs": [{"name": "a", "kvUsageSpec": "m{a}"}]}, "parameters.engineConfigs[0]: kvUsageSpec: 'm{a}'"),
        ({"engineConfigs": [{"name": "a", "kvSpec": "m"}]}, "unknown field"),
        (
            {"engineConfigs": [{"name": "a"}], "queueRequestsSpec": "q"},
            "queueRequestsSpec: give specifications here or",
        ),
        ({"queueRequestsSpec": "q{"}, "'q{' is not a metric specification"),
    ],
)
def test_parameters_that_can_not_be_used_are_refused_by_name(given: dict[str, Any], problem: str) -> None:
    problems = parameters(**given)
    assert isinstance(problems, list)
    assert any(problem in each_problem for each_problem in problems), problems


def test_all_wrong_specifications_of_an_engine_are_named_at_once() -> None:
    (problem,) = parameters(engineConfigs=[{"name": "a", "loraSpec": "{", "queuedRequestsSpec": "1"}])  # type: ignore[misc]
    assert "loraSpec" in problem
    assert "queuedRequestsSpec" in problem


# What a page says, and what it doesn't


def test_a_metric_that_disappears_ages_alone() -> None:
    binding, attributes = CoreMetricsExtractor("core").bind(labelled("vllm")), AttributeMap()
    read(binding, VLLM, attributes, at=1.0)
    read(binding, "vllm:num_requests_running 9\n", attributes, at=2.0)
    running, waiting = attributes.sample(RUNNING_REQUESTS_SIZE), attributes.sample(WAITING_QUEUE_SIZE)
    assert running is not None
    assert waiting is not None
    assert (running.value, running.at) == (9.0, 2.0)
    assert (waiting.value, waiting.at) == (2.0, 1.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1"])
def test_a_value_that_is_no_amount_is_left_out_and_said(value: str) -> None:
    binding, attributes = CoreMetricsExtractor("core").bind(labelled("vllm")), AttributeMap()
    read(binding, f"vllm:num_requests_waiting {value}\nvllm:num_requests_running 1\n", attributes)
    assert attributes.get(WAITING_QUEUE_SIZE) is None
    assert attributes.get(RUNNING_REQUESTS_SIZE) == 1.0
    outcomes = {finding.attribute: finding.outcome for finding in binding.findings()}
    assert outcomes["WaitingQueueSize"] is Outcome.INVALID
    assert outcomes["RunningRequestsSize"] is Outcome.FOUND
    assert outcomes["KVCacheUsagePercent"] is Outcome.ABSENT


def test_only_a_value_that_is_another_than_before_is_a_change() -> None:
    binding, attributes = CoreMetricsExtractor("core").bind(labelled("vllm")), AttributeMap()
    assert read(binding, VLLM, attributes, at=1.0)
    assert not read(binding, VLLM, attributes, at=2.0)
    assert read(binding, VLLM.replace("0.25", "0.26"), attributes, at=3.0)
    assert read(binding, VLLM.replace("0.25", "0.26").replace("a, b", "a"), attributes, at=4.0)


def lora(running: str, waiting: str, at: str, most: str = "4") -> str:
    labels = f'max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"'
    return f"vllm:lora_requests_info{{{labels}}} {at}\n"


@pytest.mark.parametrize(
    ("page", "values"),
    [
        (lora("a", "", "100") + lora("b,c", "d", "300") + lora("e", "", "200"), (("b", "c"), ("d",), 4.0)),
        (lora("a", "b", "100") + lora("", "", "200"), ((), (), 4.0)),
        (lora(" a , ,b,,a ", "", "1", ""), (("a", "b"), ())),
    ],
    ids=["the last word counts", "there are none", "trimmed"],
)
def test_lora_adapters(page: str, values: tuple[Any, ...]) -> None:
    assert extract("vllm", page) == dict(zip(LORA, values, strict=False))


@pytest.mark.parametrize(
    ("name", "count", "given", "outcome"),
    [
        ("adapter-{}", 6_000, {}, Outcome.INVALID),
        ("{}", 1_001, {}, Outcome.INVALID),
        ("{}", 2_000, {"maxLoraAdapters": 2_001}, Outcome.FOUND),
        ("{}", 10_001, {"maxLoraAdapters": 20_000}, Outcome.INVALID),
        ("{}", 4, {"maxLoraAdapters": 3}, Outcome.INVALID),
        ("adapter-{:0100}", 2, {"maxLoraAdapters": 3}, Outcome.INVALID),
        ("adapter-{}", 20_000, {}, Outcome.ABSENT),
    ],
    ids=[
        "the list",
        "the names",
        "a higher limit",
        "more than can be sent",
        "a lower limit",
        "the bytes",
        "the whole line",
    ],
)
def test_a_monstrous_list_of_adapters_is_refused(
    name: str, count: int, given: dict[str, int], outcome: Outcome
) -> None:
    made = parameters(**given)
    assert isinstance(made, CoreParameters)
    binding, attributes = CoreMetricsExtractor("core", made).bind(labelled("vllm")), AttributeMap()
    read(binding, lora(",".join(map(name.format, range(count))), "", "1"), attributes)
    assert [finding.outcome for finding in binding.findings() if finding.attribute in LORA] == [outcome] * 3
    assert bool(len(attributes)) == (outcome is Outcome.FOUND)


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [("9" * 9, {"CacheNumBlocks": 999_999_999.0}), *((each, {}) for each in ("None", "", "-1", "1.5", "²", "9" * 18))],
)
def test_a_label_that_is_no_whole_number_costs_only_its_own_attribute(blocks: str, expected: dict[str, Any]) -> None:
    page = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1\n'
    assert extract("vllm", page) == {"CacheBlockSize": 16.0, **expected}


# Metrics of the user's own


OWN = [
    {
        "name": "mine",
        "extends": "vllm",
        "customMetrics": [
            {"attributeKey": "Cost", "metricSpec": "cost{tier=gold}"},
            {"attributeKey": "Tokens", "metricSpec": "tokens_total", "function": "rate", "window": "10s"},
        ],
    },
    {"name": "other", "customMetrics": [{"attributeKey": "Cost", "metricSpec": "price", "aggregation": "sum"}]},
]
COST = AttributeKey("Cost", CORE, float)
TOKENS = AttributeKey("Tokens", CORE, float)


def test_metrics_of_every_engines_own_are_among_what_the_extractor_makes() -> None:
    made = CoreMetricsExtractor.produces("core", parameters(engineConfigs=OWN))  # type: ignore[arg-type]
    assert made == (*STANDARD_KEYS, COST, TOKENS)


def test_a_page_is_news_when_only_an_own_metric_changes() -> None:
    binding = CoreMetricsExtractor("core", parameters(engineConfigs=OWN)).bind(labelled("mine"))
    attributes = AttributeMap()
    pages = [VLLM + f'cost{{tier="gold"}} {cost}\n' for cost in (1, 2, 2)]
    assert [read(binding, page, attributes, at=float(at)) for at, page in enumerate(pages)] == [True, True, False]


def test_an_own_metric_is_an_attribute_beside_the_standard_ones() -> None:
    binding = CoreMetricsExtractor("core", parameters(engineConfigs=OWN)).bind(labelled("mine"))
    attributes = AttributeMap()
    read(binding, VLLM + "tokens_total 100\n", attributes, at=1.0)
    assert (attributes.get(COST), attributes.get(TOKENS)) == (None, None)
    found = {finding.attribute: (finding.what, finding.outcome) for finding in binding.findings()}
    assert found["Cost"] == ("cost{tier=gold}", Outcome.ABSENT)
    assert found["Tokens"][0] == "rate(tokens_total, 10s)"
    read(binding, VLLM + 'cost{tier="gold"} -2.5\ncost{tier="iron"} 1\ntokens_total 140\n', attributes, at=5.0)
    found_values = {key: attributes.get(key) for key in (COST, WAITING_QUEUE_SIZE, TOKENS)}
    assert found_values == {COST: -2.5, WAITING_QUEUE_SIZE: 2.0, TOKENS: 10.0}
    assert extract("other", 'price{gpu="0"} 1\nprice{gpu="1"} 2\n', engineConfigs=OWN) == {"Cost": 3.0}
