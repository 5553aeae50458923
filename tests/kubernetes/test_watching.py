"""The watcher's client, its watch and its discovery against the real kube-apiserver: what only that can show. How they
take what goes wrong: tests/faults/watcher_kubernetes, tests/kubernetes/test_watcher_faults.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.discovery import Discovery
from services.watcher.kubernetes.listing import list_all
from services.watcher.kubernetes.resource import Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watching import Changed, Listed, Watch
from shared.datalayer.objects import ObjectKind
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ADMIN, ApiServer
from tests.kubernetes.pods import Pods
from tests.waiting import eventually

POD = ObjectKind("", "v1", "Pod")
POOL = ObjectKind("inference.networking.k8s.io", "v1", "InferencePool")
OLD_POOL = ObjectKind("inference.networking.x-k8s.io", "v1alpha2", "InferencePool")
WIDGET = ObjectKind("tests.example", "v1", "Widget")
PODS = Resource(POD, "pods", True)


@asynccontextmanager
async def connected(server: ApiServer, path: Path, token: str = ADMIN) -> AsyncIterator[Client]:
    client = await connect(KubernetesSettings(kubeconfig=str(server.kubeconfig(path / "config", token))), {})
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(apiserver: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with connected(apiserver, tmp_path) as made:
        yield made


async def test_a_list_in_pages_is_complete(client: Client, pods: Pods) -> None:
    for number in range(7):
        await pods.create(f"p{number}")
    found = await list_all(client, Selection(PODS, pods.namespace), 3, tidy)
    assert [item["metadata"]["name"] for item in found.items] == [f"p{number}" for number in range(7)]


async def test_a_watch_that_the_server_ends_goes_on_without_a_list(client: Client, pods: Pods) -> None:
    watch = Watch(client, Selection(PODS, pods.namespace), KubernetesSettings(kubernetes_watch_timeout=1.0))
    reports: list[object] = []

    async def read() -> None:
        async for report in watch.forever():
            reports.append(report)

    task = asyncio.create_task(read())
    try:
        await eventually(lambda: watch.in_touch, "a watch")
        before = client.requests
        await eventually(lambda: client.requests >= before + 2, "two more watches")
        await pods.create("a")
        await eventually(lambda: isinstance(reports[-1], Changed), "the new pod")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [type(one) for one in reports] == [Listed, Changed]


async def test_everybody_who_is_authenticated_may_discover(
    apiserver: ApiServer, admin: Api, namespace: str, tmp_path: Path
) -> None:
    token = await admin.service_account("nobody", namespace)
    async with connected(apiserver, tmp_path, token) as client:
        discovery = Discovery(client, KubernetesSettings())
        discovery.want([POD, POOL, OLD_POOL, WIDGET])
        found = await discovery.refresh()
        assert set(found) == {POD, POOL, OLD_POOL}
        assert found[POOL].plural == "inferencepools"
        assert found[POOL].namespaced
        assert "status" in found[POOL].subresources
        assert {"list", "watch"} <= found[POD].verbs
        asked = client.requests
        assert await discovery.refresh() == found
        assert client.requests == asked + 2
