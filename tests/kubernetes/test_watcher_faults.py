"""The watcher against a real API server, with everything that happens to it: what is published stays what the cluster
last said, and becomes what it says as soon as anybody can know."""

import asyncio
import re
from typing import Any

import pytest

from services.watcher.app import WatcherService
from tests.kubernetes.apiserver import CRDS
from tests.kubernetes.definitions import EXPERIMENTAL, kinds
from tests.kubernetes.said import OBJECTIVE, READS, referring
from tests.kubernetes.watching import LABELS, POOL, Site, pool_document
from tests.proxy import Proxy
from tests.waiting import eventually

on_victim = pytest.mark.asyncio(loop_scope="session")
IMPATIENT: dict[str, Any] = {"kubernetes_inactivity_timeout": 1.0, "kubernetes_request_timeout": 2.0}
"""So that silence is noticed while a test waits."""
A_WHILE = 0.5
"""Seconds in which what shouldn't happen would have happened."""


def trouble(service: WatcherService) -> str:
    """What the watcher says stands between it and the cluster; empty when nothing does."""
    return str(service.readiness.notes().get("kubernetes", ""))


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


@on_victim
async def test_history_that_etcd_has_compacted_is_made_up_for_by_a_new_list(victims_site: Site) -> None:
    """Without its cache the server asks etcd, whose answer is 410."""
    site = victims_site
    await site.serve("a", "b")
    # a server that can't be reached would make it list by itself: so the watch has to last until it goes on
    async with (
        Proxy(site.server.port) as proxy,
        site.watching(url=proxy.url("https"), kubernetes_inactivity_timeout=3.0) as service,
        site.reading() as seen,
    ):
        await seen.sees("a-rank-0", "b-rank-0")

        def lists() -> int:
            feeds = service.state()["kubernetes"]["feeds"]
            return sum(feed["lists"] for feed in feeds if feed["selection"].startswith("Pod "))

        before, since = lists(), len(seen.events)
        proxy.swallow()
        await site.pods.delete("a")
        await site.pods.create("c", "10.1.0.3", labels=LABELS)
        await site.server.compact()
        proxy.forward()
        await seen.sees("b-rank-0", "c-rank-0")
        assert lists() > before
        assert seen.deleted(since) == {f"{site.namespace}/a-rank-0"}
        assert "b-rank-0" not in {name.rpartition("/")[2] for name in seen.ever_had(since)}


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
        words = re.compile(r'cannot (watch|list) resource "pods"')
        await eventually(
            lambda: any(words.search(feed["problem"] or "") for feed in service.state()["kubernetes"]["feeds"]),
            "the words",
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
        by_name = kinds(CRDS)
        await site.admin.install(
            [definition for name, definition in by_name.items() if name.startswith("inferencepools.")]
        )
        await site.create(pool_document())
        await seen.sees("a-rank-0")
        await eventually(lambda: service.readiness.ready, "ready")
        await eventually(lambda: not trouble(service), "no trouble: the others needn't be there")
        objectives = [by_name[f"inferenceobjectives.{EXPERIMENTAL}"]]
        await site.admin.install(objectives)
        await site.create(referring(OBJECTIVE, "premium", priority=10))
        await eventually(lambda: "premium" in seen.facts("objective"), "the objective")
        await site.admin.uninstall(objectives)
        await eventually(lambda: not seen.facts("objective"), "no objective")
        await eventually(lambda: not trouble(service), "no trouble")
        assert seen.endpoints == ["a-rank-0"]
