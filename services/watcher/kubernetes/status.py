"""The condition `Accepted` in the status of resources that refer to a pool: what is there, what to apply. Pure.

InferenceObjective, InferenceModelRewrite and InferenceModel have a list of conditions by type, in which each writer
owns some: ours is applied by server-side apply, without force. An InferencePool has none for an endpoint picker. Its
conditions are those of its parents, the Gateways, in a list that one writer owns as a whole
(`x-kubernetes-list-type: atomic`). Writing there would mean to pose as a Gateway, or to take the list from one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from services.watcher.kubernetes.reports import ACCEPTED, Condition
from services.watcher.kubernetes.resource import JsonObject, Resource, tidy

FIELD_MANAGER = "pointsman-watcher"
"""Owns the fields that are applied."""
KINDS = frozenset({"InferenceObjective", "InferenceModelRewrite", "InferenceModel"})
SUBRESOURCE = "status"
MAX_MESSAGE = 4096
"""Characters; the API takes 32 768."""


def strip(item: JsonObject, resource: Resource) -> JsonObject:
    """What is kept of a resource. Of `managedFields`, only whether we own a part of its status."""
    managers = _mappings(item["metadata"].get("managedFields"))
    ours = any(field.get("manager") == FIELD_MANAGER and field.get("subresource") == SUBRESOURCE for field in managers)
    item = tidy(item, resource)
    if ours:
        item["metadata"]["managedFields"] = [{"manager": FIELD_MANAGER, "subresource": SUBRESOURCE}]
    return item


def takes_conditions(resource: Resource) -> bool:
    """Whether the installed API has a place for the condition."""
    return resource.kind.kind in KINDS and SUBRESOURCE in resource.subresources


def accepted_of(item: JsonObject) -> Mapping[str, Any] | None:
    """The existing condition, whoever wrote it."""
    status = item.get("status")
    conditions = _mappings(status.get("conditions")) if isinstance(status, Mapping) else ()
    return next((condition for condition in conditions if condition.get("type") == ACCEPTED), None)


def _mappings(found: object) -> Sequence[Mapping[str, Any]]:
    """Those of a list. Nothing else has checked it."""
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else ()


def body_of(item: JsonObject, condition: Condition | None, now: str) -> JsonObject | None:
    """The body to apply, so that the condition is there; None if nothing has to change.

    Without a condition, ours is withdrawn if nobody has written one since the resource changed. `now` is the time in
    RFC 3339. `lastTransitionTime` is when the condition's status last changed.
    """
    existing = accepted_of(item)
    if condition is None:
        ours = bool(item["metadata"].get("managedFields"))
        return _body(item, []) if existing is not None and ours and _is_outdated(item, existing) else None
    message = condition.message
    wanted: dict[str, Any] = {
        "type": ACCEPTED,
        "status": str(condition.accepted),
        "reason": condition.reason,
        "message": message if len(message) <= MAX_MESSAGE else f"{message[: MAX_MESSAGE - 1]}…",
    }
    if generation := _generation(item["metadata"].get("generation")):
        wanted["observedGeneration"] = generation
    if existing is not None and {**existing, "lastTransitionTime": None} == {**wanted, "lastTransitionTime": None}:
        return None
    since = existing.get("lastTransitionTime") if existing and existing.get("status") == wanted["status"] else None
    return _body(item, [{**wanted, "lastTransitionTime": since if since and isinstance(since, str) else now}])


def _body(item: JsonObject, conditions: list[JsonObject]) -> JsonObject:
    metadata = {name: item["metadata"][name] for name in ("name", "namespace", "uid") if name in item["metadata"]}
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": metadata,
        "status": {"conditions": conditions},
    }


def _is_outdated(item: JsonObject, condition: Mapping[str, Any]) -> bool:
    """Whether the condition is about an earlier generation. Another watcher, with the same field manager, may have
    written a newer one."""
    return _generation(condition.get("observedGeneration")) < _generation(item["metadata"].get("generation"))


def _generation(found: object) -> int:
    return found if isinstance(found, int) else 0
