"""Pods as endpoints: one for each target port of a pod that can take requests. Pure.

A pod can when it is ready, isn't being deleted, and has an address. Its ports are the pool's; the position of a port
among them is the rank, also where an annotation names fewer ports as active.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from msgspec.structs import replace

from services.watcher.kubernetes.resource import JsonObject, Resource, tidy
from services.watcher.kubernetes.settings import IpFamily
from shared.model import Endpoint, Pool

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations that name the ports on which a pod serves, separated by commas; the first one that is there counts."""


def arrive(item: JsonObject, resource: Resource) -> JsonObject:
    """What is kept of a pod: a tenth of what the API server sends."""
    metadata = tidy(item, resource)["metadata"]
    spec, status = item.get("spec") or {}, item.get("status") or {}
    annotations = metadata.get("annotations") or {}
    kept = {name: metadata[name] for name in _METADATA if name in metadata}
    kept["annotations"] = {name: annotations[name] for name in ACTIVE_PORTS if name in annotations}
    conditions = [one for one in status.get("conditions") or () if one.get("type") == "Ready"]
    return {
        "metadata": kept,
        "spec": {"nodeName": spec.get("nodeName")},
        "status": {"conditions": conditions, **{name: status[name] for name in _STATUS if name in status}},
    }


_METADATA = ("name", "namespace", "uid", "labels", "deletionTimestamp", "resourceVersion")
_STATUS = ("phase", "podIP", "podIPs", "hostIP")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether its containers run, its readiness probes succeed, and nobody deletes it."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in status.get("conditions") or ())


def address_of(pod: Mapping[str, Any], family: IpFamily = "any") -> str:
    """Its address: the primary one, or the first of the family; empty while it has none."""
    status = pod.get("status") or {}
    primary = status.get("podIP") or ""
    if family == "any":
        return str(primary)
    version = 4 if family == "IPv4" else 6
    for ip in (primary, *(one.get("ip") or "" for one in status.get("podIPs") or ())):
        if ip and ip_address(ip).version == version:
            return str(ip)
    return ""


def endpoints_of(pod: Mapping[str, Any], pool: Pool, family: IpFamily = "any") -> tuple[Endpoint, ...]:
    """The pod's endpoints by rank; none while it can't take requests."""
    address = address_of(pod, family)
    if not address or not is_ready(pod):
        return ()
    metadata = pod["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace") or "default"
    active = active_ports(metadata.get("annotations") or {})
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    server = Endpoint(
        id="",
        name=name,
        namespace=namespace,
        address=address,
        port=0,
        labels=dict(metadata.get("labels") or {}),
        node=spec.get("nodeName") or "",
        node_address=status.get("hostIP") or "",
        uid=metadata.get("uid") or "",
    )
    return tuple(
        rank_of(server, rank, port) for rank, port in enumerate(pool.target_ports) if active is None or port in active
    )


def rank_of(server: Endpoint, rank: int, port: int) -> Endpoint:
    """The endpoint of a server that is one of its ports."""
    name = f"{server.name}-rank-{rank}"
    return replace(server, id=f"{server.namespace}/{name}", name=name, port=port, rank=rank)


def active_ports(annotations: Mapping[str, str]) -> frozenset[int] | None:
    """The ports that the pod says it serves on; None where it doesn't say. What is no port is passed over."""
    for name in ACTIVE_PORTS:
        if name in annotations:
            texts = (one.strip() for one in annotations[name].split(","))
            return frozenset(int(one) for one in texts if one.isascii() and one.isdigit() and len(one) <= 5)
    return None


def selector_text(labels: Mapping[str, str]) -> str:
    """A selector by equality as the API takes it; empty for one that selects everything."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
