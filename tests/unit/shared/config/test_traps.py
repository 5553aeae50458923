"""What surprises in documents: places where the original does what nobody means, or where two readings are possible."""

import pytest

from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Registry
from tests.unit.shared.config.documents import PARSERS
from tests.unit.shared.config.plugins import HEADER, MetricsSource, UtilizationDetector, registry

REGISTRY = Registry.installed()


def loaded(body: str, types: Registry | None = None) -> LoadedConfig:
    return load(HEADER + body, types or registry())


def errors(body: str, types: Registry | None = None) -> list[str]:
    with pytest.raises(Invalid) as caught:
        loaded(body, types)
    return caught.value.lines()


def warnings(config: LoadedConfig) -> list[str]:
    return [str(warning) for warning in config.warnings]


def test_a_weight_on_what_is_no_scorer_is_taken() -> None:
    config = loaded(
        "plugins: [{type: random-picker}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker, weight: 7}]}]"
    )
    assert config.warnings == ()


def test_a_detector_in_a_profile_filters_there_and_still_says_when_the_pool_is_saturated() -> None:
    config = loaded(
        "plugins: [{type: utilization-detector, name: gauge}]\n"
        "schedulingProfiles: [{name: a, plugins: [{pluginRef: gauge}]}]"
    )
    assert config.profiles[0].members[0].plugin.name == config.saturation_detector == "gauge"


@pytest.mark.parametrize(
    ("plugins", "detector"), [("[]", "utilization-detector"), ("[{type: utilization-detector, name: own}]", "own")]
)
def test_an_empty_section_for_the_detector_is_none(plugins: str, detector: str) -> None:
    """It was the way to ask for the default thresholds."""
    config = loaded(f"plugins: {plugins}\nsaturationDetector: {{}}")
    assert config.saturation_detector == detector
    assert warnings(config) == ["saturationDetector: has no effect; omit it"]


@pytest.mark.parametrize(
    ("body", "parsers"),
    [
        ("requestHandler: {parsers: []}", PARSERS),
        ("requestHandler: {parsers: []}\nparser: {pluginRef: openai-parser}", ("openai-parser",)),
        *((f"parser: {{pluginRef: {name}}}", (name,)) for name in PARSERS),
    ],
)
def test_an_empty_list_of_parsers_is_none_and_the_former_place_may_name_a_default_one(
    body: str, parsers: tuple[str, ...]
) -> None:
    assert loaded(body, REGISTRY).parsers == parsers


def test_a_parser_that_isnt_a_default_has_to_be_listed() -> None:
    assert errors("parser: {pluginRef: vllmgrpc-parser}", REGISTRY) == [
        "parser.pluginRef: 'vllmgrpc-parser' is no plugin's name; list it under plugins"
    ]


def test_a_renamed_source_that_feeds_nothing_gets_the_core_extractor() -> None:
    config = loaded(
        "plugins: [{type: metrics-data-source, name: pages}]\ndataLayer: {sources: [{pluginRef: pages}]}", REGISTRY
    )
    assert [(source.source, source.extractors) for source in config.sources] == [("pages", ("core-metrics-extractor",))]


@pytest.mark.parametrize("section", ["data", "dataLayer"])
def test_what_shares_the_load_of_replicas_has_to_be_right_though_it_has_no_effect(section: str) -> None:
    wrong = "{peerDiscovery: {}, crossReplicaSyncerPluginRef: plain-scorr, crossReplicaSyncInterval: 0s}"
    assert sorted(errors(f"plugins: [{{type: plain-scorer}}]\n{section}: {wrong}")) == [
        f"{section}.crossReplicaSyncInterval: '0s' is not above 0",
        f"{section}.crossReplicaSyncerPluginRef: 'plain-scorr' is no plugin's name; did you mean 'plain-scorer'?",
        f"{section}.peerDiscovery.pluginRef: required, and missing",
    ]


@pytest.mark.parametrize("kind", ["queue-scorer", "passthrough-parser"])
def test_a_parameter_of_a_type_that_has_none_is_an_error(kind: str) -> None:
    """The original leaves it unread, and a misspelt name of a type's own unnoticed."""
    assert errors(f"plugins: [{{type: {kind}, parameters: {{threshold: 3}}}}]", REGISTRY) == [
        "plugins[0].parameters.threshold: unknown field; there are none"
    ]


def test_a_filter_whose_attribute_nothing_makes_is_told_which_plugin_to_add() -> None:
    assert errors("plugins: [{type: served-model-filter}]", REGISTRY) == [
        "plugins[0]: served-model-filter needs /v1/models; add models-data-extractor, which produces it, to plugins; "
        "it comes with a models-data-source"
    ]


def test_what_a_section_stands_for_and_isnt_installed_is_named() -> None:
    assert "saturationDetector: the plugin type utilization-detector isn't installed" in errors(
        "saturationDetector: {queueDepthThreshold: 3}", registry(UtilizationDetector)
    )
    assert errors("", registry(MetricsSource)) == [
        "plugins: the plugin type 'metrics-data-source', which is added by default, isn't installed"
    ]
