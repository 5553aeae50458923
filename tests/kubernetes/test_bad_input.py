"""What the API server takes and the watcher refuses: through older or looser definitions than `definitions`, here those
without rules for `spec`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kubernetes.api import Api, ApiError, Document
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.definitions import loosened
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import OBJECTIVE, POOLS, event, referring
from tests.kubernetes.watching import LABELS, POOL, Site, pool_document
from tests.nats import NatsServer
from tests.waiting import eventually


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loose(fragile: ApiServer) -> AsyncIterator[ApiServer]:
    """A server whose definitions take any `spec`."""
    async with fragile.client() as admin:
        await admin.install([*map(loosened, CRDS)])
        for document in (referring(OBJECTIVE, "any", odd=1), {**pool_document("any"), "spec": {"odd": 1}}):
            await eventually(lambda document=document: _taken(admin, document), "the definition is in force")  # type: ignore[misc]
        yield fragile
        await admin.install(CRDS)


async def _taken(admin: Api, document: Document) -> bool:
    try:
        await admin.apply(document, dry_run=True)
    except ApiError:
        return False
    return True


@pytest.fixture
async def site(loose: ApiServer, nats: NatsServer, tmp_path: Path) -> AsyncIterator[Site]:
    """A namespace of that server, with a pool and a pod of it."""
    async with loose.client() as admin:
        made = Site(loose, admin, await admin.create_namespace(), nats, tmp_path)
        await made.serve("a")
        yield made


async def test_what_is_refused_when_watchers_start_keeps_what_was_published(site: Site) -> None:
    await site.create(referring(OBJECTIVE, "premium", priority=10))
    async with site.reading() as seen:
        async with site.watching():
            await seen.sees("a-rank-0")
            await eventually(lambda: "premium" in seen.facts("objective"), "the objective")
        await site.patch(POOLS, POOL, {"targetPorts": [{"number": 0}]})
        await site.patch(OBJECTIVE, "premium", {"priority": "high"})
        since, epoch = len(seen.events), seen.replica.epoch
        async with site.watching() as service:
            await eventually(lambda: seen.replica.epoch > epoch, "another leader")
            await eventually(lambda: "targetPorts" in service.readiness.reasons().get("published", ""), "the reason")
            await eventually(lambda: seen.replica.source_age() > 0.5, "their age")
            assert seen.endpoints == ["a-rank-0"]
            assert seen.events[since:] == []
            await site.pods.create("b", "10.1.0.2", labels=LABELS)
            await site.patch(POOLS, POOL, {"targetPorts": [{"number": 8000}]})
            await seen.sees("a-rank-0", "b-rank-0")
            await eventually(lambda: service.readiness.ready, "ready")
            assert seen.deleted(since) == set()
            assert seen.facts("objective")["premium"].priority == 10  # type: ignore[union-attr]
            await site.delete(OBJECTIVE, "premium")
            await eventually(lambda: not seen.facts("objective"), "its end")


async def test_a_pool_that_isnt_known_is_neither_empty_nor_in_the_way_of_another(site: Site) -> None:
    other = await site.admin.create_namespace()
    await site.admin.create(pool_document("other", ports=(0,)), other)
    pools = (f"{site.namespace}/{POOL}", f"{other}/other")
    async with (
        site.watching(pools=pools) as service,
        site.reading() as seen,
        site.reading("other", other) as theirs,
    ):
        await seen.sees("a-rank-0")
        refused = await event(site.admin, other, "ResourceRefused")
        assert refused["note"] == "spec.targetPorts[0].number: 0 is below 1"
        assert f"{other}/other" in service.readiness.reasons()["published"]
        assert not theirs.replica.synced, "nobody knows what it is, so nobody says that it is empty"
        await site.admin.patch(*POOLS, "other", {"spec": {"targetPorts": [{"number": 8000}]}}, other)
        await Pods(site.admin, other).create("c", "10.1.0.3", labels=LABELS)
        await theirs.sees("c-rank-0")
        await eventually(lambda: service.readiness.ready, "ready")
