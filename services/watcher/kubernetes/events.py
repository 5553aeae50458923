"""Findings as Kubernetes Events (events.k8s.io/v1). Pure.

An Event's name follows from its content: each resource, generation and finding has one, whoever creates it and however
often. So nothing has to be remembered or read: an Event that exists was created before.
"""

import hashlib

from services.watcher.kubernetes.reports import Finding
from services.watcher.kubernetes.resource import JsonObject, Resource, identity
from shared.datalayer.objects import ObjectKind

EVENTS = Resource(ObjectKind("events.k8s.io", "v1", "Event"), "events", True)
"""Every API server has them."""
CONTROLLER = "pointsman-watcher"
MAX_NOTE = 1024
"""Bytes; the API's limit."""
MAX_NAME = 200
"""Characters of a resource's name in the name of its Event, which has at most 253."""


def event_name(item: JsonObject, finding: Finding) -> str:
    """The same for the same finding on the same generation of an object."""
    metadata = item["metadata"]
    parts = (
        *(item["apiVersion"], item["kind"], *identity(item), str(metadata.get("uid") or "")),
        *(str(metadata.get("generation") or 0), finding.reason, finding.text),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return f"{metadata['name'][:MAX_NAME].rstrip('-.')}.{digest}"


def event_of(item: JsonObject, finding: Finding, instance: str, now: str) -> JsonObject:
    """The Event to create. `instance` is the reporting process, `now` the time in RFC 3339 with microseconds."""
    metadata = item["metadata"]
    namespace = metadata.get("namespace") or "default"
    regarding = {"apiVersion": item["apiVersion"], "kind": item["kind"], "namespace": namespace}
    return {
        "apiVersion": EVENTS.kind.api_version,
        "kind": EVENTS.kind.kind,
        "metadata": {"name": event_name(item, finding), "namespace": namespace},
        "type": "Warning",
        "reason": finding.reason,
        "note": _shorten(finding.note),
        "action": "Read",
        "regarding": {**regarding, "name": metadata["name"], "uid": str(metadata.get("uid") or "")},
        "reportingController": CONTROLLER,
        "reportingInstance": instance[:128],
        "eventTime": now,
    }


def _shorten(text: str) -> str:
    data, mark = text.encode(), "…"
    if len(data) <= MAX_NOTE:
        return text
    return data[: MAX_NOTE - len(mark.encode())].decode(errors="ignore") + mark
