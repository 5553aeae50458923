"""What a configuration gets that it doesn't say."""

import hashlib

import pytest

from shared.config import Invalid, LoadedConfig, load
from shared.config.defaults import DEFAULT_DOCUMENT
from shared.plugin import Registry, Tier
from tests.unit.shared.config.plugins import HEADER, PassthroughParser, registry


def loaded(body: str = "", types: Registry | None = None) -> LoadedConfig:
    return load(HEADER + body, types or registry())


def members(config: LoadedConfig, profile: int = 0) -> list[tuple[str, float]]:
    return [(member.plugin.name, member.weight) for member in config.profiles[profile].members]


def added(config: LoadedConfig) -> list[str]:
    return [spec.name for spec in config.plugins.values() if spec.injected]


def test_an_empty_text_is_the_default_document() -> None:
    types = Registry.installed()
    config = load("", types)
    assert config == load("  \n", types) == load(DEFAULT_DOCUMENT, types)
    assert members(config) == [
        ("prefix-cache-affinity-filter", 1.0),
        ("token-load-scorer", 1.0),
        ("max-score-picker", 1.0),
    ]


def test_a_document_has_the_beginning_of_its_texts_sha256_as_its_revision_and_no_text_that_of_the_default() -> None:
    types = Registry.installed()
    for text, hashed in ((HEADER, HEADER), (HEADER + "# ü\n", HEADER + "# ü\n"), ("", DEFAULT_DOCUMENT)):
        assert load(text, types).revision == hashlib.sha256(hashed.encode()).hexdigest()[:12]


def test_defaults_are_added_in_order() -> None:
    config = loaded("plugins: [{type: prefix-scorer}]")
    assert added(config) == [
        "max-score-picker",
        "single-profile-handler",
        "openai-parser",
        "passthrough-parser",
        "utilization-detector",
        "metrics-data-source",
        "core-metrics-extractor",
        "index",
        "tokenizer",
    ]


def test_without_profiles_one_has_all_listed_filters_scorers_and_the_first_picker_in_order() -> None:
    config = loaded(
        "plugins: [{type: random-picker, name: r}, {type: utilization-detector}, {type: openai-parser}, "
        "{type: queue-scorer}, {type: max-score-picker}]"
    )
    assert [profile.name for profile in config.profiles] == ["default"]
    assert members(config) == [("r", 1.0), ("utilization-detector", 1.0), ("queue-scorer", 1.0)]


def test_a_profile_without_a_picker_gets_the_first_one_that_is_listed() -> None:
    config = loaded(
        "plugins: [{type: random-picker, name: r}, {type: max-score-picker}, {type: many-profiles-handler}]\n"
        "schedulingProfiles: [{name: a}, {name: b, plugins: [{pluginRef: max-score-picker}]}]"
    )
    assert (members(config, 0), members(config, 1)) == ([("r", 1.0)], [("max-score-picker", 1.0)])


@pytest.mark.parametrize(
    ("entry", "field", "name"),
    [
        ("{type: single-profile-handler, name: mine}", "profile_handler", "mine"),
        ("{type: utilization-detector, name: mine}", "saturation_detector", "mine"),
        ("{type: openai-parser, name: mine}", "parsers", ("mine", "passthrough-parser")),
    ],
)
def test_a_renamed_plugin_stands_for_the_default_of_its_type(entry: str, field: str, name: object) -> None:
    assert getattr(loaded(f"plugins: [{entry}]"), field) == name


def test_default_parsers_that_arent_installed_are_left_out() -> None:
    assert loaded(types=registry(PassthroughParser)).parsers == ("openai-parser",)


@pytest.mark.parametrize(
    ("body", "producers"),
    [
        ("plugins: [{type: prefix-scorer}]", ("tokenizer", "index")),
        ("plugins: [{type: index, name: mine}, {type: prefix-scorer}]", ("tokenizer", "mine")),
        ("plugins: [{type: prefix-scorer, parameters: {indexName: index}}]", ("tokenizer", "index")),
        (
            "plugins: [{type: prefix-scorer, parameters: {indexName: mine}}, {type: index, name: mine}]",
            ("tokenizer", "mine"),
        ),
        ("plugins: [{type: index}, {type: queue-scorer}]", ()),
        (
            "plugins: [{type: prefix-scorer}, {type: plain-scorer}]\n"
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: plain-scorer}]}]",
            (),
        ),
        ("plugins: [{type: curious-scorer}]", ()),
        ("plugins: [{type: curious-scorer}, {type: index}]", ("tokenizer", "index")),
    ],
    ids=[
        "added",
        "listed",
        "named",
        "named and listed later",
        "nobody reads it",
        "in no profile",
        "optional, missing",
        "optional, there",
    ],
)
def test_the_producers_run_that_somebody_reads_and_those_that_they_require(
    body: str, producers: tuple[str, ...]
) -> None:
    assert loaded(body).producers == producers


