import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.watcher.notifications.node_labels import NodeLabelsExtractor
from services.watcher.notifications.notifications import Notifications
from shared.config import LoadedConfig, load
from shared.datalayer.events import EventCounts
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
    return Notifications(EventCounts(PluginFailures(time.monotonic)))


def served(*objects: KubernetesObject) -> Notifications:
    """With a configuration and objects."""
    made = made_anew()
    made.use(config())
    made.set_objects(objects)
    return made


def by_id(*endpoints: Endpoint) -> dict[str, Endpoint]:
    return {endpoint.id: endpoint for endpoint in endpoints}


A, B = at("a", "n1"), at("b", "n2")


def test_without_a_source_nothing_is_wanted_and_nothing_made() -> None:
    made = made_anew()
    for each in (None, load("", Registry.installed())):
        made.use(each)
        made.set_objects([node("n1", "8")])
        assert made.kinds == {}
        assert not made.table.makes
        assert (
            made.set_endpoints(
                by_id(
                    A,
                )
            )
            == []
        )


def test_objects_become_attributes_of_endpoints_in_whatever_order_they_come() -> None:
    first, second = served(node("n1", "8")), made_anew()
    assert first.set_endpoints(by_id(A, B)) == ["a", "b"]
    second.set_endpoints(by_id(A, B))
    second.set_objects([node("n1", "8")])
    second.use(config())
    assert second.set_endpoints(by_id(A, B)) == ["a", "b"]
    for made in (first, second):
        assert made.kinds == {NODE: frozenset({"metadata"})}
        assert made.table.of("a") == {"GPUs/node-labels-extractor": 8.0}
        assert made.table.of("b") == {}


def test_attributes_follow_objects_and_endpoints() -> None:
    made = served(node("n1", "8"), node("n2", "4"))
    made.set_endpoints(by_id(A, B))
    assert made.set_endpoints(by_id(A, B)) == []
    made.set_objects([node("n1", "16"), node("n2", "4")])
    assert made.set_endpoints(by_id(A, B)) == ["a"]
    assert made.set_endpoints(by_id(A, at("b", "n1"))) == ["b"]
    assert made.table.of("b") == {"GPUs/node-labels-extractor": 16.0}
    made.set_objects([])
    assert made.set_endpoints(by_id(A, at("b", "n1"))) == ["a", "b"]
    assert made.table.of("a") == {}


def test_the_counts_of_a_source_end_with_its_configuration() -> None:
    counts = EventCounts(PluginFailures(time.monotonic))
    made = Notifications(counts)
    made.use(config())
    made.set_objects([node("n1", "8")])
    assert (counts.events.total(), list(counts.failures.counts())) == (1, ["node-labels-extractor"])
    made.use(None)
    assert (counts.events.total(), list(counts.failures.counts())) == (0, [])


def test_the_extractors_of_another_configuration_begin_with_all_objects() -> None:
    made = served(node("n1", "8"))
    made.set_endpoints(
        by_id(
            A,
        )
    )
    made.use(config())
    assert (
        made.set_endpoints(
            by_id(
                A,
            )
        )
        == []
    ), "it does the same"
    made.use(config("Cards"))
    assert made.set_endpoints(
        by_id(
            A,
        )
    ) == ["a"]
    assert made.table.of("a") == {"Cards/node-labels-extractor": 8.0}
    assert denied(made) == {"GPUs/node-labels-extractor"}
    made.use(None)
    assert made.set_endpoints(
        by_id(
            A,
        )
    ) == ["a"]
    assert (made.table.of("a"), made.kinds) == ({}, {})
    assert denied(made) == {"Cards/node-labels-extractor"}, "pickers forget it, and what was before is forgotten"


def denied(made: Notifications) -> set[str]:
    attributes = made.table.described(1.0)["a"].attributes
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
    assert [(log["event"], log["problems"]) for log in logs] == [("notifications.refused", ["KeyError: 'gpu'"])]
    made.set_endpoints(
        by_id(
            A,
        )
    )
    assert made.table.of("a") == {"GPUs/node-labels-extractor": 8.0}


def test_an_extractor_that_fails_to_tell_of_itself_costs_no_debug_page(monkeypatch: pytest.MonkeyPatch) -> None:
    made = made_anew()
    made.use(odd(monkeypatch, "describe"))
    state = made.state()
    assert state["extractors"] == {"odd-extractor": {"error": "KeyError: 'gpu'"}}
