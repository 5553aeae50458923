"""Pods and EndpointSlices as endpoints: one for each target port of a server that can take requests. Pure.

A pod can take requests if it is ready, isn't being deleted, and has an address. Its ports are the pool's. A port's
position among them is the rank, even if an annotation lists fewer ports as active.

EndpointSlices are for watchers that may not read pods. They have addresses, readiness, and the names of pods, so their
endpoints have no labels and aren't drained. Ports are the pool's, as for pods; a slice's ports are the Service's own.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from msgspec import convert, to_builtins
from msgspec.structs import replace

from services.watcher.endpoints_file import address_problem
from services.watcher.kubernetes.resource import JsonObject, ObjectId, Resource, tidy
from services.watcher.kubernetes.settings import IpFamily
from shared.model import DRAIN, SHOWN_ADDRESS, Endpoint, Pool, drains, is_ip

ACTIVE_PORTS = ("llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports")
"""Annotations with the ports on which a pod serves, separated by commas. The first one that exists counts."""

MAX_ACTIVE_PORTS = 1000
"""Ports that are read of such an annotation: a pool has a few, and an annotation may have 256 KiB."""

SERVICE_LABEL = "kubernetes.io/service-name"


def strip_pod(item: JsonObject, resource: Resource) -> JsonObject:
    """What is kept of a pod, a tenth of what the API server sends."""
    metadata = tidy(item, resource)["metadata"]
    spec, status = item.get("spec") or {}, item.get("status") or {}
    annotations = metadata.get("annotations") or {}
    kept = {name: metadata[name] for name in _METADATA if name in metadata}
    kept["annotations"] = {name: annotations[name] for name in (*ACTIVE_PORTS, DRAIN) if name in annotations}
    conditions = [found for found in status.get("conditions") or () if found.get("type") in _CONDITIONS]
    return {
        "metadata": kept,
        "spec": {name: spec[name] for name in _SPEC if name in spec},
        "status": {"conditions": conditions, **{name: status[name] for name in _STATUS if name in status}},
    }


_METADATA = ("name", "namespace", "uid", "labels", "deletionTimestamp", "resourceVersion")
_SPEC = ("nodeName", "readinessGates")
_STATUS = ("phase", "podIP", "podIPs", "hostIP")
_CONDITIONS = ("Ready", "ContainersReady")


def is_ready(pod: Mapping[str, Any]) -> bool:
    """Whether the pod runs, its readiness probes succeed, and it isn't being deleted."""
    return _has(pod, "Ready")


def is_unreachable(pod: Mapping[str, Any]) -> bool:
    """Whether Kubernetes has lost contact with the node of a pod that was ready: the node controller then withdraws
    `Ready` alone, whereas a kubelet whose probes fail withdraws `ContainersReady`, too. A pod with readiness gates may
    have lost `Ready` by one of these."""
    gates = (pod.get("spec") or {}).get("readinessGates")
    return not gates and _has(pod, "ContainersReady") and not _has(pod, "Ready")


def _has(pod: Mapping[str, Any], condition: str) -> bool:
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    conditions = status.get("conditions") or ()
    return any(found.get("type") == condition and found.get("status") == "True" for found in conditions)


def address_of(pod: Mapping[str, Any], family: IpFamily = "any") -> str:
    """The pod's primary address, or the first of the family; empty if it has none."""
    status = pod.get("status") or {}
    primary = status.get("podIP") or ""
    if family == "any":
        return str(primary)
    version = 4 if family == "IPv4" else 6
    for ip in (primary, *(ip.get("ip") or "" for ip in status.get("podIPs") or ())):
        if ip and ip_address(ip).version == version:
            return str(ip)
    return ""


def endpoints_of(
    pod: Mapping[str, Any], pool: Pool, family: IpFamily = "any", serves: Callable[[Mapping[str, Any]], bool] = is_ready
) -> tuple[Endpoint, ...]:
    """The pod's endpoints by rank; none if it can't take requests. Raises any exception if the pod is malformed."""
    address = address_of(pod, family)
    if not address or not serves(pod):
        return ()
    metadata = pod["metadata"]
    name, namespace = metadata["name"], metadata.get("namespace") or "default"
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    active = active_ports(annotations)
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    server = _checked(
        Endpoint(
            id="",
            name=name,
            namespace=namespace,
            address=address,
            port=0,
            labels=dict(labels),
            node=spec.get("nodeName") or "",
            node_address=status.get("hostIP") or "",
            uid=metadata.get("uid") or "",
            draining=drains(annotations) or drains(labels),
        )
    )
    return tuple(
        rank_of(server, rank, port) for rank, port in enumerate(pool.target_ports) if active is None or port in active
    )


def _checked(server: Endpoint) -> Endpoint:
    """The server. Raises ValueError if a field has another type than a reader of the fact expects, or if no server can
    have the address: Envoy refuses the whole file that has one such as `fe80::1%eth0`."""
    convert(to_builtins(server), Endpoint)
    address = server.address
    if reason := address_problem(ip_address(address)) if is_ip(address) else "isn't an IP address":
        raise ValueError(f"{address[:SHOWN_ADDRESS]!r} {reason}")
    return server


