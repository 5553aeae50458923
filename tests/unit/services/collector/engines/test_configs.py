"""What engines of a configuration come to, and what is said of those that can't be."""

from typing import Any

import pytest

from services.collector.engines.builtin import BUILT_IN, SGLANG, VLLM, Engine, engines_by_name, specs
from services.collector.engines.configs import EngineConfig
from shared.attributes import CORE, KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems


def config(**given: Any) -> EngineConfig:
    decoded = decode({"name": "mine", **given}, EngineConfig, "engine", Problems(), ignore_case=True)
    assert isinstance(decoded, EngineConfig)
    return decoded


def problems(**given: Any) -> list[str]:
    found = Problems()
    assert decode({"name": "mine", **given}, EngineConfig, "engine", found, ignore_case=True) is MISSING
    return [str(error) for error in found.errors]


def test_what_an_engine_leaves_out_is_off() -> None:
    assert config(queuedRequestsSpec="q").engine() == Engine(name="mine", queued_requests=specs("q"))


def test_what_an_engine_leaves_out_is_that_of_the_engine_which_it_extends() -> None:
    engine = config(extends="vllm", runningRequestsSpec="mine_running", loraSpec="").engine()
    assert engine.running_requests == specs("mine_running")
    assert engine.lora == ()
    assert (engine.queued_requests, engine.kv_usage, engine.cache_info) == (
        VLLM.queued_requests,
        VLLM.kv_usage,
        VLLM.cache_info,
    )


def test_labels_are_those_of_the_engine_which_is_extended() -> None:
    engine = config(extends="sglang").engine()
    assert (engine.cache_block_size_label, engine.cache_num_blocks_label) == (
        SGLANG.cache_block_size_label,
        SGLANG.cache_num_blocks_label,
    )
    assert config(extends="sglang", cacheBlockSizeLabelName="b").engine().cache_block_size_label == "b"


def test_what_a_quantity_is_derived_from_stands_in_for_the_extended_engines_own_metric() -> None:
    """Who gives all requests means the difference: the direct metric, which goes before it, isn't added."""
    assert config(extends="vllm", allRequestsSpec="a").engine().queued_requests == ()
    assert config(extends="vllm", usedKvBlocksSpec="u").engine().kv_usage == ()
    assert config(extends="vllm", usedKvTokensSpec="u").engine().kv_usage == ()
    both = config(extends="vllm", allRequestsSpec="a", queuedRequestsSpec="q").engine()
    assert (both.queued_requests, both.all_requests) == (specs("q"), specs("a"))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"extends": "vlm"}, "engine: extends: 'vlm' is not a built-in engine; known: vllm, sglang, trtllm-serve"),
        ({"allRequestsSpec": "a{"}, "engine: allRequestsSpec: 'a{' is not a metric specification"),
        ({"customMetrics": [{"attributeKey": "", "metricSpec": "m"}]}, "customMetrics[0]: attributeKey: required"),
        ({"customMetrics": [{"attributeKey": "a", "metricSpec": " "}]}, "customMetrics[0]: metricSpec: required"),
        ({"customMetrics": [{"attributeKey": "a", "metricSpec": "m{"}]}, "customMetrics[0]: metricSpec: 'm{' is no"),
        ({"customMetrics": [{"attributeKey": "a"}]}, "customMetrics[0].metricSpec: required, and missing"),
        (
            {"customMetrics": [{"attributeKey": "a", "metricSpec": "m"}, {"attributeKey": "a", "metricSpec": "n"}]},
            "customMetrics: 'a' is configured twice",
        ),
        (
            {"customMetrics": [{"attributeKey": "WaitingQueueSize", "metricSpec": "m"}]},
            "attributeKey: 'WaitingQueueSize' is a standard attribute",
        ),
        (
            {"customMetrics": [{"attributeKey": "a", "metricSpec": "m_sum", "function": "mean"}]},
            "metricSpec: 'm_sum' is a series of a histogram",
        ),
    ],
)
def test_an_engine_that_can_not_be_is_refused_by_field(given: dict[str, Any], problem: str) -> None:
    found = problems(**given)
    assert any(problem in each for each in found), found


def test_an_engine_of_a_built_ins_name_stands_in_its_place() -> None:
    mine, sglang = Engine(name="mine"), Engine(name="sglang", queued_requests=specs("q"))
    known = engines_by_name([mine, sglang])
    assert list(known) == ["mine", "sglang", *(each.name for each in BUILT_IN if each.name != "sglang")]
    assert known["sglang"] is sglang


# What an engine can give


@pytest.mark.parametrize(
    ("engine", "key", "gives"),
    [
        (Engine(name="e"), WAITING_QUEUE_SIZE, False),
        (Engine(name="e", queued_requests=specs("q")), WAITING_QUEUE_SIZE, True),
        (Engine(name="e", all_requests=specs("a")), WAITING_QUEUE_SIZE, False),
        (Engine(name="e", all_requests=specs("a"), running_requests=specs("r")), WAITING_QUEUE_SIZE, True),
        (Engine(name="e", used_kv_blocks=specs("u")), KV_CACHE_USAGE, False),
        (Engine(name="e", max_kv_blocks=specs("m")), KV_CACHE_USAGE, False),
        (Engine(name="e", used_kv_blocks=specs("u"), max_kv_blocks=specs("m")), KV_CACHE_USAGE, True),
        (Engine(name="e", used_kv_blocks=specs("u"), cache_num_blocks=specs("m")), KV_CACHE_USAGE, True),
        (Engine(name="e", used_kv_blocks=specs("u"), cache_info=specs("m")), KV_CACHE_USAGE, True),
        (Engine(name="e", used_kv_blocks=specs("u"), max_kv_tokens=specs("m")), KV_CACHE_USAGE, False),
        (Engine(name="e", used_kv_tokens=specs("u"), max_kv_tokens=specs("m")), KV_CACHE_USAGE, True),
        (Engine(name="e"), AttributeKey("Cost", CORE, float), False),
        (
            config(customMetrics=[{"attributeKey": "Cost", "metricSpec": "m"}]).engine(),
            AttributeKey("Cost", CORE, float),
            True,
        ),
    ],
)
def test_an_engine_gives_what_it_names_or_what_can_be_derived_from_that(
    engine: Engine, key: AttributeKey[Any], gives: bool
) -> None:
    assert engine.provides(key) is gives
