"""Which kinds are served, now and later."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.discovery import Discovery, read_resources
from services.watcher.kubernetes.errors import (
    BadAnswer,
    ConnectionFailed,
    ErrorKind,
    Forbidden,
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


def plain(*resources: Resource) -> dict[str, Any]:
    """The APIResourceList of one group and version."""
    entries: list[dict[str, Any]] = []
    for resource in resources:
        common = {"namespaced": resource.namespaced, "kind": resource.kind.kind, "verbs": sorted(resource.verbs)}
        entries.append({"name": resource.plural, **common})
        entries += [{"name": f"{resource.plural}/{name}", **common} for name in sorted(resource.subresources)]
    return {"kind": "APIResourceList", "groupVersion": "x", "resources": entries}


class Server:
    """Serves discovery; notes what it was asked."""

    def __init__(self, *resources: Resource) -> None:
        self.resources = list(resources)
        self.failures: dict[str, KubernetesError] = {}
        """By path."""
        self.failure: KubernetesError | None = None
        self.asked: list[str] = []

    async def document(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        await asyncio.sleep(0)
        if failure := self.failure or self.failures.get(path):
            raise failure
        _, _, rest = path.lstrip("/").partition("/")
        group, _, version = rest.rpartition("/")
        found = [
            resource for resource in self.resources if (resource.kind.group, resource.kind.version) == (group, version)
        ]
        if not found:
            raise NotFound(f"get {path}", 404, "NotFound")
        return plain(*found)


def made(server: Server, *kinds: ObjectKind) -> tuple[Discovery, FakeTime]:
    time = FakeTime()
    discovery = Discovery(cast(Client, server), KubernetesSettings(), time.timing)
    discovery.set_kinds(kinds)
    return discovery, time


async def test_each_group_and_version_of_interest_is_asked() -> None:
    server = Server(PODS, POOLS)
    discovery, _ = made(server, POD, POOL, OLD_POOL)
    assert await discovery.refresh() == {POD: PODS, POOL: POOLS}
    assert server.asked == ["/api/v1", f"/apis/{GROUP}/v1", OLD_PATH]


async def test_a_group_whose_own_server_is_down_keeps_what_was_known() -> None:
    server = Server(PODS, POOLS)
    discovery, time = made(server, POD, POOL)
    async with aclosing(discovery.changes()) as changes:
        await anext(changes)
    server.failures = {f"/apis/{GROUP}/v1": Unavailable(f"get /apis/{GROUP}/v1", 503)}
    server.resources = []
    assert await discovery.refresh() == {POOL: POOLS}
    assert discovery.last_response_at == time.now
    discovery.set_kinds([POD, POOL, OLD_POOL])
    with pytest.raises(Unavailable):
        await discovery.refresh()
    assert discovery.resources == {POOL: POOLS}, "of the new kind nothing is known"


async def test_kinds_that_are_installed_later_and_that_vanish_are_noticed() -> None:
    server = Server(PODS)
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
    discovery = Discovery(cast(Client, server), KubernetesSettings(), type(timing)(timing.clock, sleep, timing.random))
    discovery.set_kinds([POD, POOL])
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
            discovery.set_kinds([POD, POOL, OLD_POOL])
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
        assert discovery.problem.kind is ErrorKind.UNREACHABLE
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
    assert discovery.last_response_at == began
    server.failure = failure
    time.now += 10.0
    with pytest.raises(type(failure)):
        await discovery.refresh()
    assert discovery.last_response_at == (began + 10.0 if heard else began)


async def test_retry_after_is_honoured() -> None:
    server = Server(PODS)
    server.failure = Unavailable("get /apis", 429, retry_after=17.0)
    discovery, time = made(server, POD)
    task = asyncio.ensure_future(anext(discovery.changes()))
    await until(lambda: bool(time.sleeps))
    server.failure = None
    await task
    assert time.sleeps[0] == 17.0


def test_scope_and_subresources_are_read() -> None:
    node = Resource(ObjectKind("", "v1", "Node"), "nodes", False, frozenset({"list"}), frozenset({"proxy", "status"}))
    assert read_resources(plain(node), "", "v1") == {node.kind: node}


def test_a_document_that_is_something_else_is_refused() -> None:
    with pytest.raises(BadAnswer, match="resources of apps/v1 can't be understood"):
        read_resources({"resources": [{"name": 1}]}, "apps", "v1")