def rank_of(server: Endpoint, rank: int, port: int) -> Endpoint:
    """The endpoint of one port of a server."""
    name = f"{server.name}-rank-{rank}"
    return replace(server, id=f"{server.namespace}/{name}", name=name, port=port, rank=rank)


def active_ports(annotations: Mapping[str, str]) -> frozenset[int] | None:
    """The ports on which the pod says that it serves; None if it doesn't say. Invalid ports are ignored, and
    those beyond `MAX_ACTIVE_PORTS`."""
    for name in ACTIVE_PORTS:
        if name in annotations:
            texts = (text.strip() for text in annotations[name].split(",", MAX_ACTIVE_PORTS)[:MAX_ACTIVE_PORTS])
            return frozenset(int(text) for text in texts if text.isascii() and text.isdigit() and len(text) <= 5)
    return None


def selector_text(labels: Mapping[str, str]) -> str:
    """An equality-based selector in the API's syntax; empty if it selects everything."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def endpoints_of_slice(item: Mapping[str, Any], pool: Pool, family: IpFamily = "any") -> tuple[Endpoint, ...]:
    """The slice's endpoints that can take requests; none if it has another address family, or host names. Raises any
    exception if the slice is malformed."""
    kind = item.get("addressType")
    if kind not in ("IPv4", "IPv6") or family not in ("any", kind):
        return ()
    namespace = item["metadata"].get("namespace") or "default"
    found: list[Endpoint] = []
    for entry in item.get("endpoints") or ():
        conditions = entry.get("conditions") or {}
        # an unset condition means ready, or not terminating (EndpointSlice API)
        if conditions.get("ready") is False or conditions.get("terminating") or not entry.get("addresses"):
            continue
        address = entry["addresses"][0]
        target = entry.get("targetRef") or {}
        pod = target.get("name") if target.get("kind") == "Pod" else None  # the name is optional
        server = _checked(
            Endpoint(
                id="",
                name=pod or address,
                namespace=namespace,
                address=address,
                port=0,
                node=entry.get("nodeName") or "",
                uid=target.get("uid") or "",
            )
        )
        found += [rank_of(server, rank, port) for rank, port in enumerate(pool.target_ports)]
    return tuple(found)


class EndpointIndex:
    """The endpoints of all pods or EndpointSlices. Unreachable ones count while there are no others."""

    def __init__(self) -> None:
        self._ready, self._unreachable = _EndpointsByObject(), _EndpointsByObject()

    @property
    def unreachable(self) -> bool:
        """Whether the endpoints are unreachable ones."""
        return not self._ready.ids and bool(self._unreachable.ids)

    @property
    def _active(self) -> "_EndpointsByObject":
        return self._unreachable if self.unreachable else self._ready

    def set(self, id: ObjectId, ready: tuple[Endpoint, ...], unreachable: tuple[Endpoint, ...] = ()) -> set[str]:
        """Set an object's endpoints. Returns the ids of endpoints that may have changed, unless `unreachable` has: then
        all may have."""
        return self._ready.set(id, ready) | self._unreachable.set(id, unreachable)

    def get(self, id: str) -> Endpoint | None:
        """Of several addresses the IPv4 one, then the smallest."""
        return self._active.get(id)

    def all(self) -> Iterator[Endpoint]:
        """The endpoints, while nothing is set."""
        return (endpoint for id in self._active.ids if (endpoint := self.get(id)) is not None)


class _EndpointsByObject:
    """Endpoints, and by which objects each is stated: a server that moves from one slice to another is in both, and so
    is one with two address families."""

    def __init__(self) -> None:
        self._by_object: dict[ObjectId, tuple[Endpoint, ...]] = {}
        self._stated: dict[str, dict[ObjectId, Endpoint]] = {}

    @property
    def ids(self) -> Collection[str]:
        return self._stated.keys()

    def set(self, id: ObjectId, endpoints: tuple[Endpoint, ...]) -> set[str]:
        before = self._by_object.pop(id, ())
        for endpoint in before:
            self._stated[endpoint.id].pop(id, None)
        for endpoint in endpoints:
            self._stated.setdefault(endpoint.id, {})[id] = endpoint
        if endpoints:
            self._by_object[id] = endpoints
        changed = {endpoint.id for endpoint in (*before, *endpoints)}
        for endpoint_id in changed:
            if not self._stated[endpoint_id]:
                del self._stated[endpoint_id]
        return changed

    def get(self, id: str) -> Endpoint | None:
        stated = self._stated.get(id)
        if stated is None:
            return None
        if len(stated) == 1:  # nearly always
            return next(iter(stated.values()))
        return min(stated.values(), key=lambda endpoint: (":" in endpoint.address, endpoint.address))
