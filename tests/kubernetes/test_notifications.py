"""`k8s-notification-source` against the real API server: objects with and without a namespace, and kinds that come and
go with their definitions."""

from typing import Any

import pytest

from services.watcher.app import WatcherService
from shared.datalayer.events import Change
from shared.datalayer.objects import NotificationEvent, NotificationExtractor
from shared.plugin import Registry
from tests.kubernetes.api import Object
from tests.kubernetes.pods import NODE
from tests.kubernetes.watching import Site, config_map
from tests.waiting import eventually

GROUP = "notifications.tests.example"
WIDGET = (f"{GROUP}/v1", "Widget")
DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"widgets.{GROUP}"},
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "Widget", "plural": "widgets", "singular": "widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
NODES_AND_MORE = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: k8s-notification-source
  name: services
  parameters: {{version: v1, kind: Service}}
- type: k8s-notification-source
  name: widgets
  parameters: {{group: {GROUP}, version: v1, kind: Widget}}
- type: labels-listener
- type: listener
- type: node-labels-extractor
  parameters:
    attributes: [{{label: nvidia.com/gpu.memory, attributeKey: GPUMemory}}]
dataLayer:
  sources:
  - pluginRef: services
    extractors: [{{pluginRef: labels-listener}}]
  - pluginRef: widgets
    extractors: [{{pluginRef: listener}}]
"""


class Listener(NotificationExtractor):
    """Knows what fields the objects that are there have."""

    TYPE = "listener"

    def __init__(self, name: str, parameters: object = None) -> None:
        super().__init__(name, parameters)
        self._fields: dict[str, list[str]] = {}

    def on_object(self, event: NotificationEvent) -> bool:
        if event.change is Change.DELETED:
            del self._fields[event.object.name]
        else:
            self._fields[event.object.name] = sorted(event.object.content)
        return False

    def describe(self) -> dict[str, Any]:
        return dict(self._fields)


class LabelsListener(Listener):
    """Reads nothing but metadata."""

    TYPE = "labels-listener"
    READS = frozenset({"metadata"})


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    types = Registry([*Registry.installed(), Listener, LabelsListener])
    monkeypatch.setattr("services.watcher.kubernetes.origin.installed", lambda: types)


def told(service: WatcherService, extractor: str) -> dict[str, list[str]]:
    """The fields of the objects that it was told of, by their names."""
    found: dict[str, list[str]] = service.state()["notifications"]["extractors"].get(extractor, {})
    return found


def feed(service: WatcherService, kind: str) -> dict[str, Any]:
    """How well the watch of a kind goes."""
    (found,) = [one for one in service.state()["kubernetes"]["feeds"] if one["selection"].startswith(f"{kind} ")]
    return dict(found)


async def test_objects_of_any_kind_are_told_of_also_of_one_that_is_installed_later(site: Site) -> None:
    missing = f"{GROUP}/v1 Widget isn't installed, and a source of the configuration names it"
    admin, namespace, elsewhere = site.admin, site.namespace, await site.admin.create_namespace()
    await site.serve("a")
    await site.create(config_map("picker", NODES_AND_MORE))
    labels = {"nvidia.com/gpu.memory": "80"}
    await admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})
    async with site.watching(config_map=f"{namespace}/picker") as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await eventually(lambda: missing in service.readiness.notes().get("kubernetes", ""), "the note")
        await eventually(lambda: service.readiness.ready, "ready: endpoints don't wait for it")
        assert (feed(service, "Widget")["served"], feed(service, "Widget")["problem"]) == (None, missing)
        for name, place in (("here", namespace), ("there", elsewhere)):
            spec = {"clusterIP": "None", "ports": [{"port": 80}]}
            document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
            await admin.create(document, place)
        alone = {"here": ["apiVersion", "kind", "metadata"]}
        await eventually(lambda: told(service, "labels-listener") == alone, "the metadata of this namespace's Service")
        await eventually(lambda: "GPUMemory" in str(service.state()["endpoints"]), "what the node's label says")
        await admin.apply(DEFINITION)
        await eventually(lambda: feed(service, "Widget")["known"], "the definition")
        await eventually(lambda: "kubernetes" not in service.readiness.notes(), "no note")
        for name, place in (("here", namespace), ("there", elsewhere)):
            widget: Object = {"apiVersion": WIDGET[0], "kind": WIDGET[1], "metadata": {"name": name}, "size": 1}
            await admin.create(widget, place, strict=False)
        whole = {"here": ["apiVersion", "kind", "metadata", "size"]}
        await eventually(lambda: told(service, "listener") == whole, "this namespace's widget")
        await admin.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"widgets.{GROUP}", "")
        await eventually(lambda: told(service, "listener") == {}, "the widgets to go with their definition")
        await eventually(lambda: missing in service.readiness.notes().get("kubernetes", ""), "the note again")
        assert seen.endpoints == ["a-rank-0"]
