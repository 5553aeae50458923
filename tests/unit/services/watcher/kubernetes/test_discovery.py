"""Which kinds are served: in one document or in many, now and later."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.watcher.kubernetes.client import Document
from services.watcher.kubernetes.discovery import ACCEPT, Discovery, read_aggregated, read_plain
from services.watcher.kubernetes.errors import (
    BadAnswer,
    ConnectionFailed,
    Forbidden,
    Kind,
    KubernetesError,
    NotFound,
    Unavailable,
)
from services.watcher.kubernetes.resource import Resource
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.datalayer.objects import ObjectKind
from tests.fake_kubernetes.timing import FakeTime, until

GROUP = "inference.networking.k8s.io"
POD = ObjectKind("", "v1", "Pod")
OLD_GROUP = "inference.networking.x-k8s.io"
OLD_PATH = f"/apis/{OLD_GROUP}/v1alpha2"
POOL = ObjectKind(GROUP, "v1", "InferencePool")
OLD_POOL = ObjectKind(OLD_GROUP, "v1alpha2", "InferencePool")
PODS = Resource(POD, "pods", True, frozenset({"list", "watch"}), frozenset({"status"}))
POOLS = Resource(POOL, "inferencepools", True, frozenset({"list", "watch"}), frozenset({"status"}))
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


def aggregated(*resources: Resource, freshness: str = "Current") -> dict[str, Any]:
    """The document that lists these."""
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one in resources:
        told = {
            "resource": one.plural,
            "responseKind": {"group": one.kind.group, "version": one.kind.version, "kind": one.kind.kind},
            "scope": "Namespaced" if one.namespaced else "Cluster",
            "singularResource": one.kind.kind.lower(),
            "verbs": sorted(one.verbs),
            "subresources": [{"subresource": name, "verbs": ["get"]} for name in sorted(one.subresources)],
        }
        groups.setdefault(one.kind.group, {}).setdefault(one.kind.version, []).append(told)
    items = [
        {
            "metadata": {"name": group},
            "versions": [
                {"version": version, "resources": found, "freshness": freshness} for version, found in versions.items()
            ],
        }
        for group, versions in groups.items()
    ]
    return {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}


def plain(*resources: Resource) -> dict[str, Any]:
    """The APIResourceList of one group and version."""
    told: list[dict[str, Any]] = []
    for one in resources:
        common = {"namespaced": one.namespaced, "kind": one.kind.kind, "verbs": sorted(one.verbs)}
        told.append({"name": one.plural, **common})
        told += [{"name": f"{one.plural}/{name}", **common} for name in sorted(one.subresources)]
    return {"kind": "APIResourceList", "groupVersion": "x", "resources": told}


class Server:
    """Serves discovery, aggregated or not; notes what it was asked."""

    def __init__(self, *resources: Resource, aggregates: bool = True) -> None:
        self.resources = list(resources)
        self.aggregated: list[Resource] | None = None
        """What the aggregate has, where it isn't all."""
        self.starting = False
        """Whether it refuses to say what a group and version has."""
        self.aggregates = aggregates
        self.freshness = "Current"
        self.failure: KubernetesError | None = None
        self.asked: list[str] = []

    async def document(self, path: str, accept: str = "", etag: str = "") -> Document:
        self.asked.append(path)
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        if path in ("/api", "/apis"):
            assert accept == ACCEPT
            if not self.aggregates:
                return Document({"kind": "APIGroupList", "groups": []}, "application/json", "")
            listed = self.resources if self.aggregated is None else self.aggregated
            found = [one for one in listed if (path == "/api") is (not one.kind.group)]
            content = aggregated(*found, freshness=self.freshness)
            tag = f'"{hash(str(content))}"'
            return Document(None if tag == etag else content, AGGREGATED, tag)
        if self.starting:
            raise Unavailable(f"get {path}", 503, "ServiceUnavailable")
        _, _, rest = path.lstrip("/").partition("/")
        group, _, version = rest.rpartition("/")
        found = [one for one in self.resources if (one.kind.group, one.kind.version) == (group, version)]
        if not found:
            raise NotFound(f"get {path}", 404, "NotFound")
        return Document(plain(*found), "application/json", "")


