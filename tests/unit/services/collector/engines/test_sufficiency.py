"""Engines that users define are checked at load against what the configured plugins read."""

import pytest

from shared.config import Invalid, load
from shared.plugin import Registry

REGISTRY = Registry.installed()


def document(engine: str, *plugins: str) -> str:
    listed = "".join(f"- type: {plugin}\n" for plugin in plugins)
    return (
        f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{listed}"
        f"- type: core-metrics-extractor\n  parameters: {{engineConfigs: [{engine}]}}\n"
    )


def problems(engine: str, *plugins: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        load(document(engine, *plugins), REGISTRY)
    return [str(problem) for problem in caught.value.problems]


def warnings(engine: str, *plugins: str) -> list[str]:
    return [str(warning) for warning in load(document(engine, *plugins), REGISTRY).warnings]


AT = "plugins[1].parameters.engineConfigs[0]: "


def test_what_a_scorer_requires_and_an_engine_leaves_out_is_an_error_that_says_what_would_do() -> None:
    assert problems("{name: mine, queuedRequestsSpec: q}", "kv-cache-utilization-scorer") == [
        AT + "nothing gives KVCacheUsagePercent, which 'kv-cache-utilization-scorer' requires; give kvUsageSpec, or "
        "usedKvBlocksSpec and maxKvBlocksSpec, or usedKvBlocksSpec and cacheNumBlocksSpec, or usedKvBlocksSpec and "
        'cacheInfoSpec, or usedKvTokensSpec and maxKvTokensSpec; or write kvUsageSpec: "" if there is none'
    ]


def test_where_a_constituent_is_given_the_error_names_the_rest() -> None:
    assert problems("{name: mine, allRequestsSpec: a, kvUsageSpec: k}", "queue-scorer") == [
        AT + "nothing gives WaitingQueueSize, which 'queue-scorer' requires; give queuedRequestsSpec, or "
        'runningRequestsSpec beside allRequestsSpec; or write queuedRequestsSpec: "" if there is none'
    ]


def test_attributes_of_one_specification_are_one_error() -> None:
    (problem,) = problems("{name: mine, queuedRequestsSpec: q, kvUsageSpec: k}", "lora-affinity-scorer")
    assert (
        "nothing gives ActiveModels and WaitingModels, which 'lora-affinity-scorer' requires; give loraSpec" in problem
    )


def test_every_engine_is_checked_and_named_by_its_place() -> None:
    engines = "{name: a, queuedRequestsSpec: q, kvUsageSpec: k}, {name: b, kvUsageSpec: k}, {name: vllm}"
    found = problems(engines, "queue-scorer")
    assert [each.partition(":")[0] for each in found] == [
        "plugins[1].parameters.engineConfigs[1]",
        "plugins[1].parameters.engineConfigs[2]",
    ]


@pytest.mark.parametrize(
    "engine",
    [
        "{name: mine, allRequestsSpec: a, runningRequestsSpec: r, usedKvBlocksSpec: u, maxKvBlocksSpec: m}",
        "{name: vllm, extends: vllm, customMetrics: [{attributeKey: a, metricSpec: m}]}",
    ],
)
def test_what_can_be_derived_is_enough(engine: str) -> None:
    assert warnings(engine, "queue-scorer", "kv-cache-utilization-scorer") == []


def test_what_is_switched_off_explicitly_is_missing_on_purpose() -> None:
    found = warnings('{name: mine, queuedRequestsSpec: q, kvUsageSpec: ""}', "kv-cache-utilization-scorer")
    assert found == [
        AT + "nothing gives KVCacheUsagePercent, which 'kv-cache-utilization-scorer' requires: it is switched off by "
        'kvUsageSpec: ""'
    ]


def test_what_is_only_used_is_a_warning() -> None:
    """The saturation detector, which every configuration has, does without."""
    (warning,) = warnings("{name: mine, queuedRequestsSpec: q}", "queue-scorer")
    assert "nothing gives KVCacheUsagePercent, which 'utilization-detector' uses; give kvUsageSpec, or" in warning


def test_what_is_only_used_and_switched_off_is_nothing_to_speak_of() -> None:
    assert warnings('{name: mine, queuedRequestsSpec: q, kvUsageSpec: ""}', "queue-scorer") == []


@pytest.mark.parametrize(
    ("scorer", "attribute"),
    [
        ("kv-cache-utilization-scorer", "KVCacheUsagePercent"),
        ("running-requests-size-scorer", "RunningRequestsSize"),
    ],
)
def test_what_a_built_in_default_engine_does_not_publish_is_a_warning(scorer: str, attribute: str) -> None:
    text = document("", scorer).replace("engineConfigs: []", "defaultEngine: triton")
    assert [warning.message for warning in load(text, REGISTRY).warnings] == [
        f"triton doesn't publish {attribute}, which '{scorer}' requires: endpoints of this engine don't have it"
    ]


def test_what_a_built_in_default_engine_publishes_is_enough() -> None:
    text = document("", "queue-scorer").replace("engineConfigs: []", "defaultEngine: triton")
    assert load(text, REGISTRY).warnings == ()


def test_an_attribute_of_the_users_own_that_only_another_engine_has_is_a_warning() -> None:
    engines = (
        "{name: a, extends: vllm, customMetrics: [{attributeKey: Cost, metricSpec: cost}]}, {name: b, extends: vllm}"
    )
    scorer = "endpoint-attribute-scorer\n  parameters: {attributeKey: Cost, algorithm: {type: linear_lower_is_better}}"
    assert warnings(engines, scorer) == [
        "plugins[1].parameters.engineConfigs[1]: nothing gives Cost, which 'endpoint-attribute-scorer' requires: "
        "endpoints of this engine don't have it"
    ]
