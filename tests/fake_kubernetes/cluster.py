"""A model of what an API server keeps: objects of one resource, their history, and lists cut into pages."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from services.watcher.kubernetes.client import Page
from services.watcher.kubernetes.errors import Expired
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection
from shared.datalayer.objects import ObjectKind

PODS = Resource(ObjectKind("", "v1", "Pod"), "pods", True, frozenset({"list", "watch"}))
Name: TypeAlias = tuple[str, str]
"""Namespace and name."""


def name_of(item: JsonObject) -> Name:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def line(kind: str, item: Mapping[str, Any]) -> bytes:
    """A watch event as the API server writes it."""
    return msgspec.json.encode({"type": kind, "object": item}) + b"\n"


def bookmark(version: str) -> bytes:
    return line("BOOKMARK", {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": version}})


def status(code: int, reason: str, message: str = "", **details: Any) -> dict[str, Any]:
    """A Status object."""
    made: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return {**made, "message": message or reason, **({"details": details} if details else {})}


def selects(selection: Selection, item: JsonObject | None) -> bool:
    """Only `name=value` selectors are understood."""
    if item is None or (selection.namespace and item["metadata"]["namespace"] != selection.namespace):
        return False
    labels = item["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, _, value in (term.partition("=") for term in _terms(selection.labels)))


def _terms(selector: str) -> list[str]:
    return [term for term in selector.split(",") if term]


class Cluster:
    """Objects, and every state that they ever had."""

    def __init__(self, resource: Resource = PODS) -> None:
        self.resource = resource
        self.version = 100
        self.compacted = 0
        """Watches from before this version are too late."""
        self.states: dict[int, dict[Name, JsonObject]] = {self.version: {}}
        """All objects, at each version."""
        self._changes: list[tuple[int, JsonObject | None, JsonObject | None]] = []
        self._pages_valid_from = 0
        self.on_change: list[Callable[[], None]] = []

    @property
    def objects(self) -> dict[Name, JsonObject]:
        return self.states[self.version]

    def put(self, name: str, namespace: str = "default", labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create or replace an object."""
        item = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "labels": dict(labels or {}),
                "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:metadata": {}}}],
            },
            "spec": spec,
        }
        self._advance((namespace, name), item)

    def delete(self, name: str, namespace: str = "default") -> None:
        """Delete an object that there is."""
        assert (namespace, name) in self.objects
        self._advance((namespace, name), None)

    def compact(self) -> None:
        """Forget the history, as etcd does: watches from earlier versions and next pages of earlier lists are 410."""
        self.compacted = self.version
        self._pages_valid_from = self.version + 1

    def skip(self, versions: int = 1) -> None:
        """Other resources change."""
        for _ in range(versions):
            self.states[self.version + 1] = self.objects
            self.version += 1

    def selected(self, selection: Selection, version: int | None = None) -> dict[Name, JsonObject]:
        """What a list of the selection has, at a version."""
        state = self.states[self.version if version is None else version]
        return {key: item for key, item in sorted(state.items()) if selects(selection, item)}

    def page(self, selection: Selection, limit: int | None, after: str = "") -> Page:
        """A page of a list. Raises Expired for a next page from before the last compaction."""
        version, start = self.version, 0
        if after:
            version, start = map(int, after.split("@"))
            if version < self._pages_valid_from:
                raise Expired(f"list {selection}", 410, "Expired", "The provided continue parameter is too old")
        items = list(copy.deepcopy(self.selected(selection, version)).values())
        end = len(items) if limit is None else start + limit
        return Page(items[start:end], str(version), f"{version}@{end}" if end < len(items) else "")

    def since(self, selection: Selection, version: str) -> list[tuple[int, bytes]]:
        """Events after a version, as lines. Raises Expired."""
        if int(version) < self.compacted:
            message = f"too old resource version: {version} ({self.compacted})"
            raise Expired(f"watch {selection}", 410, "Expired", message)
        lines = []
        for at, before, after in self._changes:
            if at <= int(version):
                continue
            was, is_ = selects(selection, before), selects(selection, after)
            if is_ and after is not None:
                lines.append((at, line("MODIFIED" if was else "ADDED", after)))
            elif was and before is not None:
                gone = copy.deepcopy(before)
                gone["metadata"]["resourceVersion"] = str(at)
                lines.append((at, line("DELETED", gone)))
        return lines

    def _advance(self, key: Name, item: JsonObject | None) -> None:
        before = self.objects.get(key)
        self.version += 1
        state = dict(self.states[self.version - 1])
        if item is None:
            state.pop(key)
        else:
            item["metadata"]["resourceVersion"] = str(self.version)
            item |= {"apiVersion": self.resource.kind.api_version, "kind": self.resource.kind.kind}
            state[key] = item
        self.states[self.version] = state
        self._changes.append((self.version, before, item))
        for call in self.on_change:
            call()
