"""The watcher against a real API server, with everything that happens to it: what is published stays what the cluster
last said, and becomes what it says as soon as anybody can know."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.watcher.app import WatcherService
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.conftest import OwnApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.proxy import Proxy
from tests.kubernetes.watching import (
    LABELS,
    POOL,
    PoolReader,
    came_back,
    pool_document,
    published,
    reading,
    serving_pods,
    watching,
)
from tests.nats import NatsServer, free_port
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")

IMPATIENT: dict[str, Any] = {"kubernetes_inactivity_timeout": 1.0, "kubernetes_request_timeout": 2.0}
"""So that silence is noticed while a test waits."""
BACK = 15.0
"""Seconds in which a watcher is in touch again, with the pauses of `QUICK` and time-outs of `IMPATIENT`."""
STEP = 0.15
"""Seconds from one cut to the next."""


@asynccontextmanager
async def behind_a_proxy(
    nats: NatsServer, server: ApiServer, namespace: str, directory: Path, **settings: Any
) -> AsyncIterator[tuple[Proxy, WatcherService, PoolReader]]:
    """A watcher whose way to the API server is the test's, and a reader of what it publishes."""
    async with Proxy(server.port) as proxy:
        config = str(server.kubeconfig(directory / "proxied", namespace=namespace, url=proxy.url))
        chosen = {**IMPATIENT, "kubeconfig": config, **settings}
        async with (
            watching(nats.url, server, namespace, directory, **chosen) as service,
            reading(nats.url, namespace) as seen,
        ):
            yield proxy, service, seen


def trouble(service: WatcherService) -> str:
    """What the watcher says stands between it and the cluster; empty when nothing does."""
    return str(service.readiness.notes().get("kubernetes", ""))


def problems(service: WatcherService) -> str:
    """What is wrong with any of the watches."""
    return "\n".join(one["problem"] or "" for one in service.state()["kubernetes"]["feeds"])


def lists_of_pods(service: WatcherService) -> int:
    """How often it has listed them."""
    feeds = service.state()["kubernetes"]["feeds"]
    return sum(one["lists"] for one in feeds if one["selection"].startswith("Pod "))


@asynccontextmanager
async def two_pods(
    server: ApiServer, nats: NatsServer, directory: Path
) -> AsyncIterator[tuple[Pods, WatcherService, PoolReader]]:
    """A watcher of a pool with the pods a and b, and a reader that sees both."""
    async with server.client() as admin:
        pods = Pods(admin, await admin.create_namespace())
        await admin.create(pool_document(), pods.namespace)
        for at, name in enumerate("ab", 1):
            await pods.create(name, f"10.1.0.{at}", labels=LABELS)
        async with (
            watching(nats.url, server, pods.namespace, directory, **IMPATIENT) as service,
            reading(nats.url, pods.namespace) as seen,
        ):
            await seen.sees("a-rank-0", "b-rank-0")
            yield pods, service, seen


async def test_a_killed_api_server_takes_nothing_away_and_changes_after_its_restart_are_seen(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path
) -> None:
    server = await own_apiserver()
    async with two_pods(server, nats, tmp_path) as (pods, service, seen):
        since = len(seen.events)
        await server.kill()
        await eventually(lambda: server.url in trouble(service), "the reason")
        await asyncio.sleep(1.0)
        assert service.readiness.ready, "what it publishes is all that is known"
        assert seen.endpoints == ["a-rank-0", "b-rank-0"]
        await server.start()
        await pods.delete("a")
        await pods.create("c", "10.1.0.3", labels=LABELS)
        await seen.sees("b-rank-0", "c-rank-0", timeout=BACK)
        await eventually(lambda: not trouble(service), "no trouble any more", BACK)
        assert seen.deleted(since) == {f"{pods.namespace}/a-rank-0"}
        assert not came_back(seen.events)


