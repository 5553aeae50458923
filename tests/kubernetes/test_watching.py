"""The watcher's client, its watch and its discovery against the real kube-apiserver."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client, connect
from services.watcher.kubernetes.discovery import Discovery
from services.watcher.kubernetes.errors import Conflict, Expired, Forbidden, Kind, NotFound, error_of_status
from services.watcher.kubernetes.listing import list_all
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watching import Changed, Gone, Listed, Opened, Problem, Troubled, Watch, watch_once
from shared.datalayer.objects import ObjectKind
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ADMIN, ApiServer
from tests.kubernetes.conftest import OwnApiServer
from tests.kubernetes.pods import Pods

POD = ObjectKind("", "v1", "Pod")
EVENT = ObjectKind("events.k8s.io", "v1", "Event")
POOL = ObjectKind("inference.networking.k8s.io", "v1", "InferencePool")
OLD_POOL = ObjectKind("inference.networking.x-k8s.io", "v1alpha2", "InferencePool")
WIDGET = ObjectKind("tests.example", "v1", "Widget")
PODS = Resource(POD, "pods", True)
CONVERGED = 20.0
"""Seconds in which whatever is going to happen has happened, on a machine that is busy with other tests."""


async def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until the condition holds. Fails, saying what was waited for."""
    deadline = time.monotonic() + CONVERGED
    while not holds():
        assert time.monotonic() < deadline, f"not within {CONVERGED:g} s: {what}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def connected(server: ApiServer, path: Path, token: str = ADMIN) -> AsyncIterator[Client]:
    client = await connect(KubernetesSettings(kubeconfig=str(server.kubeconfig(path / token[-20:], token))), {})
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def client(apiserver: ApiServer, tmp_path: Path) -> AsyncIterator[Client]:
    async with connected(apiserver, tmp_path) as made:
        yield made