def made(server: Server, *kinds: ObjectKind) -> tuple[Discovery, FakeTime]:
    time = FakeTime()
    discovery = Discovery(server, KubernetesSettings(), time.timing)
    discovery.want(kinds)
    return discovery, time


@pytest.mark.parametrize(
    ("aggregates", "kinds", "asked"),
    [
        (True, [POD, POOL], ["/api", "/apis"]),
        (True, [POOL], ["/apis"]),
        (
            False,
            [POD, POOL, OLD_POOL],
            ["/api", "/api/v1", "/apis", f"/apis/{GROUP}/v1", f"/apis/{OLD_GROUP}/v1alpha2"],
        ),
    ],
    ids=["all groups are one request and the core another", "nothing of the core", "a server that doesn't aggregate"],
)
async def test_what_is_wanted_and_served_is_found_with_few_requests(
    aggregates: bool, kinds: list[ObjectKind], asked: list[str]
) -> None:
    server = Server(PODS, POOLS, aggregates=aggregates)
    discovery, _ = made(server, *kinds)
    assert await discovery.refresh() == {one.kind: one for one in (PODS, POOLS) if one.kind in kinds}
    assert server.asked == asked


async def test_of_a_kind_that_is_missing_its_own_group_is_asked_once() -> None:
    server = Server(POOLS)
    discovery, _ = made(server, POOL, OLD_POOL)
    await discovery.refresh()
    await discovery.refresh()
    assert server.asked == ["/apis", "/apis/inference.networking.x-k8s.io/v1alpha2", "/apis"]


async def test_a_kind_that_its_own_group_has_is_not_missing() -> None:
    """A server that has just started aggregates before it knows all that it serves."""
    server = Server(POOLS)
    discovery, _ = made(server, POOL)
    server.aggregated = []
    assert await discovery.refresh() == {POOL: POOLS}
    server.resources = []
    assert await discovery.refresh() == {}, "what the group has is asked anew as long as the aggregate lacks it"
    server.resources = server.aggregated = [POOLS]
    assert await discovery.refresh() == {POOL: POOLS}


async def test_a_server_that_does_not_know_yet_what_it_serves_changes_nothing() -> None:
    server = Server(PODS, POOLS)
    discovery, _ = made(server, POD, POOL)
    await discovery.refresh()
    server.aggregated = [PODS]
    server.starting = True
    with pytest.raises(Unavailable):
        await discovery.refresh()
    assert discovery.resources == {POD: PODS, POOL: POOLS}
    server.starting = False
    assert await discovery.refresh() == {POD: PODS, POOL: POOLS}


async def test_an_answer_that_nothing_changed_is_taken_for_the_last_one() -> None:
    server = Server(POOLS)
    discovery, _ = made(server, POOL)
    await discovery.refresh()
    discovery.want([POOL, OLD_POOL])
    assert await discovery.refresh() == {POOL: POOLS}


@pytest.mark.parametrize("aggregates", [True, False])
async def test_kinds_that_are_installed_later_and_that_vanish_are_noticed(aggregates: bool) -> None:
    server = Server(PODS, aggregates=aggregates)
    discovery, time = made(server, POD, POOL)
    found: list[Mapping[ObjectKind, Resource]] = []
    async with aclosing(discovery.changes()) as changes:
        found.append(await anext(changes))
        server.resources.append(POOLS)
        found.append(await anext(changes))
        server.resources.remove(POOLS)
        found.append(await anext(changes))
    assert found == [{POD: PODS}, {POD: PODS, POOL: POOLS}, {POD: PODS}]
    assert all(8 <= pause <= 12 for pause in time.sleeps)


async def test_what_did_not_change_is_not_told_again() -> None:
    server = Server(PODS)
    discovery, time = made(server, POD)
    async with aclosing(discovery.changes()) as changes:
        await anext(changes)
        task = asyncio.ensure_future(anext(changes))
        await until(lambda: len(time.sleeps) >= 5)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("asks", [True, False], ids=["asking", "wanting other kinds"])
