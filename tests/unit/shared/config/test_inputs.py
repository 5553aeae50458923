"""Attributes that parameters name: which one each means, and what is said where none does."""

from typing import Any, ClassVar

import pytest
from msgspec import Struct

from shared.attributes import WAITING_QUEUE_SIZE, AttributeKey
from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Need, Plugin, Registry, Role, Tier
from tests.unit.shared.config.plugins import HEADER, registry


class FamilyExtractor(Plugin):
    """Makes one attribute, named by its parameter, under its own name."""

    class Parameters(Struct, frozen=True, rename="camel"):
        family: str

    TYPE = "family-extractor"
    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    INPUT: ClassVar[str] = "pages"

    @classmethod
    def produces(cls, name: str, parameters: Any) -> tuple[AttributeKey[Any], ...]:
        return (AttributeKey(parameters.family, name, float),)


class FamilyScorer(Plugin):
    """Reads the attribute that its parameter names, of a certain producer if it names one."""

    class Parameters(Struct, frozen=True, rename="camel"):
        family: str
        producer: str = ""

    TYPE = "family-scorer"
    ROLES = frozenset({Role.SCORER})

    @classmethod
    def needs(cls, parameters: Any) -> tuple[Need, ...]:
        return (Need("family", parameters.family, parameters.producer, "add a family-extractor"),)


class NamesExtractor(FamilyExtractor):
    """Makes one that isn't a number."""

    TYPE = "names-extractor"

    @classmethod
    def produces(cls, name: str, parameters: Any) -> tuple[AttributeKey[Any], ...]:
        return (AttributeKey(parameters.family, name, tuple),)


class PositionExtractor(Plugin):
    """Comes with a source."""

    TYPE = "position-extractor"
    ROLES = frozenset({Role.EXTRACTOR})
    INPUT: ClassVar[str] = "positions"
    DEFAULT_SOURCE: ClassVar[str] = "position-source"


class PositionSource(Plugin):
    TYPE = "position-source"
    ROLES = frozenset({Role.DATA_SOURCE})
    OUTPUT: ClassVar[str] = "positions"


TWO = (
    "- {name: small, type: family-extractor, parameters: {family: depth}}\n"
    "- {name: large, type: family-extractor, parameters: {family: depth}}\n"
)
BOTH_FED = "[{pluginRef: metrics-data-source, extractors: [{pluginRef: small}, {pluginRef: large}]}]"


def loaded(plugins: str, sources: str, *, inject: bool = True) -> LoadedConfig:
    types = registry()
    for one in (FamilyExtractor, FamilyScorer, NamesExtractor, PositionExtractor, PositionSource):
        types.add(one)
    body = f"plugins:\n- {{type: metrics-data-source}}\n{plugins}"
    return load(f"{HEADER}{body}dataLayer: {{injectDefaults: {str(inject).lower()}, sources: {sources}}}\n", types)


def problem(plugins: str, sources: str) -> str:
    with pytest.raises(Invalid) as caught:
        loaded(plugins, sources)
    (only,) = caught.value.problems
    return str(only)


def scorer(family: str, producer: str = "") -> str:
    return f"- {{type: family-scorer, parameters: {{family: {family}, producer: '{producer}'}}}}\n"


def test_an_attribute_is_found_by_its_own_name() -> None:
    one = "- {name: small, type: family-extractor, parameters: {family: depth}}\n"
    config = loaded(one + scorer("depth"), "[{pluginRef: metrics-data-source, extractors: [{pluginRef: small}]}]")
    assert config.inputs == {"family-scorer": {"family": AttributeKey("depth", "small", float)}}


def test_an_attribute_is_found_by_the_name_of_the_plugin_that_makes_it() -> None:
    config = loaded(TWO + scorer("large"), BOTH_FED)
    assert config.inputs["family-scorer"]["family"].wire == "depth/large"


def test_an_attribute_of_a_certain_producer_is_that_producers() -> None:
    config = loaded(TWO + scorer("depth", "small"), BOTH_FED)
    assert config.inputs["family-scorer"]["family"].producer == "small"


def test_a_producer_can_be_named_by_its_type() -> None:
    config = loaded(scorer("WaitingQueueSize", "core-metrics-extractor"), "[]")
    assert config.inputs["family-scorer"]["family"] == WAITING_QUEUE_SIZE


@pytest.mark.parametrize(
    ("written", "producer", "wire"),
    [
        ("depth/small", "", "depth/small"),
        ("depth/large", "large", "depth/large"),
        ("WaitingQueueSize/core-metrics-extractor", "", "WaitingQueueSize/core-metrics-extractor"),
    ],
)
def test_an_attribute_is_found_by_its_name_and_its_producers_in_one_word(
    written: str, producer: str, wire: str
) -> None:
    config = loaded(TWO + scorer(written, producer), BOTH_FED)
    assert config.inputs["family-scorer"]["family"].wire == wire


def test_an_attribute_in_one_word_of_a_producer_that_doesnt_make_it_isnt_found() -> None:
    assert "nothing makes 'depth/small' by 'large'" in problem(TWO + scorer("depth/small", "large"), BOTH_FED)


@pytest.mark.parametrize(("written", "meant"), [("dept", "depth"), ("smal", "small"), ("zebra", "")])
def test_a_slip_in_an_attributes_or_its_makers_name_is_told_with_what_is_right(written: str, meant: str) -> None:
    one = "- {name: small, type: family-extractor, parameters: {family: depth}}\n"
    said = problem(one + scorer(written), "[{pluginRef: metrics-data-source, extractors: [{pluginRef: small}]}]")
    assert f"nothing makes '{written}'{f'; did you mean {meant!r}?' if meant else ';'}" in said


