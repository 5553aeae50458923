"""What the watcher's tests against a cluster share: a watcher of a namespace's pool, what a reader sees of it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from services.watcher.app import WatcherService
from shared.bus.replica_state import Delete, Event, Reset, Upsert
from shared.bus.subjects import pool_token
from shared.model import Endpoint
from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.protocol.watcher.harness import Reader, started, watcher

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


def reading(url: str, namespace: str, pool: str = POOL) -> AbstractAsyncContextManager[PoolReader]:
    """A reader of a namespace's pool."""
    return started(PoolReader(url, namespace, pool))


@asynccontextmanager
async def watching(
    nats_url: str, server: ApiServer, namespace: str, directory: Path, *, token: str = "admin", **settings: Any
) -> AsyncIterator[WatcherService]:
    """A watcher in this process, of the namespace's pool."""
    kubeconfig = str(server.kubeconfig(directory / f"kubeconfig-{token[:8]}", token, namespace=namespace))
    chosen = {"pool_namespace": namespace, "pool_name": POOL, "kubernetes": True, "kubeconfig": kubeconfig}
    async with watcher(nats_url, **{**QUICK, **chosen, **settings}) as service:
        yield service


async def serving_pods(
    admin: Api, namespace: str, selector: str = "app=vllm", port: int = 8000
) -> dict[str, tuple[str, str, dict[str, str]]]:
    """By endpoint: address, uid and labels of the pods that serve, as the API lists them."""
    found = {}
    for pod in (await admin.list("v1", "Pod", namespace, selector=selector))["items"]:
        metadata, status = pod["metadata"], pod["status"]
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
        if ready and "deletionTimestamp" not in metadata:
            found[f"{metadata['name']}-rank-0"] = f"{status['podIP']}:{port}", metadata["uid"], metadata["labels"]
    return found


def published(seen: PoolReader) -> dict[str, tuple[str, str, dict[str, str]]]:
    """The same of what the reader sees."""
    endpoints = [one for one in seen.facts("endpoint").values() if isinstance(one, Endpoint)]
    return {one.name: (one.authority, one.uid, dict(one.labels)) for one in endpoints}


def came_back(events: list[Event]) -> list[str]:
    """The uids of servers that were there again after they had gone."""
    by_key: dict[str, str] = {}
    gone: set[str] = set()
    ghosts = []
    for event in events:
        before = dict(by_key)
        match event:
            case Reset(facts=facts):
                by_key = {key: fact.uid for key, fact in facts.items() if isinstance(fact, Endpoint)}
            case Upsert(key=key, fact=Endpoint() as endpoint):
                by_key[key] = endpoint.uid
            case Delete(key=key):
                by_key.pop(key, None)
        gone |= set(before.values()) - set(by_key.values())
        ghosts += sorted(gone & set(by_key.values()))
    return ghosts


async def apply(admin: Api, document: Object, namespace: str) -> Object:
    """Create a resource, or bring it to this form."""
    return await admin.apply(document, namespace)
