"""The watcher against a real API server, with everything that happens to it: what is published stays what the cluster
last said, and becomes what it says as soon as anybody can know."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.watcher.app import WatcherService
from tests.kubernetes.apiserver import CRDS
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import OBJECTIVE, READS, referring
from tests.kubernetes.watching import LABELS, POOL, PoolReader, Site, came_back, pool_document, published, serving_pods
from tests.proxy import Proxy
from tests.soak.promises import soaking
from tests.waiting import eventually

on_victim = pytest.mark.asyncio(loop_scope="session")
IMPATIENT: dict[str, Any] = {"kubernetes_inactivity_timeout": 1.0, "kubernetes_request_timeout": 2.0}
"""So that silence is noticed while a test waits."""
CUT_EVERY = 0.15
"""Seconds from one cut to the next."""
MANY = 1000 if soaking() else 200
"""Pods, or changes."""
A_WHILE = 0.5
"""Seconds in which what shouldn't happen would have happened."""


@asynccontextmanager
async def behind_a_proxy(site: Site, **settings: Any) -> AsyncIterator[tuple[Proxy, WatcherService, PoolReader]]:
    """A watcher whose way to the API server is the test's, and a reader of what it publishes."""
    async with (
        Proxy(site.server.port) as proxy,
        site.watching(url=proxy.url("https"), **{**IMPATIENT, **settings}) as service,
        site.reading() as seen,
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


@on_victim
async def test_a_killed_api_server_takes_nothing_away_and_changes_after_its_restart_are_seen(
    victims_site: Site,
) -> None:
    site = victims_site
    await site.serve("a", "b")
    async with site.watching(**IMPATIENT) as service, site.reading() as seen:
        await seen.sees("a-rank-0", "b-rank-0")
        since = len(seen.events)
        await site.server.kill()
        await eventually(lambda: site.server.url in trouble(service), "the reason")
        await asyncio.sleep(A_WHILE)
        assert service.readiness.ready, "what it publishes is all that is known"
        assert seen.endpoints == ["a-rank-0", "b-rank-0"]
        await site.server.start()
        await site.pods.delete("a")
        await site.pods.create("c", "10.1.0.3", labels=LABELS)
        await seen.sees("b-rank-0", "c-rank-0")
        await eventually(lambda: not trouble(service), "no trouble any more")
        assert seen.deleted(since) == {f"{site.namespace}/a-rank-0"}
        assert not came_back(seen.events)


@on_victim
async def test_a_frozen_api_server_takes_nothing_away_and_confirms_nothing_before_any_watch_of_it_ends(
    victims_site: Site,
) -> None:
    """SIGSTOP, with the default time-outs: the kernel keeps the connections, so that they look well."""
    site = victims_site
    await site.serve("a", "b")
    async with site.watching(kubernetes_discovery_interval=0.5) as service, site.reading() as seen:
        await seen.sees("a-rank-0", "b-rank-0")
        since = len(seen.events)

        def in_touch() -> bool:
            return all(one["in_touch"] for one in service.state()["kubernetes"]["feeds"] if one["served"])

        await eventually(lambda: in_touch() and seen.replica.source_age() < 1.0, "confirmed")
        site.server.pause()
        try:
            await eventually(lambda: seen.replica.source_age() > 2.0, "the age of what is known")
            assert in_touch()
            assert service.readiness.ready
            assert seen.endpoints == ["a-rank-0", "b-rank-0"]
        finally:
            site.server.resume()
        await site.pods.report("a", ready=False)
        await seen.sees("b-rank-0")
        await eventually(lambda: seen.replica.source_age() < 1.0 and not trouble(service), "confirmed again")
        assert seen.deleted(since) == {f"{site.namespace}/a-rank-0"}


@on_victim
async def test_history_that_etcd_has_compacted_is_made_up_for_by_a_new_list(victims_site: Site) -> None:
    """Without its cache the server asks etcd, whose answer is 410."""
    site = victims_site
    await site.serve("a", "b")
    # a server that can't be reached would make it list by itself: so the watch has to last until it goes on
    async with behind_a_proxy(site, kubernetes_inactivity_timeout=3.0) as (proxy, service, seen):
        await seen.sees("a-rank-0", "b-rank-0")
        lists, since = lists_of_pods(service), len(seen.events)
        proxy.swallow()
        await site.pods.delete("a")
        await site.pods.create("c", "10.1.0.3", labels=LABELS)
        await site.server.compact()
        proxy.forward()
        await seen.sees("b-rank-0", "c-rank-0")
        assert lists_of_pods(service) > lists
        assert seen.deleted(since) == {f"{site.namespace}/a-rank-0"}
        assert "b-rank-0" not in {name.rpartition("/")[2] for name in seen.ever_had(since)}


@pytest.mark.soak
async def test_a_watch_that_is_cut_again_and_again_during_many_changes_ends_with_the_right_set_and_no_ghosts(
    site: Site,
) -> None:
    await site.serve()
    async with behind_a_proxy(site) as (proxy, _, seen):
        await seen.sees()

        async def cut() -> None:
            while True:
                await asyncio.sleep(CUT_EVERY)
                proxy.cut()

        cutting = asyncio.create_task(cut())
        try:
            await asyncio.gather(*(_change(site.pods, worker, MANY // 8) for worker in range(8)))
            await eventually(lambda: proxy.cuts >= 10, "cuts")
        finally:
            cutting.cancel()
        expected = await serving_pods(site.admin, site.namespace)
        assert expected
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list")
        await asyncio.sleep(A_WHILE)
        assert published(seen) == expected
        assert not came_back(seen.events)


async def _change(pods: Pods, worker: int, least: int) -> None:
    """Create, relabel and delete pods, whose names and addresses are used again. A pod that has been seen gone is gone:
    none becomes unready and ready again."""
    chance = random.Random(worker)
    there: set[int] = set()
    for turn in range(least):
        number = chance.randrange(6)
        name = f"w{worker}-{number}"
        if number not in there:
            await pods.create(name, f"10.2.{worker}.{number + 1}", labels=LABELS)
            there.add(number)
        elif chance.random() < 0.5:
            await pods.label(name, {"turn": str(turn)})
        else:
            await pods.delete(name)
            there.discard(number)


async def test_a_deletion_that_is_missed_on_a_half_open_connection_is_noticed_afterwards(site: Site) -> None:
    """The proxy takes everything and passes nothing on, so that only time tells."""
    await site.serve("a", "b", "c")
    async with behind_a_proxy(site) as (proxy, service, seen):
        await seen.sees("a-rank-0", "b-rank-0", "c-rank-0")
        since = len(seen.events)
        proxy.swallow()
        await site.pods.delete("a")
        await site.pods.delete("c")
        await site.pods.create("c", "10.1.0.4", labels=LABELS)
        await eventually(lambda: proxy.url("https") in trouble(service), "the reason")
        assert seen.endpoints == ["a-rank-0", "b-rank-0", "c-rank-0"]
        assert len(seen.events) == since
        proxy.forward()
        await seen.sees("b-rank-0", "c-rank-0")
        await eventually(lambda: seen.addresses["c-rank-0"] == "10.1.0.4:8000", "its new address")
        await eventually(lambda: not trouble(service), "no trouble any more")


async def test_a_watcher_that_starts_without_an_api_server_withdraws_nothing_and_says_what_it_waits_for(
    site: Site,
) -> None:
    await site.serve("a", "b")
    async with Proxy(site.server.port) as proxy, site.reading() as seen:
        proxy.refuse()
        url = proxy.url("https")
        async with site.watching():
            await seen.sees("a-rank-0", "b-rank-0")
        since = len(seen.events)
        await site.pods.delete("a")
        async with site.watching(url=url) as service:
            await eventually(lambda: service.leadership.leads, "the lease")
            await eventually(lambda: url in service.readiness.reasons().get("published", ""), "the reason")
            await asyncio.sleep(A_WHILE)
            assert not service.readiness.ready
            assert seen.endpoints == ["a-rank-0", "b-rank-0"]
            assert len(seen.events) == since
            await proxy.listen()
            await seen.sees("b-rank-0")
            await eventually(lambda: service.readiness.ready, "ready")
            assert seen.deleted(since) == {f"{site.namespace}/a-rank-0"}


async def test_rights_that_are_taken_away_leave_the_last_set_and_the_reason_names_verb_and_resource(
    site: Site,
) -> None:
    await site.serve("a")
    binding = ("rbac.authorization.k8s.io/v1", "RoleBinding")
    token = await site.admin.service_account("watcher", site.namespace, rules=READS)
    bound = await site.admin.get(*binding, "watcher", site.namespace)
    # rights are looked at when a watch begins
    async with site.watching(token=token, kubernetes_watch_timeout=1.0) as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await site.delete(binding, "watcher")
        await eventually(lambda: "forbidden" in trouble(service), "the refusal")
        await eventually(
            lambda: bool(re.search(r'cannot (watch|list) resource "pods"', problems(service))), "the words"
        )
        await site.pods.report("a", ready=False)
        await asyncio.sleep(A_WHILE)
        assert seen.endpoints == ["a-rank-0"]
        assert service.readiness.ready
        kept = {key: bound[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}
        await site.create({**kept, "metadata": {"name": "watcher"}})
        await seen.sees()
        await eventually(lambda: not trouble(service), "no trouble any more")


@on_victim
async def test_definitions_that_are_installed_later_are_noticed_and_that_of_the_pool_is_waited_for(
    victims_site: Site,
) -> None:
    site = victims_site
    await site.admin.uninstall(CRDS)
    await site.pods.create("a", "10.1.0.1", labels=LABELS)
    async with site.watching() as service, site.reading() as seen:
        missing = f"InferencePool isn't installed, and {site.namespace}/{POOL} is one"
        await eventually(lambda: missing in service.readiness.reasons().get("published", ""), "the reason")
        await eventually(lambda: missing in trouble(service), "the note")
        await asyncio.sleep(A_WHILE)
        assert not service.readiness.ready
        assert not seen.replica.facts()
        pools = [path for path in CRDS if "inferencepool" in path.name.lower()]
        await site.admin.install(pools)
        await site.create(pool_document())
        await seen.sees("a-rank-0")
        await eventually(lambda: service.readiness.ready, "ready")
        await eventually(lambda: not trouble(service), "no trouble: the others needn't be there")
        objectives = [path for path in CRDS if path.name == "inferenceobjectives-x-k8s.yaml"]
        await site.admin.install(objectives)
        await site.create(referring(OBJECTIVE, "premium", priority=10))
        await eventually(lambda: "premium" in seen.facts("objective"), "the objective")
        await site.admin.uninstall(objectives)
        await eventually(lambda: not seen.facts("objective"), "no objective")
        await eventually(lambda: not trouble(service), "no trouble")
        assert seen.endpoints == ["a-rank-0"]


@pytest.mark.soak
async def test_many_pods_at_once_are_all_seen_each_published_once(site: Site) -> None:
    await site.serve()
    limit = asyncio.Semaphore(24)

    async def pod(at: int) -> None:
        async with limit:
            await site.pods.create(f"p{at:04}", f"10.3.{at >> 8}.{at & 255}", labels=LABELS)

    async with site.watching() as service, site.reading() as seen:
        await seen.sees()
        publisher = service.leadership.publisher
        await publisher.wait_published(60.0)
        written, establishments = publisher.written, publisher.establishments
        await asyncio.gather(*map(pod, range(MANY)))
        expected = await serving_pods(site.admin, site.namespace)
        assert len(expected) == MANY
        await eventually(lambda: seen.replica.synced and published(seen) == expected, "the API's list")
        await publisher.wait_published(60.0)  # a reader may know of a fact before its writer
        # what NATS didn't acknowledge in time is written again, and nothing else
        assert publisher.written - written == MANY or publisher.establishments > establishments
        before = len(seen.events)
        await site.pods.annotate("p0001", {"note": "nothing that matters"})
        await asyncio.sleep(A_WHILE)
        assert len(seen.events) == before
