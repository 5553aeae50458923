"""What the watcher's tests against a cluster share: a watcher of a namespace's pool, what a reader sees of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from services.watcher.app import WatcherService
from shared.bus.subjects import pool_token
from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.protocol.watcher.harness import Reader, watcher

QUICK = {
    "kubernetes_discovery_interval": 0.3,
    "kubernetes_refused_interval": 0.3,
    "kubernetes_first_backoff": 0.05,
    "kubernetes_longest_backoff": 0.5,
}
"""So that tests needn't wait for what is slow on purpose."""
POOL = "llama"
LABELS = {"app": "vllm"}


def pool_document(
    name: str = POOL, labels: dict[str, str] | None = None, ports: tuple[int, ...] = (8000,), **more: Any
) -> Object:
    """An InferencePool v1."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": LABELS if labels is None else labels},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "pointsman", "port": {"number": 9002}},
            **more,
        },
    }


class PoolReader(Reader):
    """A picker's view of one pool of a namespace."""

    def __init__(self, url: str, namespace: str, pool: str = POOL) -> None:
        super().__init__(url, pool_token(namespace, pool))
        self._namespace = namespace

    @property
    def endpoints(self) -> list[str]:
        return sorted(id.removeprefix(f"{self._namespace}/") for id in self.facts("endpoint"))

    @property
    def addresses(self) -> dict[str, str]:
        """`address:port` by the endpoint's name."""
        return {one.name: one.authority for one in self.facts("endpoint").values()}  # type: ignore[union-attr]


@asynccontextmanager
async def reading(url: str, namespace: str, pool: str = POOL) -> AsyncIterator[PoolReader]:
    made = PoolReader(url, namespace, pool)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def watching(
    nats_url: str, server: ApiServer, namespace: str, directory: Path, *, token: str = "admin", **settings: Any
) -> AsyncIterator[WatcherService]:
    """A watcher in this process, of the namespace's pool."""
    kubeconfig = str(server.kubeconfig(directory / f"kubeconfig-{token[:8]}", token, namespace=namespace))
    chosen = {"pool_namespace": namespace, "pool_name": POOL, "kubernetes": True, "kubeconfig": kubeconfig}
    async with watcher(nats_url, **{**QUICK, **chosen, **settings}) as service:
        yield service


async def apply(admin: Api, document: Object, namespace: str) -> Object:
    """Create a resource, or bring it to this form."""
    return await admin.apply(document, namespace)
