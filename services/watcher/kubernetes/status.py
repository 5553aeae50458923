"""The condition `Accepted` in the status of what refers to a pool: what is there, and what is to be applied. Pure.

InferenceObjective, InferenceModelRewrite and InferenceModel have a list of conditions by type, of which the API server
lets each writer own some: ours is applied by server-side apply, without force. An InferencePool has none for an
endpoint picker: its conditions are those of its parents, the Gateways, in a list that belongs to one writer as a whole
(`x-kubernetes-list-type: atomic`). To write there would be to pretend to be a Gateway, or to take the list from one.
"""

from collections.abc import Mapping
from typing import Any

from services.watcher.kubernetes.resource import JsonObject, Resource, tidy
from services.watcher.kubernetes.verdicts import ACCEPTED, Condition

FIELD_MANAGER = "pointsman-watcher"
"""Whose fields those are that are applied."""
KINDS = frozenset({"InferenceObjective", "InferenceModelRewrite", "InferenceModel"})
SUBRESOURCE = "status"
LONGEST_MESSAGE = 4096
"""Characters; the API takes 32 768."""


def arrive(item: JsonObject, resource: Resource) -> JsonObject:
    """What is kept of a resource: of `managedFields` only whether some of its status is ours."""
    managers = item["metadata"].get("managedFields") or ()
    ours = any(one.get("manager") == FIELD_MANAGER and one.get("subresource") == SUBRESOURCE for one in managers)
    item = tidy(item, resource)
    if ours:
        item["metadata"]["managedFields"] = [{"manager": FIELD_MANAGER, "subresource": SUBRESOURCE}]
    return item


def takes_conditions(resource: Resource) -> bool:
    """Whether the API has a place for the condition, as it is installed."""
    return resource.kind.kind in KINDS and SUBRESOURCE in resource.subresources


def accepted_of(item: JsonObject) -> Mapping[str, Any] | None:
    """The condition as it is there, whoever wrote it."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one.get("type") == ACCEPTED), None)


def body_of(item: JsonObject, condition: Condition | None, now: str) -> JsonObject | None:
    """What is to be applied, so that the condition is there; None where nothing is to be changed.

    Without a condition: that ours is taken back, if nobody has said anything since the resource was changed. `now` is
    the time in RFC 3339; the condition has the time at which its status became what it is.
    """
    there = accepted_of(item)
    if condition is None:
        return _body(item, []) if there is not None and _is_ours(item) and _is_outdated(item, there) else None
    wanted: dict[str, Any] = {
        "type": ACCEPTED,
        "status": str(condition.accepted),
        "reason": condition.reason,
        "message": _short(condition.message),
    }
    if generation := item["metadata"].get("generation"):
        wanted["observedGeneration"] = generation
    if there is not None and {**there, "lastTransitionTime": None} == {**wanted, "lastTransitionTime": None}:
        return None
    since = there.get("lastTransitionTime") if there and there.get("status") == wanted["status"] else None
    return _body(item, [{**wanted, "lastTransitionTime": since or now}])


def _body(item: JsonObject, conditions: list[JsonObject]) -> JsonObject:
    metadata = {name: item["metadata"][name] for name in ("name", "namespace", "uid") if name in item["metadata"]}
    return {
        "apiVersion": item["apiVersion"],
        "kind": item["kind"],
        "metadata": metadata,
        "status": {"conditions": conditions},
    }


def _is_ours(item: JsonObject) -> bool:
    return bool(item["metadata"].get("managedFields"))


def _is_outdated(item: JsonObject, there: Mapping[str, Any]) -> bool:
    """Whether the condition is of an earlier form of the resource. Who serves it now may have written a newer one, with
    the same program and the same name."""
    return bool((there.get("observedGeneration") or 0) < (item["metadata"].get("generation") or 0))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[: LONGEST_MESSAGE - 1]}…"