async def test_a_frozen_api_server_takes_nothing_away_and_goes_on_when_it_wakes(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path
) -> None:
    """SIGSTOP: connections stay open, new ones are taken, and nothing is answered."""
    server = await own_apiserver()
    async with two_pods(server, nats, tmp_path) as (pods, service, seen):
        since = len(seen.events)
        server.pause()
        try:
            await eventually(lambda: server.url in trouble(service), "the reason", BACK)
            assert service.readiness.ready
            assert seen.endpoints == ["a-rank-0", "b-rank-0"]
        finally:
            server.resume()
        await pods.report("a", ready=False)
        await seen.sees("b-rank-0", timeout=BACK)
        await eventually(lambda: not trouble(service), "no trouble any more", BACK)
        assert seen.deleted(since) == {f"{pods.namespace}/a-rank-0"}


async def test_a_frozen_api_server_confirms_nothing_before_any_watch_of_it_ends(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path
) -> None:
    """With the time-outs that there are by default: the kernel keeps the connections, so that they look well."""
    server = await own_apiserver()
    async with server.client() as admin:
        pods = Pods(admin, await admin.create_namespace())
        await admin.create(pool_document(), pods.namespace)
        await pods.create("a", "10.1.0.1", labels=LABELS)
        async with (
            watching(nats.url, server, pods.namespace, tmp_path, kubernetes_discovery_interval=1.0) as service,
            reading(nats.url, pods.namespace) as seen,
        ):
            await seen.sees("a-rank-0")
            await eventually(lambda: seen.replica.source_age() < 1.0, "confirmed", BACK)

            def in_touch() -> bool:
                return all(one["in_touch"] for one in service.state()["kubernetes"]["feeds"] if one["served"])

            await eventually(in_touch, "every watch", BACK)
            server.pause()
            try:
                await eventually(lambda: seen.replica.source_age() > 2.5, "the age of what is known", BACK)
                assert in_touch()
            finally:
                server.resume()
            await eventually(lambda: seen.replica.source_age() < 1.0, "confirmed again", 60.0)


async def test_history_that_etcd_has_compacted_is_made_up_for_by_a_new_list(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path
) -> None:
    """Without its cache the server asks etcd, whose answer is 410."""
    server = await own_apiserver(flags=("--watch-cache=false",))
    async with server.client() as admin:
        pods = Pods(admin, await admin.create_namespace())
        await admin.create(pool_document(), pods.namespace)
        for at, name in enumerate("ab", 1):
            await pods.create(name, f"10.1.0.{at}", labels=LABELS)
        # a server that can't be reached would make it list by itself: so the watch has to last until it goes on
        async with behind_a_proxy(nats, server, pods.namespace, tmp_path, kubernetes_inactivity_timeout=3.0) as (
            proxy,
            service,
            seen,
        ):
            await seen.sees("a-rank-0", "b-rank-0")
            lists, since = lists_of_pods(service), len(seen.events)
            proxy.swallow()
            await pods.delete("a")
            await pods.create("c", "10.1.0.3", labels=LABELS)
            await server.compact()
            proxy.forward()
            await seen.sees("b-rank-0", "c-rank-0", timeout=BACK)
            assert lists_of_pods(service) > lists
            assert seen.deleted(since) == {f"{pods.namespace}/a-rank-0"}
            assert "b-rank-0" not in {name.rpartition("/")[2] for name in seen.ever_had(since)}