async def test_asking_and_wanting_other_kinds_look_again_before_the_interval_is_over(asks: bool) -> None:
    """A watch whose resource isn't there any more (404) asks at once."""
    server = Server(PODS, POOLS)
    never = asyncio.Event()

    async def sleep(_: float) -> None:
        await never.wait()

    timing = FakeTime().timing
    discovery = Discovery(server, KubernetesSettings(), type(timing)(timing.clock, sleep, timing.random))
    discovery.want([POD, POOL])
    async with aclosing(discovery.changes()) as changes:
        assert await anext(changes) == {POD: PODS, POOL: POOLS}
        task = asyncio.ensure_future(anext(changes))
        for _ in range(20):
            await asyncio.sleep(0)
        server.resources.remove(POOLS)
        assert not task.done()
        if asks:
            discovery.ask()
        else:
            discovery.want([POD, POOL, OLD_POOL])
        assert await task == {POD: PODS}


async def test_what_was_known_holds_while_the_server_is_away() -> None:
    server = Server(PODS, POOLS)
    discovery, time = made(server, POD, POOL)
    async with aclosing(discovery.changes()) as changes:
        await anext(changes)
        server.failure = ConnectionFailed("Connection refused")
        task = asyncio.ensure_future(anext(changes))
        with capture_logs() as logs:
            await until(lambda: time.now >= 1300)
        assert not task.done()
        assert discovery.find(POOL) == POOLS
        assert discovery.problem is not None
        assert discovery.problem.kind is Kind.UNREACHABLE
        assert [entry["event"] for entry in logs].count("kubernetes.discovery.failed") == 1
        assert max(time.sleeps) <= 30
        server.failure = None
        server.resources.remove(POOLS)
        assert await task == {POD: PODS}
        assert discovery.problem is None


@pytest.mark.parametrize(
    ("failure", "heard"),
    [
        (Forbidden("get /api", 403, "Forbidden"), True),
        (Unavailable("get /api", 503), False),
        (ConnectionFailed("Connection refused"), False),
    ],
    ids=["refused", "unavailable", "unreachable"],
)
async def test_a_server_that_refuses_to_say_has_been_heard_and_nobody_else(
    failure: KubernetesError, heard: bool
) -> None:
    server = Server(PODS)
    discovery, time = made(server, POD)
    await discovery.refresh()
    began = time.now
    assert (discovery.heard_at, discovery.confirmed_at) == (began, began)
    server.failure = failure
    time.now += 10.0
    with pytest.raises(type(failure)):
        await discovery.refresh()
    assert discovery.confirmed_at == began
    assert discovery.heard_at == (began + 10.0 if heard else began)


async def test_retry_after_is_honoured() -> None:
    server = Server(PODS)
    server.failure = Unavailable("get /apis", 429, retry_after=17.0)
    discovery, time = made(server, POD)
    task = asyncio.ensure_future(anext(discovery.changes()))
    await until(lambda: bool(time.sleeps))
    server.failure = None
    await task
    assert time.sleeps[0] == 17.0


async def test_a_group_whose_own_server_is_down_keeps_what_was_known() -> None:
    server = Server(POOLS)
    discovery, _ = made(server, POOL)
    await discovery.refresh()
    server.freshness = "Stale"
    server.resources = [Resource(POOL, "other", True)]
    assert await discovery.refresh() == {POOL: POOLS}


def test_resources_without_a_kind_are_left_out() -> None:
    content = aggregated(PODS)
    resources = content["items"][0]["versions"][0]["resources"]
    resources.append({"resource": "scale", "scope": "Namespaced", "verbs": [], "subresources": []})
    resources.append({"resource": "x", "responseKind": {"kind": ""}, "scope": "Namespaced", "verbs": []})
    content["items"][0]["metadata"] = {}  # the core group has no name
    assert dict(read_aggregated(content).resources) == {POD: PODS}


def test_scope_and_subresources_are_read_from_either_document() -> None:
    node = Resource(ObjectKind("", "v1", "Node"), "nodes", False, frozenset({"list"}), frozenset({"proxy", "status"}))
    assert dict(read_aggregated(aggregated(node)).resources) == {node.kind: node}
    assert read_plain(plain(node), "", "v1") == {node.kind: node}


@pytest.mark.parametrize("content", [{}, {"items": {}}, {"items": [{"versions": [{"resources": [{}]}]}]}])
def test_a_document_that_is_something_else_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(BadAnswer, match="can't be understood"):
        read_aggregated(content)
    with pytest.raises(BadAnswer, match="resources of apps/v1 can't be understood"):
        read_plain({"resources": [{"name": 1}]}, "apps", "v1")
