from importlib.metadata import EntryPoint

import pytest
from msgspec import Struct

from shared.plugin import GROUP, NoParameters, Plugin, Registry
from tests.unit.shared.config.plugins import MATCH, Index, PrefixScorer, QueueScorer

PLUGINS = (QueueScorer, PrefixScorer)
ONE = Index
NOT_PLUGINS = (QueueScorer, "queue-scorer")
HERE = __name__


def entry(name: str, attribute: str, module: str = HERE) -> EntryPoint:
    return EntryPoint(name, f"{module}:{attribute}", GROUP)


def test_a_type_is_found_by_its_name_and_by_its_former_names() -> None:
    registry = Registry([QueueScorer])
    assert registry.find("queue-scorer") is QueueScorer
    assert registry.find("least-queue-scorer") is QueueScorer
    assert registry.find("queue") is None
    assert registry.names() == ["queue-scorer"]


def test_a_type_can_be_added_twice() -> None:
    assert list(Registry([QueueScorer, QueueScorer])) == [QueueScorer]


@pytest.mark.parametrize(
    ("type_name", "aliases"), [("queue-scorer", ()), ("least-queue-scorer", ()), ("mine", ("queue-scorer",))]
)
def test_a_name_belongs_to_one_type(type_name: str, aliases: tuple[str, ...]) -> None:
    class Mine(Plugin):
        TYPE = type_name
        ALIASES = aliases

    with pytest.raises(ValueError, match=r"is declared by both .*config\.plugins and .*test_plugin"):
        Registry([QueueScorer, Mine])


def test_an_attributes_producers_are_found() -> None:
    assert Registry([QueueScorer, Index]).producers(MATCH) == [Index]


def test_an_entry_point_is_a_type_or_a_sequence_of_types() -> None:
    registry = Registry.of([entry("a", "PLUGINS"), entry("b", "ONE")])
    assert registry.names() == ["index", "prefix-scorer", "queue-scorer"]
    assert registry.failures == ()


def test_an_entry_point_that_cant_be_loaded_is_named_and_costs_only_its_own_types() -> None:
    registry = Registry.of(
        [entry("gone", "X", "no.such.module"), entry("none", "MISSING"), entry("odd", "NOT_PLUGINS"), entry("b", "ONE")]
    )
    assert registry.names() == ["index", "queue-scorer"]
    assert [failure.split(": ")[0] for failure in registry.failures] == [
        "entry point 'gone' (no.such.module:X)",
        f"entry point 'none' ({HERE}:MISSING)",
        f"entry point 'odd' ({HERE}:NOT_PLUGINS)",
    ]
    assert "'queue-scorer' is no plugin type" in registry.failures[2]


def test_the_installed_types_are_those_of_all_tiers() -> None:
    registry = Registry.installed()
    assert registry.failures == ()
    assert {kind.TIER.value for kind in registry} == {"watcher", "collector", "picker"}


@pytest.mark.parametrize("kind", list(Registry.installed()))
def test_an_installed_type_says_what_it_is(kind: type[Plugin]) -> None:
    assert kind.ROLES
    assert kind.__doc__
    assert issubclass(kind.Parameters, Struct)


def test_an_instance_has_default_parameters_unless_it_is_given_some() -> None:
    assert isinstance(QueueScorer("q").parameters, NoParameters)