@pytest.mark.parametrize(
    ("body", "sources"),
    [
        (
            "plugins: [{type: metrics-data-source, name: s}, {type: core-metrics-extractor, name: e}]\n"
            "dataLayer: {sources: [{pluginRef: s, extractors: [{pluginRef: e}]}]}",
            [("s", ("e",))],
        ),
        ("plugins: [{type: metrics-data-source, name: s}]", [("s", ("core-metrics-extractor",))]),
        ("plugins: [{type: curious-scorer}]\ndataLayer: {injectDefaults: false}", []),
    ],
    ids=["of any name", "listed and in no section", "without injection"],
)
def test_pages_are_scraped_once(body: str, sources: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(source.source, source.extractors) for source in loaded(body).sources] == sources


def test_the_indexs_parameters_on_the_scorer_go_to_the_producer_that_is_added() -> None:
    config = loaded("plugins: [{type: prefix-scorer, parameters: {blockSize: 16}}]")
    assert config.plugins["index"].parameters.block_size == 16
    assert [str(warning) for warning in config.warnings] == ["plugins[0].parameters: blockSize is deprecated here"]


def test_the_indexs_parameters_on_the_scorer_have_no_effect_beside_a_producer_with_others() -> None:
    scorer = "{type: prefix-scorer, parameters: {blockSize: 16}}"
    other = f"plugins: [{scorer}, {{type: index, parameters: {{blockSize: 8}}}}]"
    same = f"plugins: [{scorer}, {{type: index, parameters: {{blockSize: 16}}}}]"
    no_effect = "plugins[0].parameters: no effect of blockSize: 'index' has its own parameters"
    assert no_effect in [str(warning) for warning in loaded(other).warnings]
    assert no_effect not in [str(warning) for warning in loaded(same).warnings]


def test_of_two_scorers_with_different_parameters_for_one_index_the_second_is_told() -> None:
    config = loaded(
        "plugins: [{type: prefix-scorer, parameters: {blockSize: 16}}, "
        "{type: prefix-scorer, name: b, parameters: {blockSize: 32}}]"
    )
    assert config.plugins["index"].parameters.block_size == 16
    assert "plugins[1].parameters: no effect of blockSize" in str(config.warnings[-1])


def test_a_tier_gets_its_own_instances_by_name() -> None:
    config = loaded("plugins: [{type: file-discovery, name: d}]")
    assert list(config.instances(Tier.WATCHER)) == ["d"]
    assert list(config.instances(Tier.COLLECTOR)) == ["metrics-data-source", "core-metrics-extractor"]
    assert config.instances(Tier.COLLECTOR)["metrics-data-source"].name == "metrics-data-source"


def test_plugins_that_refuse_to_be_made_are_all_named() -> None:
    config = loaded(
        "plugins: [{type: metrics-data-source, name: a, parameters: {path: x}}, "
        "{type: metrics-data-source, name: b, parameters: {path: y}}]"
    )
    with pytest.raises(Invalid) as caught:
        config.instances(Tier.COLLECTOR)
    assert caught.value.lines() == [
        "plugins[0]: path: 'x' doesn't begin with /",
        "plugins[1]: path: 'y' doesn't begin with /",
    ]


POLICIES = "plugins: [{type: fcfs-ordering-policy, name: first}, {type: round-robin-fairness-policy, name: turns}]\n"
GENTLE = "plugins: [{type: gentle-eviction-filter, name: gentle}]\n"
STRICT, FCFS, STATIC = "global-strict-fairness-policy", "fcfs-ordering-policy", "static-usage-limit-policy"
ORDER = "priority-then-time-eviction-order-policy"


@pytest.mark.parametrize(
    ("body", "policies", "new"),
    [
        ("", [STRICT, FCFS, STATIC], [STRICT, FCFS, STATIC]),
        ("flowControl: {maxRequests: 5}", [STRICT, FCFS, STATIC], [STRICT, FCFS, STATIC]),
        # a plugin of the type is used, whatever its name
        (POLICIES, [STRICT, "first", STATIC], [STRICT, STATIC]),
        (
            POLICIES + "flowControl: {defaultPriorityBand: {fairnessPolicyRef: turns}}",
            ["turns", "first", STATIC],
            [STATIC],
        ),
        (
            POLICIES + "flowControl: {priorityBands: [{priority: 1, fairnessPolicyRef: turns}], "
            "defaultNegativePriorityBand: {}}",
            [STRICT, "first", "turns", STATIC],
            [STRICT, STATIC],
        ),
        # eviction brings its policies though they are experimental: nobody else asks for them
        (
            "flowControl: {enableEviction: true}",
            [STRICT, FCFS, STATIC, "sheddable-eviction-filter", ORDER],
            [STRICT, FCFS, STATIC, "sheddable-eviction-filter", ORDER],
        ),
        (
            GENTLE + "flowControl: {enableEviction: true}",
            [STRICT, FCFS, STATIC, "gentle", ORDER],
            [STRICT, FCFS, STATIC, ORDER],
        ),
        (GENTLE, [STRICT, FCFS, STATIC], [STRICT, FCFS, STATIC]),
    ],
)
def test_flow_control_has_a_policy_in_each_place(body: str, policies: list[str], new: list[str]) -> None:
    config = loaded("featureGates: [flowControl]\n" + body)
    assert config.policies() == policies
    assert [name for name in added(config) if name in policies] == sorted(new, key=policies.index)
    assert config.warnings == ()
    off = loaded(body)
    assert (off.policies(), off.flow_control) == ([], None)
    assert not set(new) & set(added(off))
