"""Attributes that parameters name: which one each means, and what is said where none does."""

from typing import Any, ClassVar

import pytest
from msgspec import Struct

from shared.attributes import WAITING_QUEUE_SIZE, AttributeKey
from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Input, Plugin, Registry, Role, Tier
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
    def consumes(cls, parameters: Any) -> tuple[Input, ...]:
        advice = "add a family-extractor"
        return (Input(parameter="family", name=parameters.family, producer=parameters.producer, advice=advice),)


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
ONE = "- {name: small, type: family-extractor, parameters: {family: depth}}\n"
NAMES = "- {name: small, type: names-extractor, parameters: {family: staff}}\n"
ONE_FED = "[{pluginRef: metrics-data-source, extractors: [{pluginRef: small}]}]"


def loaded(plugins: str, sources: str, *, inject: bool = True) -> LoadedConfig:
    types = registry()
    for kind in (FamilyExtractor, FamilyScorer, NamesExtractor, PositionExtractor, PositionSource):
        types.add(kind)
    body = f"plugins:\n- {{type: metrics-data-source}}\n{plugins}"
    return load(f"{HEADER}{body}dataLayer: {{injectDefaults: {str(inject).lower()}, sources: {sources}}}\n", types)


def problem(plugins: str, sources: str) -> str:
    with pytest.raises(Invalid) as caught:
        loaded(plugins, sources)
    (only,) = caught.value.lines()
    return only


def scorer(family: str, producer: str = "") -> str:
    return f"- {{type: family-scorer, parameters: {{family: {family}, producer: '{producer}'}}}}\n"


@pytest.mark.parametrize(
    ("plugins", "sources", "family", "producer", "key"),
    [
        (ONE, ONE_FED, "depth", "", AttributeKey("depth", "small", float)),
        (TWO, BOTH_FED, "large", "", AttributeKey("depth", "large", float)),
        (TWO, BOTH_FED, "depth", "small", AttributeKey("depth", "small", float)),
        (TWO, BOTH_FED, "depth/small", "", AttributeKey("depth", "small", float)),
        (TWO, BOTH_FED, "depth/large", "large", AttributeKey("depth", "large", float)),
        ("", "[]", "WaitingQueueSize", "core-metrics-extractor", WAITING_QUEUE_SIZE),
        ("", "[]", "WaitingQueueSize/core-metrics-extractor", "", WAITING_QUEUE_SIZE),
    ],
    ids=["name", "maker", "name and maker", "one word", "one word and maker", "maker's type", "its type in one word"],
)
def test_an_attribute_is_found_by_its_name_its_maker_or_both(
    plugins: str, sources: str, family: str, producer: str, key: AttributeKey[float]
) -> None:
    assert loaded(plugins + scorer(family, producer), sources).inputs == {"family-scorer": {"family": key}}


@pytest.mark.parametrize(
    ("plugins", "sources", "family", "producer", "expected"),
    [
        (ONE, ONE_FED, "dept", "", "nothing makes 'dept'; did you mean 'depth'?"),
        (ONE, ONE_FED, "smal", "", "nothing makes 'smal'; did you mean 'small'?"),
        (ONE, ONE_FED, "zebra", "", "nothing makes 'zebra'; add a family-extractor"),
        (TWO, BOTH_FED, "depth/small", "large", "nothing makes 'depth/small' by 'large'"),
        ("", "[]", "core-metrics-extractor", "", "nothing makes 'core-metrics-extractor'; add a family-extractor"),
        (
            TWO,
            BOTH_FED,
            "depth",
            "",
            "'depth' is produced by 'small' and 'large'; write the name of one of these plugins",
        ),
        (
            TWO,
            "[{pluginRef: metrics-data-source, extractors: [{pluginRef: large}]}]",
            "small",
            "",
            "no source feeds 'small'; list it under a source in dataLayer.sources",
        ),
        (NAMES, ONE_FED, "staff", "", "'staff' holds names; a number is expected"),
    ],
)
def test_an_attribute_that_cant_be_read_is_an_error_that_says_what_would_be_right(
    plugins: str, sources: str, family: str, producer: str, expected: str
) -> None:
    line = problem(plugins + scorer(family, producer), sources)
    assert line.startswith(f"plugins[{1 + plugins.count('- ')}].parameters.family: ")
    assert expected in line


def test_instances_are_handed_what_their_parameters_name() -> None:
    config = loaded(TWO + scorer("small"), BOTH_FED)
    plugin = config.instances(Tier.PICKER)["family-scorer"]
    assert plugin.inputs["family"].wire == "depth/small"
    assert config.instances(Tier.PICKER)["max-score-picker"].inputs == {}


@pytest.mark.parametrize(
    ("plugins", "sources", "inject", "fed"),
    [
        (TWO, BOTH_FED, True, {"metrics-data-source": ("small", "large", "core-metrics-extractor")}),
        (TWO, BOTH_FED, False, {"metrics-data-source": ("small", "large")}),
        (
            "- {name: small, type: core-metrics-extractor}\n",
            ONE_FED,
            True,
            {"metrics-data-source": ("small",)},
        ),
        ("- {type: position-extractor}\n", "[]", False, {"position-source": ("position-extractor",)}),
        (
            "- {name: positions, type: position-source}\n- {type: position-extractor}\n",
            "[{pluginRef: positions}]",
            False,
            {"positions": ("position-extractor",)},
        ),
    ],
    ids=[
        "the core extractor joins the first metrics source",
        "but not without injectDefaults",
        "nor where one is fed already",
        "an extractor that is only listed comes with its source",
        "or joins the one that is there",
    ],
)
def test_extractors_that_no_section_feeds_are_fed(
    plugins: str, sources: str, inject: bool, fed: dict[str, tuple[str, ...]]
) -> None:
    config = loaded(plugins, sources, inject=inject)
    assert {source.source: source.extractors for source in config.sources} == fed
    assert [name for name in fed if config.plugins[name].injected] == [
        name for name in fed if name == "position-source"
    ]


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
    with pytest.raises(Invalid) as caught:
        load(TWICE.replace("EXTRACTORS", extractors).replace("MORE", more), Registry.installed())
    assert [line.partition(" (line")[0] for line in caught.value.lines()] == [problem]


def test_two_sources_may_feed_extractors_of_their_own() -> None:
    for one, two in (("{pluginRef: core}", "{pluginRef: depth}"), ("", "{pluginRef: core}, {pluginRef: depth}")):
        load(TWICE.replace("EXTRACTORS", one).replace("MORE", two), Registry.installed())
