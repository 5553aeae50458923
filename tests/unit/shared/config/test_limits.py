"""How much a configuration may hold, and what reading it costs."""

import json
from typing import Any

import pytest

from shared.attributes import AttributeKey
from shared.config import Invalid, load
from shared.config.problems import Problems
from shared.config.schema import BOUNDS, Bounds
from shared.config.yaml import MAX_DEPTH, parse_documents
from shared.plugin import Input, Plugin, Registry, Role
from tests.unit.shared.config.plugins import HEADER, TYPES, registry

MANY = BOUNDS.entries + 1


def listed(entry: str, count: int = MANY) -> str:
    return "[" + ", ".join([entry] * count) + "]"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (f"plugins: {listed('{type: plain-scorer}')}", "plugins"),
        (f"schedulingProfiles: {listed('{name: a}')}", "schedulingProfiles"),
        (f"schedulingProfiles: [{{name: a, plugins: {listed('{pluginRef: a}')}}}]", "schedulingProfiles[0].plugins"),
        (f"dataLayer: {{sources: {listed('{pluginRef: a}')}}}", "dataLayer.sources"),
        (
            f"dataLayer: {{sources: [{{pluginRef: a, extractors: {listed('{pluginRef: a}')}}}]}}",
            "dataLayer.sources[0].extractors",
        ),
        (f"requestHandler: {{parsers: {listed('{pluginRef: a}')}}}", "requestHandler.parsers"),
        (f"flowControl: {{priorityBands: {listed('{priority: 1}')}}}", "flowControl.priorityBands"),
        (f"featureGates: {listed('flowControl')}", "featureGates"),
        (f"unknown: {listed('1')}", "unknown"),
    ],
)
def test_a_list_has_so_many_entries_at_most(body: str, path: str) -> None:
    with pytest.raises(Invalid) as refused:
        load(HEADER + body, registry(), "origin")
    assert refused.value.lines() == [f"origin: {path}: {MANY} entries; at most {BOUNDS.entries} are allowed"]


def test_all_lists_that_are_too_long_are_named() -> None:
    with pytest.raises(Invalid) as refused:
        load(f"{HEADER}plugins: {listed('{}')}\nschedulingProfiles: {listed('{}')}", registry())
    assert [problem.path for problem in refused.value.problems] == ["plugins", "schedulingProfiles"]


def test_lists_of_a_plugins_own_and_as_many_plugins_as_there_may_be_are_fine() -> None:
    names = ", ".join(map(str, range(MANY)))
    plugins = [f"{{type: plain-scorer, name: p{number}}}" for number in range(BOUNDS.entries - 1)]
    plugins.append(f"{{type: plain-scorer, parameters: {{names: ['{names}'] }}}}")
    config = load(f"{HEADER}plugins: [{', '.join(plugins)}]", registry())
    assert sum(spec.listed for spec in config.plugins.values()) == BOUNDS.entries


PARAMETERS = "plugins: [{type: plain-scorer, parameters: {names: %s}}]"


@pytest.mark.parametrize(
    "text",
    [
        HEADER + PARAMETERS % listed("a", 30),
        HEADER + PARAMETERS % f"{{a: &a {listed('a', 10)}, b: *a, c: *a}}",
        json.dumps({"\ud83d\ude00": 1, "a": [1] * 30}),
        json.dumps({"\ud83d\ude00": 1, **{str(number): 1 for number in range(15)}}),
    ],
    ids=["a list", "aliases", "JSON that YAML cannot read", "its keys"],
)
def test_a_document_has_so_many_values_at_most(text: str) -> None:
    """Keys included; an alias counts for what it names."""
    with pytest.raises(Invalid) as refused:
        load(text, registry(), bounds=Bounds(values=30))
    assert refused.value.lines() == ["document: more than 30 values, keys included; no more are allowed"]


class Asked:
    """Plugin types that count how often they are asked what they make and need."""

    def __init__(self) -> None:
        self.times = 0
        asked = self

        class Maker(Plugin):
            TYPE = "maker"
            ROLES = frozenset({Role.DATA_PRODUCER})

            @classmethod
            def produces(cls, name: str, parameters: Any) -> tuple[AttributeKey[Any], ...]:
                asked.times += 1
                return (AttributeKey(name, name, float),)

        class Reader(Plugin):
            TYPE = "reader"
            ROLES = frozenset({Role.SCORER})

            @classmethod
            def consumes(cls, parameters: Any) -> tuple[Input, ...]:
                asked.times += 1
                return (Input(parameter="key", name="m0"), Input(AttributeKey("m1", "m1", float)))

        self._registry = Registry((*TYPES, Maker, Reader))

    def by(self, plugins: int) -> int:
        """How often, where half of so many plugins make what the others read."""
        before = self.times
        entries = [f"{{type: maker, name: m{number}}}" for number in range(plugins // 2)]
        entries += [f"{{type: reader, name: r{number}}}" for number in range(plugins // 2)]
        members = [f"{{pluginRef: r{number}}}" for number in range(plugins // 2)]
        load(
            f"{HEADER}plugins: [{', '.join(entries)}]\n"
            f"schedulingProfiles: [{{name: default, plugins: [{', '.join(members)}]}}]",
            self._registry,
        )
        return self.times - before


def test_reading_a_configuration_costs_the_same_for_each_plugin() -> None:
    asked = Asked()
    few, more, many = asked.by(40), asked.by(80), asked.by(160)
    assert many - more == 2 * (more - few)


def test_json_that_yaml_cannot_read_is_counted_before_the_parser_holds_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    loads = json.loads

    def loaded(text: str, **options: Any) -> Any:
        parsed.append(text)
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", loaded)
    few, many = (json.dumps({"\ud83d\ude00,,,": [1] * count}) for count in (28, 31))
    for text, expected in ((few, []), (many, ["document: more than 31 values, keys included; no more are allowed"])):
        problems = Problems()
        parse_documents(text, problems, 31)
        assert list(map(str, problems.errors)) == expected
    assert parsed == [few]


def test_json_that_yaml_cannot_read_is_as_deep_at_most() -> None:
    """A surrogate pair is what YAML can't read."""

    def nested(levels: int) -> list[Any]:
        problems = Problems()
        found = parse_documents("[" * levels + '"\\ud83d\\ude00"' + "]" * levels, problems)
        assert bool(found) != bool(problems.errors)
        return found

    assert nested(MAX_DEPTH)
    assert not nested(MAX_DEPTH + 1)


def test_an_attribute_has_so_long_a_name_at_most() -> None:
    body = "plugins: [{type: prometheus-metric, name: %s, parameters: {metricName: m}}]"
    load(HEADER + body % ("p" * 254), Registry.installed())
    with pytest.raises(Invalid, match=r"plugins\[0\]: an attribute's name of 257 characters"):
        load(HEADER + body % ("p" * 255), Registry.installed())