class Reader:
    """The pods' names that follow from a watch's reports, with how often all were listed."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.objects: dict[str, JsonObject] = {}
        self.problems: list[Problem] = []

    @property
    def names(self) -> list[str]:
        return sorted(self.objects)

    async def run(self) -> None:
        async for report in self.watch.forever():
            match report:
                case Listed(items):
                    self.objects = {item["metadata"]["name"]: item for item in items}
                case Changed(item):
                    self.objects[item["metadata"]["name"]] = item
                case Gone(item):
                    del self.objects[item["metadata"]["name"]]
                case Troubled(problem):
                    self.problems.append(problem)


@asynccontextmanager
async def following(client: Client, selection: Selection, **settings: Any) -> AsyncIterator[Reader]:
    """A reader that has the first list, or the first problem."""
    reader = Reader(Watch(client, selection, KubernetesSettings(**settings)))
    task = asyncio.create_task(reader.run())
    try:
        await eventually(lambda: reader.watch.in_touch or bool(reader.problems), "a watch, or a problem")
        yield reader
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pods_of_a_selector_come_change_and_go(client: Client, pods: Pods, admin: Api) -> None:
    await pods.create("a", "10.0.0.1", labels={"app": "vllm"})
    await pods.create("other", "10.0.0.9", labels={"app": "other"})
    async with following(client, Selection(PODS, pods.namespace, "app=vllm")) as reader:
        assert reader.names == ["a"]
        assert "managedFields" not in reader.objects["a"]["metadata"]
        assert (reader.objects["a"]["apiVersion"], reader.objects["a"]["kind"]) == ("v1", "Pod")
        await pods.create("b", "10.0.0.2", labels={"app": "vllm"})
        await eventually(lambda: reader.names == ["a", "b"], "the new pod")
        await pods.label("other", {"app": "vllm"})
        await eventually(lambda: reader.names == ["a", "b", "other"], "the pod that is selected now")
        await pods.label("a", {"app": None})
        await eventually(lambda: reader.names == ["b", "other"], "the pod that isn't any more to be gone")
        await admin.delete("v1", "Pod", "b", pods.namespace, grace_period=0)
        await eventually(lambda: reader.names == ["other"], "the deleted pod to be gone")
    assert reader.problems == []
    assert reader.watch.lists == 1


async def test_a_list_in_pages_is_complete(client: Client, pods: Pods) -> None:
    for number in range(7):
        await pods.create(f"p{number}")
    found = await list_all(client, Selection(PODS, pods.namespace), 3, tidy)
    assert [item["metadata"]["name"] for item in found.items] == [f"p{number}" for number in range(7)]


async def test_metadata_alone_is_all_that_comes(client: Client, pods: Pods) -> None:
    await pods.create("a", labels={"app": "vllm"})
    async with following(client, Selection(PODS, pods.namespace, metadata_only=True)) as reader:
        await pods.create("b")
        await eventually(lambda: reader.names == ["a", "b"], "the new pod")
        for item in reader.objects.values():
            assert sorted(item) == ["apiVersion", "kind", "metadata"]
            assert (item["apiVersion"], item["kind"]) == ("v1", "Pod")


async def test_a_watch_that_the_server_ends_goes_on_without_a_list(client: Client, pods: Pods) -> None:
    async with following(client, Selection(PODS, pods.namespace), kubernetes_watch_timeout=1.0) as reader:
        before = client.requests
        await eventually(lambda: client.requests >= before + 3, "three more watches")
        await pods.create("a")
        await eventually(lambda: reader.names == ["a"], "the new pod")
    assert (reader.watch.lists, reader.problems) == (1, [])


async def test_what_rbac_lacks_is_named_and_found_when_it_is_granted(
    apiserver: ApiServer, admin: Api, pods: Pods, tmp_path: Path
) -> None:
    await pods.create("a")
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    token = await admin.service_account("half", pods.namespace, rules=rules)
    async with connected(apiserver, tmp_path, token) as client:
        async with following(client, Selection(PODS, pods.namespace), kubernetes_refused_interval=0.5) as reader:
            await eventually(lambda: bool(reader.problems), "the problem")
            assert reader.problems[0].kind is Kind.FORBIDDEN
            assert f"not allowed to watch pods in namespace {pods.namespace}" in reader.problems[0].text
            assert 'cannot watch resource "pods"' in reader.problems[0].text
            assert reader.names == ["a"]
            role = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]}
            await admin.patch("rbac.authorization.k8s.io/v1", "Role", "half", role, pods.namespace)
            await eventually(lambda: reader.watch.in_touch and not reader.watch.problem, "the watch")
        with pytest.raises(Forbidden, match="not allowed to list pods"):
            await client.page(Selection(PODS), 10)


async def test_everybody_who_is_authenticated_may_discover(
    apiserver: ApiServer, admin: Api, namespace: str, tmp_path: Path
) -> None:
    token = await admin.service_account("nobody", namespace)
    async with connected(apiserver, tmp_path, token) as client:
        discovery = Discovery(client, KubernetesSettings())
        discovery.want([POD, EVENT, POOL, OLD_POOL, WIDGET])
        found = await discovery.refresh()
        assert set(found) == {POD, EVENT, POOL, OLD_POOL}
        assert found[POOL].plural == "inferencepools"
        assert found[POOL].namespaced
        assert "status" in found[POOL].subresources
        assert {"list", "watch"} <= found[POD].verbs
        asked = client.requests
        assert await discovery.refresh() == found
        assert client.requests == asked + 2


async def test_a_definition_that_is_installed_is_discovered_and_one_that_is_removed_too(
    client: Client, admin: Api
) -> None:
    discovery = Discovery(client, KubernetesSettings(kubernetes_discovery_interval=0.2))
    discovery.want([POD, WIDGET])
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.tests.example"},
        "spec": {
            "group": "tests.example",
            "scope": "Cluster",
            "names": {"kind": "Widget", "plural": "widgets"},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
            ],
        },
    }
    async with aclosing(discovery.changes()) as changes, asyncio.timeout(CONVERGED):
        assert set(await anext(changes)) == {POD}
        await admin.apply(definition)
        found = await anext(changes)
        assert found[WIDGET].path() == "/apis/tests.example/v1/widgets"
        assert not found[WIDGET].namespaced
        await eventually_listed(client, found[WIDGET])
        version = definition["apiVersion"]
        assert isinstance(version, str)
        await admin.delete(version, "CustomResourceDefinition", "widgets.tests.example", "")
        while WIDGET in await anext(changes):  # for a moment with fewer verbs
            pass
    with pytest.raises(NotFound):
        await client.page(Selection(found[WIDGET]), 10)


async def eventually_listed(client: Client, resource: Resource) -> None:
    """A definition is discovered a little before its objects are served."""
    while True:
        try:
            await client.page(Selection(resource), 10)
        except NotFound:
            await asyncio.sleep(0.05)
        else:
            return


async def test_status_is_applied_and_never_taken_from_another_controller(
    client: Client, admin: Api, namespace: str
) -> None:
    discovery = Discovery(client, KubernetesSettings())
    discovery.want([POOL])
    pools = (await discovery.refresh())[POOL]
    spec = {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "pointsman", "port": {"number": 9002}},
    }
    head = {"apiVersion": POOL.api_version, "kind": POOL.kind, "metadata": {"name": "p"}}
    await admin.create({**head, "spec": spec}, namespace)

    def status(message: str) -> dict[str, Any]:
        condition = {
            "type": "Accepted",
            "status": "True",
            "reason": "Accepted",
            "message": message,
            "lastTransitionTime": "2026-08-01T12:00:00Z",
        }
        parent = {"parentRef": {"kind": "Gateway", "name": "g"}, "conditions": [condition]}
        return {**head, "status": {"parents": [parent]}}

    async def apply(message: str, manager: str) -> JsonObject:
        return await client.apply(
            pools, "p", status(message), namespace=namespace, field_manager=manager, subresource="status"
        )

    applied = await apply("ours", "pointsman")
    assert applied["status"]["parents"][0]["conditions"][0]["message"] == "ours"
    with pytest.raises(Conflict, match=r"can't patch inferencepools\..*/status .*conflict"):
        await apply("theirs", "another")
    there = await admin.get("inference.networking.k8s.io/v1", "InferencePool", "p", namespace)
    assert there["status"] == applied["status"]


async def test_an_event_is_created(client: Client, admin: Api, namespace: str) -> None:
    events = Resource(EVENT, "events", True)
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "p-"},
        "eventTime": "2026-08-01T12:00:00.000000Z",
        "reportingController": "pointsman",
        "reportingInstance": "watcher-0",
        "action": "Refuse",
        "reason": "Invalid",
        "type": "Warning",
        "note": "spec.targetPorts: at least one is needed",
        "regarding": {"apiVersion": POOL.api_version, "kind": POOL.kind, "name": "p", "namespace": namespace},
    }
    made = await client.create(events, body, namespace)
    assert made["metadata"]["name"].startswith("p-")


async def test_what_was_missed_while_the_server_was_away_is_in_the_next_list(
    own_apiserver: OwnApiServer, tmp_path: Path
) -> None:
    """A pod is deleted before the watcher notices that the server is back: no ghost is left."""
    server = await own_apiserver()
    async with server.client() as admin, connected(server, tmp_path) as client:
        pods = Pods(admin, "default")
        await pods.create("a")
        await pods.create("b")
        async with following(client, Selection(PODS, "default"), kubernetes_longest_backoff=1.0) as reader:
            assert reader.names == ["a", "b"]
            await server.kill()
            await eventually(lambda: bool(reader.problems), "the problem")
            assert reader.problems[0].kind is Kind.UNREACHABLE
            assert reader.names == ["a", "b"]
            await server.start()
            await admin.delete("v1", "Pod", "a", grace_period=0)
            await pods.create("c")
            await eventually(lambda: reader.names == ["b", "c"] and reader.watch.in_touch, "the new set")


async def test_410_after_compaction_lists_again(own_apiserver: OwnApiServer, tmp_path: Path) -> None:
    """No watch cache: etcd's own history counts, and there are no bookmarks that would have moved the version on."""
    server = await own_apiserver(crds=(), flags=["--watch-cache=false"])
    async with server.client() as admin, connected(server, tmp_path) as client:
        pods = Pods(admin, "default")
        for number in range(4):
            await pods.create(f"p{number}")
        selection = Selection(PODS, "default")
        first = await client.page(selection, 2)
        async with following(client, selection, kubernetes_watch_timeout=3.0) as reader:
            for number in range(3):
                await admin.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"c{number}"}})
            await server.compact()
            await eventually(lambda: reader.watch.lists == 2 and reader.watch.in_touch, "the second list")
            assert reader.names == ["p0", "p1", "p2", "p3"]
            assert reader.problems == []
        with pytest.raises(Expired, match="410 Expired"):
            await client.page(selection, 2, first.next)
        with pytest.raises(Expired, match="410 Expired"):
            await watched(client, selection, first.resource_version)