def test_a_plugin_of_several_attributes_is_no_name_for_one() -> None:
    said = problem(scorer("core-metrics-extractor"), "[]")
    assert "nothing makes 'core-metrics-extractor'; add a family-extractor" in said


def test_a_name_that_several_plugins_make_is_an_error_that_names_them() -> None:
    said = problem(TWO + scorer("depth"), BOTH_FED)
    assert said.startswith("plugins[3].parameters.family: ")
    assert "'depth' is made by 'small' and 'large'; write the name of one of these plugins" in said


def test_an_attribute_that_nothing_makes_is_an_error_that_says_what_would() -> None:
    said = problem(TWO + scorer("dept"), BOTH_FED)
    assert "nothing makes 'dept'" in said
    assert "'depth'" in said
    assert said.endswith("add a family-extractor")


def test_an_extractor_that_no_source_feeds_makes_nothing() -> None:
    said = problem(TWO + scorer("small"), "[{pluginRef: metrics-data-source, extractors: [{pluginRef: large}]}]")
    assert "no source feeds 'small'; list it under a source in dataLayer.sources" in said


def test_an_attribute_that_holds_something_else_is_an_error() -> None:
    names = "- {name: small, type: names-extractor, parameters: {family: staff}}\n"
    said = problem(names + scorer("staff"), "[{pluginRef: metrics-data-source, extractors: [{pluginRef: small}]}]")
    assert said == "plugins[2].parameters.family: 'staff' holds names; a number is expected"


def test_instances_are_handed_what_their_parameters_name() -> None:
    config = loaded(TWO + scorer("small"), BOTH_FED)
    plugin = config.instances(Tier.PICKER)["family-scorer"]
    assert plugin.inputs["family"].wire == "depth/small"
    assert config.instances(Tier.PICKER)["max-score-picker"].inputs == {}


def test_the_core_extractor_joins_the_first_metrics_source() -> None:
    config = loaded(TWO, BOTH_FED)
    assert [(one.source, one.extractors) for one in config.sources] == [
        ("metrics-data-source", ("small", "large", "core-metrics-extractor"))
    ]


def test_the_core_extractor_isnt_added_where_one_is_fed_already() -> None:
    core = "- {name: mine, type: core-metrics-extractor}\n"
    config = loaded(core, "[{pluginRef: metrics-data-source, extractors: [{pluginRef: mine}]}]")
    assert [one.extractors for one in config.sources] == [("mine",)]


def test_the_core_extractor_isnt_added_without_inject_defaults() -> None:
    assert [one.extractors for one in loaded(TWO, BOTH_FED, inject=False).sources] == [("small", "large")]


def test_a_listed_extractor_that_comes_with_a_source_gets_it() -> None:
    config = loaded("- {type: position-extractor}\n", "[]", inject=False)
    assert [(one.source, one.extractors) for one in config.sources] == [("position-source", ("position-extractor",))]
    assert config.plugins["position-source"].injected


def test_a_listed_extractor_joins_the_source_that_it_comes_with_where_there_is_one() -> None:
    config = loaded(
        "- {name: positions, type: position-source}\n- {type: position-extractor}\n",
        "[{pluginRef: positions}]",
        inject=False,
    )
    assert [(one.source, one.extractors) for one in config.sources] == [("positions", ("position-extractor",))]


TWICE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {name: one, type: metrics-data-source}
- {name: two, type: metrics-data-source, parameters: {port: 9400}}
- {name: core, type: core-metrics-extractor}
- {name: other, type: core-metrics-extractor}
- {name: depth, type: prometheus-metric, parameters: {metricName: depth, emptyValue: 0}}
dataLayer:
  sources:
  - {pluginRef: one, extractors: [EXTRACTORS]}
  - {pluginRef: two, extractors: [MORE]}
"""


def twice(extractors: str, more: str) -> list[str]:
    document = TWICE.replace("EXTRACTORS", extractors).replace("MORE", more)
    try:
        load(document, Registry.installed())
    except Invalid as error:
        return [str(one) for one in error.problems]
    return []


@pytest.mark.parametrize(
    ("extractors", "more", "problem"),
    [
        (
            "{pluginRef: core}",
            "{pluginRef: other}",
            "plugins[3]: 'other' under 'two' and 'core' under 'one' make the same attribute, "
            "WaitingQueueSize and 7 more; let one of them read it from one source",
        ),
        (
            "{pluginRef: core}, {pluginRef: other}",
            "",
            "plugins[3]: 'other' under 'one' and 'core' under 'one' make the same attribute, "
            "WaitingQueueSize and 7 more; let one of them read it from one source",
        ),
        (
            "{pluginRef: depth}",
            "{pluginRef: depth}",
            "plugins[4]: 'depth' under 'two' and 'depth' under 'one' make the same attribute, depth; "
            "let one of them read it from one source",
        ),
    ],
)
def test_an_attribute_that_two_would_write_is_an_error_that_names_both(
    extractors: str, more: str, problem: str
) -> None:
    assert [one.partition(" (line")[0] for one in twice(extractors, more)] == [problem]


def test_two_sources_may_feed_extractors_of_their_own() -> None:
    assert twice("{pluginRef: core}", "{pluginRef: depth}") == []
    assert twice("", "{pluginRef: core}, {pluginRef: depth}") == []