async def test_a_watch_that_is_cut_again_and_again_during_a_thousand_changes_ends_with_the_right_set_and_no_ghosts(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    async with behind_a_proxy(nats, apiserver, namespace, tmp_path) as (proxy, _, seen):
        await seen.sees()

        async def cut() -> None:
            while True:
                await asyncio.sleep(STEP)
                proxy.cut()

        cutting = asyncio.create_task(cut())
        try:
            changes = await asyncio.gather(*(_change(pods, worker, 84) for worker in range(12)))
        finally:
            cutting.cancel()
        assert sum(changes) >= 1000
        assert proxy.cuts >= 50
        expected = await serving_pods(admin, namespace)
        assert expected
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list", BACK)
        await asyncio.sleep(0.5)
        assert published(seen) == expected
        assert not came_back(seen.events)


async def _change(pods: Pods, worker: int, least: int) -> int:
    """Create, relabel and delete pods, whose names and addresses are used again; how many changes it made. A pod that
    has been seen gone is gone: none becomes unready and ready again."""
    chance = random.Random(worker)
    there: set[int] = set()
    changes = 0
    while changes < least:
        number = chance.randrange(6)
        name = f"w{worker}-{number}"
        if number not in there:
            await pods.create(name, f"10.2.{worker}.{number + 1}", labels=LABELS)
            there.add(number)
            changes += 2  # its creation and its status
        elif chance.random() < 0.5:
            await pods.label(name, {"turn": str(changes)})
            changes += 1
        else:
            await pods.delete(name)
            there.discard(number)
            changes += 1
    return changes


@pytest.mark.parametrize("fault", ["refused", "half-open"])
async def test_a_deletion_that_is_missed_is_noticed_afterwards(
    apiserver: ApiServer,
    admin: Api,
    namespace: str,
    pods: Pods,
    nats: NatsServer,
    tmp_path: Path,
    fault: str,
) -> None:
    """Half-open: the proxy takes everything and passes nothing on, so that only time tells."""
    await admin.create(pool_document(), namespace)
    for at, name in enumerate("abc", 1):
        await pods.create(name, f"10.1.0.{at}", labels=LABELS)
    async with behind_a_proxy(nats, apiserver, namespace, tmp_path) as (proxy, service, seen):
        await seen.sees("a-rank-0", "b-rank-0", "c-rank-0")
        since = len(seen.events)
        if fault == "refused":
            proxy.refuse()
        else:
            proxy.swallow()
        await pods.delete("a")
        await pods.delete("c")
        await pods.create("c", "10.1.0.4", labels=LABELS)
        await eventually(lambda: proxy.url in trouble(service), "the reason", BACK)
        assert seen.endpoints == ["a-rank-0", "b-rank-0", "c-rank-0"]
        assert len(seen.events) == since
        if fault == "refused":
            await proxy.listen()
        else:
            proxy.forward()
        await seen.sees("b-rank-0", "c-rank-0", timeout=BACK)
        await eventually(lambda: seen.addresses["c-rank-0"] == "10.1.0.4:8000", "its new address")
        await eventually(lambda: not trouble(service), "no trouble any more", BACK)


async def test_a_watcher_that_starts_without_an_api_server_withdraws_nothing_and_says_what_it_waits_for(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    for at, name in enumerate("ab", 1):
        await pods.create(name, f"10.1.0.{at}", labels=LABELS)
    proxy = Proxy(apiserver.port, free_port())
    config = str(apiserver.kubeconfig(tmp_path / "proxied", namespace=namespace, url=proxy.url))
    async with reading(nats.url, namespace) as seen:
        async with watching(nats.url, apiserver, namespace, tmp_path):
            await seen.sees("a-rank-0", "b-rank-0")
        since = len(seen.events)
        await pods.delete("a")
        async with watching(nats.url, apiserver, namespace, tmp_path, kubeconfig=config) as service:
            await eventually(lambda: service.leadership.leads, "the lease")
            await eventually(lambda: proxy.url in service.readiness.reasons().get("published", ""), "the reason")
            await asyncio.sleep(1.0)
            assert not service.readiness.ready
            assert seen.endpoints == ["a-rank-0", "b-rank-0"]
            assert len(seen.events) == since
            async with proxy:
                await seen.sees("b-rank-0", timeout=BACK)
                await eventually(lambda: service.readiness.ready, "ready", BACK)
                assert seen.deleted(since) == {f"{namespace}/a-rank-0"}


async def test_rights_that_are_taken_away_leave_the_last_set_and_the_reason_names_verb_and_resource(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    groups = ["inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"]
    resources = ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"]
    everything = {"apiGroups": ["", *groups], "resources": ["pods", *resources], "verbs": ["list", "watch"]}
    token = await admin.service_account("watcher", namespace, rules=[everything])
    binding = await admin.get("rbac.authorization.k8s.io/v1", "RoleBinding", "watcher", namespace)
    short = {"kubernetes_watch_timeout": 2.0}  # rights are looked at when a watch begins
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, token=token, **short) as service,
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("a-rank-0")
        await admin.delete("rbac.authorization.k8s.io/v1", "RoleBinding", "watcher", namespace)
        await eventually(lambda: "forbidden" in trouble(service), "the refusal", BACK)
        await eventually(
            lambda: bool(re.search(r'cannot (watch|list) resource "pods"', problems(service))), "the words"
        )
        await pods.report("a", ready=False)
        await asyncio.sleep(1.0)
        assert seen.endpoints == ["a-rank-0"]
        assert service.readiness.ready
        kept = {key: binding[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}
        await admin.create({**kept, "metadata": {"name": "watcher"}}, namespace)
        await seen.sees(timeout=BACK)
        await eventually(lambda: not trouble(service), "no trouble any more", BACK)


async def test_definitions_that_are_installed_later_are_noticed_and_that_of_the_pool_is_waited_for(
    own_apiserver: OwnApiServer, nats: NatsServer, tmp_path: Path
) -> None:
    server = await own_apiserver(crds=())
    async with server.client() as admin:
        pods = Pods(admin, await admin.create_namespace())
        await pods.create("a", "10.1.0.1", labels=LABELS)
        async with (
            watching(nats.url, server, pods.namespace, tmp_path) as service,
            reading(nats.url, pods.namespace) as seen,
        ):
            missing = f"InferencePool isn't installed, and {pods.namespace}/{POOL} is one"
            await eventually(lambda: missing in service.readiness.reasons().get("published", ""), "the reason", BACK)
            assert missing in trouble(service)
            await asyncio.sleep(1.0)
            assert not service.readiness.ready
            assert not seen.replica.facts()
            pools = [path for path in CRDS if "inferencepool" in path.name.lower()]
            assert pools
            assert len(pools) < len(CRDS)
            await admin.install(pools)
            await admin.create(pool_document(), pods.namespace)
            await seen.sees("a-rank-0", timeout=BACK)
            await eventually(lambda: service.readiness.ready, "ready", BACK)
            await eventually(lambda: not trouble(service), "no trouble: the others needn't be there", BACK)
            await admin.install([path for path in CRDS if path not in pools])
            objective = {
                "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
                "kind": "InferenceObjective",
                "metadata": {"name": "premium"},
                "spec": {"poolRef": {"name": POOL}, "priority": 10},
            }
            await admin.create(objective, pods.namespace)
            await eventually(lambda: "premium" in seen.facts("objective"), "the objective", BACK)
            definition = "inferenceobjectives.inference.networking.x-k8s.io"
            await admin.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", definition, "")
            await eventually(lambda: not seen.facts("objective"), "no objective", BACK)
            await eventually(lambda: not trouble(service), "no trouble", BACK)
            assert seen.endpoints == ["a-rank-0"]


async def test_a_thousand_pods_at_once_are_all_seen_each_published_once(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    count, limit = 1000, asyncio.Semaphore(24)

    async def one(make: Callable[[], Awaitable[object]]) -> None:
        async with limit:
            await make()

    async with watching(nats.url, apiserver, namespace, tmp_path) as service, reading(nats.url, namespace) as seen:
        await seen.sees()
        publisher = service.leadership.publisher
        await publisher.wait_published(BACK)
        written, establishments = publisher.written, publisher.establishments
        await asyncio.gather(
            *(
                one(lambda at=at: pods.create(f"p{at:04}", f"10.3.{at >> 8}.{at & 255}", labels=LABELS))  # type: ignore[misc]
                for at in range(count)
            )
        )
        expected = await serving_pods(admin, namespace)
        assert len(expected) == count
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list", BACK)
        await publisher.wait_published(BACK)  # a reader may know of a fact before its writer
        # what NATS didn't acknowledge in time is written again, and nothing else
        assert publisher.written - written == count or publisher.establishments > establishments
