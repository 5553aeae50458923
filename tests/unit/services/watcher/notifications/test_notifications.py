import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.watcher.notifications.node_labels import NodeLabelsExtractor
from services.watcher.notifications.notifications import Notifications
from shared.config import LoadedConfig, load
from shared.datalayer.events import Tally
from shared.datalayer.objects import NODE, KubernetesObject
from shared.model import Endpoint
from shared.plugin import Registry
from shared.plugin_failures import PluginFailures

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: node-labels-extractor, parameters: {attributes: [{label: gpus, attributeKey: KEY}]}}
"""


def config(key: str = "GPUs") -> LoadedConfig:
    return load(CONFIG.replace("KEY", key), Registry.installed())


def node(name: str, gpus: str) -> KubernetesObject:
    return KubernetesObject(NODE, name, {"metadata": {"name": name, "labels": {"gpus": gpus}}})


def at(name: str, where: str) -> Endpoint:
    return Endpoint(id=name, name=name, address="10.0.0.1", port=8000, node=where)


def made_anew() -> Notifications:
    return Notifications(Tally(PluginFailures(time.monotonic)))


def served(*objects: KubernetesObject) -> Notifications:
    """With a configuration and objects."""
    made = made_anew()
    made.use(config())
    made.tell(objects)
    return made


A, B = at("a", "n1"), at("b", "n2")


def test_without_a_source_nothing_is_wanted_and_nothing_made() -> None:
    made = made_anew()
    for one in (None, load("", Registry.installed())):
        made.use(one)
        made.tell([node("n1", "8")])
        assert made.kinds == {}
        assert not made.makes
        assert made.follow((A,)) == []


def test_objects_become_attributes_of_endpoints_in_whatever_order_they_come() -> None:
    first, second = served(node("n1", "8")), made_anew()
    assert first.follow((A, B)) == ["a", "b"]
    second.follow((A, B))
    second.tell([node("n1", "8")])
    second.use(config())
    assert second.follow((A, B)) == ["a", "b"]
    for made in (first, second):
        assert made.kinds == {NODE: frozenset({"metadata"})}
        assert made.of("a") == {"GPUs/node-labels-extractor": 8.0}
        assert made.of("b") == {}


def test_attributes_follow_objects_and_endpoints() -> None:
    made = served(node("n1", "8"), node("n2", "4"))
    made.follow((A, B))
    assert made.follow((A, B)) == []
    made.tell([node("n1", "16"), node("n2", "4")])
    assert made.follow((A, B)) == ["a"]
    assert made.follow((A, at("b", "n1"))) == ["b"]
    assert made.of("b") == {"GPUs/node-labels-extractor": 16.0}
    made.tell([])
    assert made.follow((A, at("b", "n1"))) == ["a", "b"]
    assert made.of("a") == {}


def test_the_extractors_of_another_configuration_begin_with_all_objects() -> None:
    made = served(node("n1", "8"))
    made.follow((A,))
    made.use(config())
    assert made.follow((A,)) == [], "it does the same"
    made.use(config("Cards"))
    assert made.follow((A,)) == ["a"]
    assert made.of("a") == {"Cards/node-labels-extractor": 8.0}
    assert denied(made) == {"GPUs/node-labels-extractor"}
    made.use(None)
    assert made.follow((A,)) == ["a"]
    assert (made.of("a"), made.kinds) == ({}, {})
    assert denied(made) == {"Cards/node-labels-extractor"}, "pickers forget it, and what was before is forgotten"


def denied(made: Notifications) -> set[str]:
    attributes = made.described(1.0)["a"].attributes
    return {key.wire for key, sample in attributes.items() if sample.value is None}


def test_the_state_shows_sources_objects_and_what_was_learnt() -> None:
    made = served(node("n1", "8"), node("n2", "many"))
    assert made.state() == {
        "sources": [
            {
                "source": "k8s-notification-source",
                "extractors": ["node-labels-extractor"],
                "kind": "v1 Node",
                "objects": 2,
            }
        ],
        "extractors": {
            "node-labels-extractor": {
                "nodes": {"n1": {"GPUs": 8.0}, "n2": {}},
                "unread": {"n2": {"gpus": "many"}},
            }
        },
        "failures": {},
    }


class OddExtractor(NodeLabelsExtractor):
    """Somebody's, whose constructor, or what it tells of itself, fails."""

    TYPE = "odd-extractor"
    fails_at = ""

    def __init__(self, name: str, parameters: Any) -> None:
        super().__init__(name, parameters)
        self.maybe("constructor")

    def maybe(self, at: str) -> None:
        if at == self.fails_at:
            raise KeyError("gpu")

    def describe(self) -> dict[str, Any]:
        self.maybe("describe")
        return super().describe()


def odd(monkeypatch: pytest.MonkeyPatch, fails_at: str) -> LoadedConfig:
    monkeypatch.setattr(OddExtractor, "fails_at", fails_at)
    registry = Registry([*Registry.installed(), OddExtractor])
    return load(CONFIG.replace("node-labels-extractor", "odd-extractor").replace("KEY", "Odd"), registry)


def test_a_plugin_that_can_not_be_made_leaves_what_held(monkeypatch: pytest.MonkeyPatch) -> None:
    made = served(node("n1", "8"))
    with capture_logs() as logs:
        made.use(odd(monkeypatch, "constructor"))
    assert [(one["event"], one["problems"]) for one in logs] == [("notifications.refused", ["KeyError: 'gpu'"])]
    made.follow((A,))
    assert made.of("a") == {"GPUs/node-labels-extractor": 8.0}


def test_an_extractor_that_fails_to_tell_of_itself_costs_no_debug_page(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_anew()
    made.use(odd(monkeypatch, "describe"))
    state = made.state()
    assert state["extractors"] == {"odd-extractor": {"error": "KeyError: 'gpu'"}}
