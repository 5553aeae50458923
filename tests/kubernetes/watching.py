"""What the watcher's tests against a cluster share: a watcher of a namespace's pool, what a reader sees of it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from services.watcher.app import WatcherService
from shared.bus.subjects import pool_token
from tests.kubernetes.api import Api, Document, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.nats import NatsServer
from tests.protocol.watcher.harness import Reader, started, watcher

QUICK = {
    "kubernetes_discovery_interval": 0.3,
    "kubernetes_refused_interval": 0.3,
    "kubernetes_initial_backoff": 0.05,
    "kubernetes_max_backoff": 0.5,
}
"""So that tests needn't wait for what is slow on purpose."""
POOL = "llama"
LABELS = {"app": "vllm"}
_number = count()


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


def config_map(name: str, text: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"config.yaml": text}}


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
        return {fact.name: fact.authority for fact in self.facts("endpoint").values()}  # type: ignore[union-attr]


class Site:
    """A namespace of a server, for one test alone, with a bus: where its watchers and readers are."""

    def __init__(self, server: ApiServer, admin: Api, namespace: str, nats: NatsServer, directory: Path) -> None:
        self.server = server
        self.admin = admin
        self.namespace = namespace
        self.nats = nats
        self.directory = directory
        self.pods = Pods(admin, namespace)

    async def create(self, *documents: Document) -> Object:
        """Create resources in the namespace; the last one as the server has it."""
        for document in documents:
            made = await self.admin.create(document, self.namespace)
        return made

    async def serve(self, *names: str) -> None:
        """Create the pool, and pods of it that are ready."""
        await self.create(pool_document())
        for at, name in enumerate(names, 1):
            await self.pods.create(name, f"10.1.0.{at}", labels=LABELS)

    async def apply(self, document: Document) -> None:
        await self.admin.apply(document, self.namespace)

    async def patch(self, kind: tuple[str, str], name: str, spec: Mapping[str, Any]) -> None:
        """Merge into the spec of a resource."""
        await self.admin.patch(*kind, name, {"spec": spec}, self.namespace)

    async def delete(self, kind: tuple[str, str], name: str) -> None:
        await self.admin.delete(*kind, name, self.namespace)

    @asynccontextmanager
    async def watching(self, *, token: str = "admin", url: str = "", **settings: Any) -> AsyncIterator[WatcherService]:
        """A watcher in this process, of the namespace's pool; `url` leads to a proxy in front of the server."""
        path = self.directory / f"kubeconfig-{next(_number)}"
        kubeconfig = str(self.server.kubeconfig(path, token, namespace=self.namespace, url=url))
        chosen = {"pool_namespace": self.namespace, "pool_name": POOL, "kubernetes": True, "kubeconfig": kubeconfig}
        async with watcher(self.nats.url, **{**QUICK, **chosen, **settings}) as service:
            yield service

    def reading(self, pool: str = POOL, namespace: str = "") -> AbstractAsyncContextManager[PoolReader]:
        """A reader of a pool."""
        return started(PoolReader(self.nats.url, namespace or self.namespace, pool))
