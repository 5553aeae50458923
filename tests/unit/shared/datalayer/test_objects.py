import time
from typing import Any

import pytest

from shared.datalayer.events import Change, EventCounts
from shared.datalayer.objects import (
    NODE,
    KubernetesObject,
    NotificationEvent,
    NotificationExtractor,
    NotificationSource,
    ObjectDispatcher,
    ObjectExtractors,
    ObjectKind,
)
from shared.datalayer.wiring import SourceExtractors
from shared.plugin_failures import PluginFailures

POD = ObjectKind("", "v1", "Pod")


class Source(NotificationSource):
    TYPE = "source"

    def __init__(self, kind: ObjectKind) -> None:
        super().__init__(str(kind))
        self._kind = kind

    @property
    def kind(self) -> ObjectKind:
        return self._kind


class Listener(NotificationExtractor):
    """Keeps what it hears; says whether endpoints are concerned."""

    TYPE = "listener"

    def __init__(self, name: str = "listener", says: bool = True) -> None:
        super().__init__(name)
        self.says = says
        self.heard: list[NotificationEvent] = []

    def on_object(self, event: NotificationEvent) -> bool:
        self.heard.append(event)
        return self.says

    @property
    def told(self) -> list[tuple[str, str]]:
        return [(event.change.value, event.object.name) for event in self.heard]


class Broken(Listener):
    def on_object(self, event: NotificationEvent) -> bool:
        raise KeyError("status")


def node(name: str, **labels: Any) -> KubernetesObject:
    return KubernetesObject(NODE, name, {"metadata": {"name": name, "labels": labels}})


def dispatcher(*extractors: Listener, kind: ObjectKind = NODE) -> ObjectDispatcher:
    return ObjectDispatcher([SourceExtractors(Source(kind), extractors)], EventCounts(PluginFailures(time.monotonic)))


@pytest.mark.parametrize(
    ("api_version", "kind", "expected"),
    [
        ("v1", "Node", NODE),
        ("apps/v1", "Deployment", ObjectKind("apps", "v1", "Deployment")),
        (
            "inference.networking.k8s.io/v1",
            "InferencePool",
            ObjectKind("inference.networking.k8s.io", "v1", "InferencePool"),
        ),
    ],
)
def test_a_kind_is_read_and_written_as_objects_have_it(api_version: str, kind: str, expected: ObjectKind) -> None:
    assert ObjectKind.of(api_version, kind) == expected
    assert expected.api_version == api_version
    assert str(expected) == f"{api_version} {kind}"


def test_objects_come_change_and_go_with_what_they_were() -> None:
    listener = Listener()
    events = dispatcher(listener)
    first, second = node("n1", gpus="4"), node("n1", gpus="8")
    events.reset([first])
    events.reset([second])
    events.reset([])
    assert listener.heard == [
        NotificationEvent(Change.ADDED, first),
        NotificationEvent(Change.UPDATED, second, previous=first),
        NotificationEvent(Change.DELETED, second),
    ]


def test_what_isnt_in_a_reset_is_told_as_deleted_and_what_didnt_change_isnt_told() -> None:
    listener = Listener()
    events = dispatcher(listener)
    events.reset([node("n1"), node("n2")])
    listener.heard.clear()
    assert events.reset([node("n2"), node("n3")])
    assert listener.told == [("deleted", "n1"), ("added", "n3")]
    assert not events.reset([node("n2"), node("n3")])


def test_an_extractor_hears_of_its_sources_kind_only() -> None:
    """Two objects of one name in two namespaces are two."""
    nodes, pods, both = Listener("nodes"), Listener("pods"), Listener("more nodes")
    events = ObjectDispatcher(
        [SourceExtractors(Source(NODE), (nodes, both)), SourceExtractors(Source(POD), (pods,))],
        EventCounts(PluginFailures(time.monotonic)),
    )
    here, there = KubernetesObject(POD, "p", {}, "a"), KubernetesObject(POD, "p", {}, "b")
    events.reset([node("n1"), here, there, KubernetesObject(ObjectKind("", "v1", "Secret"), "s", {})])
    events.reset([node("n1"), there])
    assert nodes.told == both.told == [("added", "n1")]
    assert pods.told == [("added", "p"), ("added", "p"), ("deleted", "p")]
    assert events.kinds == {NODE, POD}
    assert [(dispatched["kind"], dispatched["objects"]) for dispatched in events.describe()] == [
        ("v1 Node", 1),
        ("v1 Pod", 1),
    ]


@pytest.mark.parametrize(
    ("reads", "parts"),
    [
        ([{"metadata"}], {"metadata"}),
        ([{"metadata"}, {"spec", "metadata"}], {"metadata", "spec"}),
        ([{"metadata"}, None], None),
        ([None, {"metadata"}], None),
        ([], None),
    ],
    ids=["metadata", "of two", "of one that says nothing", "of another that says nothing", "of nobody"],
)
def test_of_a_kind_is_wanted_what_any_of_its_extractors_reads_and_all_where_one_does_not_say(
    reads: list[set[str] | None], parts: set[str] | None
) -> None:
    def listener(names: set[str] | None) -> Listener:
        made = Listener(str(names))
        made.READS = None if names is None else frozenset(names)  # type: ignore[misc]
        return made

    feeds: list[ObjectExtractors] = [
        SourceExtractors(Source(NODE), tuple(map(listener, reads))),
        SourceExtractors(Source(POD), (listener(None),)),
    ]
    assert ObjectDispatcher(feeds, EventCounts(PluginFailures(time.monotonic))).parts == {NODE: parts, POD: None}


def test_extractors_say_whether_endpoints_are_concerned() -> None:
    assert not dispatcher(Listener(says=False)).reset([node("n1")])
    assert dispatcher(Listener("a", says=False), Listener("b", says=True)).reset([node("n1")])


def test_a_failing_extractor_stops_no_other() -> None:
    before, after = Listener("before", says=False), Listener("after", says=False)
    event_counts = EventCounts(PluginFailures(time.monotonic))
    feeds: list[ObjectExtractors] = [SourceExtractors(Source(NODE), (before, Broken("broken"), after))]
    event_counts.follow("pool", feeds)
    events = ObjectDispatcher(feeds, event_counts)
    assert events.reset([node("n1"), node("n2")]), "what the broken one says may have changed"
    assert before.told == after.told == [("added", "n1"), ("added", "n2")]
    assert event_counts.failures.counts() == {"before": 0, "broken": 2, "after": 0}
    assert event_counts.events == {("v1 Node", Change.ADDED): 2}
