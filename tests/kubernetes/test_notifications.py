"""`k8s-notification-source` against the real API server: of a namespaced kind, with metadata alone."""

from typing import Any

import pytest

from services.watcher.app import WatcherService
from shared.datalayer.events import Change
from shared.datalayer.objects import NotificationEvent, NotificationExtractor
from shared.plugin import Registry
from tests.kubernetes.watching import Site, config_map
from tests.waiting import eventually

SERVICES = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: k8s-notification-source
  parameters: {version: v1, kind: Service}
- type: listener
dataLayer:
  sources:
  - pluginRef: k8s-notification-source
    extractors: [{pluginRef: listener}]
"""


class Listener(NotificationExtractor):
    """Knows what fields the objects that are there have; reads nothing but metadata."""

    TYPE = "listener"
    READS = frozenset({"metadata"})

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


async def test_objects_of_the_pools_namespace_are_told_of_and_nothing_that_nobody_reads(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = Registry([*Registry.installed(), Listener])
    monkeypatch.setattr("services.watcher.kubernetes.origin.installed", lambda: types)
    await site.serve("a")
    await site.create(config_map("picker", SERVICES))
    async with site.watching(config_map=f"{site.namespace}/picker") as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        for name, place in (("there", await site.admin.create_namespace()), ("here", site.namespace)):
            spec = {"clusterIP": "None", "ports": [{"port": 80}]}
            document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
            await site.admin.create(document, place)
        alone = {"here": ["apiVersion", "kind", "metadata"]}
        await eventually(lambda: _told(service) == alone, "the metadata of this namespace's Service")
        await site.delete(("v1", "Service"), "here")
        await eventually(lambda: _told(service) == {}, "its end")


def _told(service: WatcherService) -> object:
    """The fields of the objects that the extractor was told of, by their names."""
    return service.state()["notifications"]["extractors"].get("listener", {})
