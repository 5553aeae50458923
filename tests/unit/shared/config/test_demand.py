"""Plugins are asked whether they can give what others want of them, and what they lack is told at its place."""

from typing import Any, ClassVar

import pytest
from msgspec import Struct

from shared.attributes import AttributeKey
from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Concern, Demand, Input, Plugin, Role, Tier
from tests.unit.shared.config.plugins import HEADER, plugin, registry

DEPTH = AttributeKey("Depth", "depth-extractor", float)
WIDTH = AttributeKey("Width", "depth-extractor", float)


class DepthExtractor(Plugin):
    """Makes two attributes, as far as its parameter says."""

    class Parameters(Struct, frozen=True, rename="camel"):
        without_depth: bool = False

    TYPE = "depth-extractor"
    ROLES = frozenset({Role.EXTRACTOR})
    TIER = Tier.COLLECTOR
    PRODUCES = (DEPTH, WIDTH)
    INPUT: ClassVar[str] = "pages"

    @classmethod
    def check(cls, parameters: Any, demand: Demand) -> list[Concern]:
        if not parameters.without_depth:
            return []
        required = [Concern("withoutDepth", f"required by {names}") for names in demand.required.values()]
        return required + [Concern("", f"used by {names}", fatal=False) for names in demand.used.values()]


class NamingScorer(Plugin):
    TYPE = "naming-scorer"
    ROLES = frozenset({Role.SCORER})

    @classmethod
    def consumes(cls, parameters: Any) -> tuple[Input, ...]:
        return (Input(parameter="attribute", name="Depth"),)


DepthScorer = plugin("depth-scorer", Role.SCORER, CONSUMES=(DEPTH,))
WidthFilter = plugin("width-filter", Role.FILTER, CONSUMES=(Input(WIDTH, optional=True),))


def loaded(*plugins: str, parameters: str = "{withoutDepth: true}") -> LoadedConfig:
    types = registry()
    for kind in (DepthExtractor, DepthScorer, NamingScorer, WidthFilter):
        types.add(kind)
    listed = "".join(f"- {{type: {kind}}}\n" for kind in plugins)
    return load(
        f"{HEADER}plugins:\n- {{type: metrics-data-source}}\n- {{type: depth-extractor, parameters: {parameters}}}\n"
        f"{listed}dataLayer: {{sources: [{{pluginRef: metrics-data-source, extractors: [{{pluginRef: depth-extractor}}]"
        "}]}\n",
        types,
    )


def test_what_is_required_and_lacks_is_an_error_at_the_parameter_and_what_is_used_can_be_a_warning() -> None:
    with pytest.raises(Invalid) as caught:
        loaded("naming-scorer", "depth-scorer")
    assert caught.value.lines() == ["plugins[1].parameters.withoutDepth: required by ('naming-scorer', 'depth-scorer')"]
    assert [str(warning) for warning in loaded("width-filter").warnings] == [
        "plugins[1].parameters: used by ('width-filter',)"
    ]


def test_a_plugin_is_not_asked_for_what_nobody_reads() -> None:
    assert loaded().warnings == ()
    assert loaded("depth-scorer", "width-filter", parameters="{}").warnings == ()


@pytest.mark.parametrize(
    ("parameters", "given"),
    [("{WithoutDepth: false}", {"withoutDepth"}), ("{withoutDepth: null}", set()), ("{}", set())],
)
def test_a_spec_knows_which_parameters_the_document_gives(parameters: str, given: set[str]) -> None:
    assert loaded(parameters=parameters).plugins["depth-extractor"].given == given
