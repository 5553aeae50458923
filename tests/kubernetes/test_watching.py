"""The watcher's client and its watch against the real kube-apiserver: what only that can show. How they
take what goes wrong: tests/faults/watcher_kubernetes, tests/kubernetes/test_watcher_faults.py."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.reflector import Paging, Reflector, Reset, Upsert, list_all
from services.watcher.kubernetes.resource import Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watch_events import parse_event
from shared.datalayer.objects import ObjectKind
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.waiting import eventually

PODS = Resource(ObjectKind("", "v1", "Pod"), "pods", True)


@pytest.fixture
async def client(apiserver: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    client = await connect(KubernetesSettings(kubeconfig=str(apiserver.kubeconfig(tmp_path / "config"))), {})
    try:
        yield client
    finally:
        await client.close()


async def test_a_list_in_pages_is_complete(client: Client, pods: Pods) -> None:
    for number in range(7):
        await pods.create(f"p{number}")
    items, _ = await list_all(client, Selection(PODS, pods.namespace), Paging(3))
    assert [item["metadata"]["name"] for item in items] == [f"p{number}" for number in range(7)]


async def test_of_metadata_alone_nothing_else_is_sent(client: Client, pods: Pods) -> None:
    await pods.create("a")
    selection = Selection(PODS, pods.namespace, metadata_only=True)
    items, version = await list_all(client, selection, Paging(3))
    async with client.stream(selection, version, 30.0) as chunks:
        await pods.create("b")
        added = parse_event(await anext(chunks)).object
    for item in (*items, tidy(added, PODS)):
        assert item.keys() == {"apiVersion", "kind", "metadata"}
        assert item["kind"] == "Pod"


async def test_a_watch_that_the_server_ends_goes_on_without_a_list(client: Client, pods: Pods) -> None:
    watch = Reflector(client, Selection(PODS, pods.namespace), KubernetesSettings(kubernetes_watch_timeout=1.0))
    reports: list[object] = []

    async def read() -> None:
        async for report in watch.run():
            reports.append(report)

    task = asyncio.create_task(read())
    try:
        await eventually(lambda: watch.in_touch, "a watch")
        before = client.requests
        await eventually(lambda: client.requests >= before + 2, "two more watches")
        await pods.create("a")
        await eventually(lambda: isinstance(reports[-1], Upsert), "the new pod")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert [type(report) for report in reports] == [Reset, Upsert]