async def watched(client: Client, selection: Selection, version: str) -> None:
    """Wait for the first event of a watch."""
    settings = KubernetesSettings()
    async with aclosing(watch_once(client, selection, version, settings, Timing())) as events:
        async for event in events:
            if not isinstance(event, Opened):
                assert event.type == "ERROR"
                raise error_of_status("watch", event.object)


async def test_a_frozen_server_is_left_for_inactivity(own_apiserver: OwnApiServer, tmp_path: Path) -> None:
    """SIGSTOP: the connection stays, nothing comes."""
    server = await own_apiserver()
    settings = KubernetesSettings(
        kubeconfig=str(server.kubeconfig(tmp_path / "kubeconfig")),
        kubernetes_inactivity_timeout=2.0,
        kubernetes_request_timeout=2.0,
    )
    client = await connect(settings, {})
    try:
        async with (
            server.client() as admin,
            following(client, Selection(PODS, "default"), kubernetes_longest_backoff=0.5) as reader,
        ):
            server.pause()
            await eventually(lambda: bool(reader.problems), "the problem")
            assert reader.problems[0].kind is Kind.TIMEOUT
            server.resume()
            await Pods(admin, "default").create("a")
            await eventually(lambda: reader.names == ["a"], "the pod")
    finally:
        await client.close()
