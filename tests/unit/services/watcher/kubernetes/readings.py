"""What the tests of reports and of what becomes of them share: resources as a source reads them."""

from typing import Any

from services.watcher.documents import Documents
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.reports import POOL, PoolView, ResourceResult
from services.watcher.kubernetes.resource import JsonObject, Resource
from services.watcher.resources import PoolId
from services.watcher.sources import Rejected, Reset
from shared.config.problems import Problem
from shared.datalayer.objects import ObjectKind

STABLE, EXPERIMENTAL = "inference.networking.k8s.io", "inference.networking.x-k8s.io"
LLAMA = PoolId("default", "llama")


def resource_of(kind: str, group: str = EXPERIMENTAL, version: str = "v1alpha2") -> Resource:
    return Resource(
        ObjectKind(group, version, kind), f"{kind.lower()}s", True, frozenset({"patch"}), frozenset({"status"})
    )


def item_of(kind: str, name: str, spec: dict[str, Any], group: str = EXPERIMENTAL, **metadata: Any) -> JsonObject:
    version = "v1" if group == STABLE else "v1alpha2"
    common = {"name": name, "namespace": "default", "uid": f"uid of {name}", "generation": 1}
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": {**common, **metadata}, "spec": spec}


def reading(
    item: JsonObject, pool: PoolId = LLAMA, shadowed_by: str = "", last_valid: JsonObject | None = None
) -> ResourceResult:
    """As the source of that pool reads it, which has read the last good one before."""
    group, _, version = item["apiVersion"].partition("/")
    outcome = read_item(item, item["kind"], "origin", pool)
    before = None if last_valid is None else read_item(last_valid, item["kind"], "origin", pool)
    good = before if isinstance(before, Reset) else None
    return ResourceResult(resource_of(item["kind"], group, version), item, outcome, shadowed_by, good)


def objective(name: str = "premium", pool: str = "llama", *, priority: object = 1, **metadata: Any) -> JsonObject:
    return item_of("InferenceObjective", name, {"poolRef": {"name": pool}, "priority": priority}, **metadata)


def model(name: str, model_name: str, created: str) -> JsonObject:
    spec = {"poolRef": {"name": "llama"}, "modelName": model_name}
    return item_of("InferenceModel", name, spec, creationTimestamp=created)


def pool(name: str = "llama", port: int = 8000, created: str = "2026-01-01T00:00:00Z", **labels: str) -> JsonObject:
    spec = {"selector": {"matchLabels": labels}, "targetPorts": [{"number": port}]}
    return item_of(POOL, name, spec, STABLE, creationTimestamp=created)


def pods(*names: str, **labels: str) -> dict[tuple[str, str], JsonObject]:
    """Pods with these labels, as a feed has them."""
    return {("default", name): {"metadata": {"name": name, "labels": labels}} for name in names}


def view(*items: JsonObject, name: str = "llama", **more: Any) -> PoolView:
    """Of a pool that is there."""
    served = PoolId("default", name)
    fields: dict[str, Any] = {"pools": {name}, "selected": pods("a"), **more}
    return PoolView(pool=served, results=[reading(item, served) for item in items], **fields)


def config_map(*problems: Problem) -> ResourceResult:
    resource = Resource(ObjectKind("", "v1", "ConfigMap"), "configmaps", True)
    item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "picker", "namespace": "default"}}
    return ResourceResult(resource, item, Rejected("origin", problems) if problems else Reset("origin", Documents()))
