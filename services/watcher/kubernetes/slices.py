"""The EndpointSlices of a Service as endpoints, for watchers that may not read pods. Pure.

A slice knows addresses and readiness, and of a pod only its name: endpoints have no labels then. Ports are the pool's,
as they are where pods are read; those of the slice are the Service's own.
"""

from collections.abc import Mapping
from typing import Any

from services.watcher.kubernetes.pods import rank_of
from services.watcher.kubernetes.settings import IpFamily
from shared.model import Endpoint, Pool

SERVICE_LABEL = "kubernetes.io/service-name"


def endpoints_of_slice(item: Mapping[str, Any], pool: Pool, family: IpFamily = "any") -> tuple[Endpoint, ...]:
    """Those of a slice that can take requests. A slice of the other address family, or of host names, has none."""
    kind = item.get("addressType")
    if kind not in ("IPv4", "IPv6") or family not in ("any", kind):
        return ()
    namespace = item["metadata"].get("namespace") or "default"
    found: list[Endpoint] = []
    for one in item.get("endpoints") or ():
        conditions = one.get("conditions") or {}
        # a condition that isn't told is one that holds, or of `terminating` one that doesn't (EndpointSlice API)
        if conditions.get("ready") is False or conditions.get("terminating") or not one.get("addresses"):
            continue
        address = one["addresses"][0]
        target = one.get("targetRef") or {}
        pod = target.get("name") if target.get("kind") == "Pod" else None  # whose name may be left out
        server = Endpoint(
            id="",
            name=pod or address,
            namespace=namespace,
            address=address,
            port=0,
            node=one.get("nodeName") or "",
            uid=target.get("uid") or "",
        )
        found += [rank_of(server, rank, port) for rank, port in enumerate(pool.target_ports)]
    return tuple(found)
