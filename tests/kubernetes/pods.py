"""Pods without a kubelet: a test says what a kubelet would have reported.

They are bound to a node that doesn't exist. So they live and end as in a cluster: a deleted pod stays, with a deletion
timestamp, until its kubelet confirms its end.
"""

from collections.abc import Mapping
from typing import Any

from tests.kubernetes.api import Api, Object

NODE = "node-1"


class Pods:
    """The pods of a namespace."""

    def __init__(self, api: Api, namespace: str) -> None:
        self.namespace = namespace
        self._api = api

    async def create(self, name: str, *ips: str, labels: Mapping[str, str] | None = None) -> Object:
        """A pod, and its status where addresses are given; without, it is as just scheduled: pending, no address."""
        made = await self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": dict(labels or {})},
                "spec": {"nodeName": NODE, "containers": [{"name": "model-server", "image": "model-server"}]},
            },
            self.namespace,
        )
        return await self.report(name, *ips) if ips else made

    async def report(self, name: str, *ips: str, ready: bool = True) -> Object:
        """Report its addresses (the first one is `podIP`; none: they stay), and whether it is ready."""
        condition = {"type": "Ready", "status": "True" if ready else "False", "reason": "Reported"}
        status: dict[str, Any] = {"phase": "Running", "conditions": [condition]}
        if ips:
            status |= {"podIP": ips[0], "podIPs": [{"ip": ip} for ip in ips]}
        return await self._api.patch("v1", "Pod", name, {"status": status}, self.namespace, subresource="status")

    async def label(self, name: str, labels: Mapping[str, str | None]) -> Object:
        """Set labels; None removes one."""
        return await self._api.patch("v1", "Pod", name, {"metadata": {"labels": dict(labels)}}, self.namespace)

    async def terminate(self, name: str) -> Object:
        """Delete it as a user does: it is terminating from now on, and stays until `delete`."""
        return await self._api.delete("v1", "Pod", name, self.namespace)

    async def delete(self, name: str) -> None:
        """Gone, at once: as its kubelet confirms its end."""
        await self._api.delete("v1", "Pod", name, self.namespace, grace_period=0)
