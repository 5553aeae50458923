"""Resources that can't be used: each is refused with a condition or an Event that names the field, the rest goes on.

The API server refuses most of them by the resources' definitions. What reaches a watcher all the same comes through
older or looser definitions; here they are those of `crds` without rules for `spec`. What is refused, and in which
words: tests/unit/services/watcher/test_resources.py.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import MODEL, OBJECTIVE, POOLS, REWRITE, event, referring, says
from tests.kubernetes.watching import LABELS, POOL, Site, pool_document
from tests.nats import NatsServer
from tests.waiting import eventually


def _loosened(path: Path, directory: Path) -> Path:
    definition = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    written = directory / path.name
    written.write_text(yaml.safe_dump(definition))
    return written


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loose(fragile: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """A server whose definitions take any `spec`."""
    directory = tmp_path_factory.mktemp("loose")
    anything = {"number": "any"}
    documents = [
        *(referring(kind, "any", odd=anything) for kind in (OBJECTIVE, REWRITE, MODEL)),
        {**pool_document("any"), "spec": {"odd": anything}},
    ]
    async with fragile.client() as admin:
        await admin.install([_loosened(path, directory) for path in CRDS])
        for document in documents:
            await eventually(lambda document=document: _taken(admin, document), "the definition is in force")  # type: ignore[misc]
        yield fragile
        await admin.install(CRDS)


async def _taken(admin: Api, document: Any) -> bool:
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


async def test_a_pool_with_a_bad_port_is_refused_and_serves_on_with_its_last_good_ones(site: Site) -> None:
    says_what = "spec.targetPorts[0].number: 70000 is above 65535"
    async with site.watching() as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await site.patch(POOLS, POOL, {"targetPorts": [{"number": 70000}]})
        found = await event(site.admin, site.namespace, "ResourceRefused")
        assert (found["regarding"]["kind"], found["note"]) == ("InferencePool", says_what)
        assert says_what in service.readiness.notes()["files"]
        await site.pods.create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        assert seen.addresses["b-rank-0"] == "10.1.0.2:8000"


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
        await event(site.admin, other, "ResourceRefused")
        await site.pods.create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        assert not service.readiness.ready
        assert f"{other}/other" in service.readiness.reasons()["published"]
        assert not theirs.replica.synced, "nobody knows what it is, so nobody says that it is empty"
        await site.admin.patch(*POOLS, "other", {"spec": {"targetPorts": [{"number": 8000}]}}, other)
        await Pods(site.admin, other).create("c", "10.1.0.3", labels=LABELS)
        await theirs.sees("c-rank-0")
        await eventually(lambda: service.readiness.ready, "ready")


async def test_what_is_refused_has_a_condition_and_an_event_and_is_accepted_when_it_is_corrected(site: Site) -> None:
    zero = [{"modelRewrite": "base-v2", "weight": 0}]
    await site.create(
        referring(REWRITE, "rollout", rules=[{"targets": zero * 2}]),
        referring(MODEL, "chat", modelName="chat", targetModels=[{"name": "base", "weight": 0}]),
        referring(OBJECTIVE, "premium", priority="high"),
        referring(OBJECTIVE, "good", priority=10),
    )
    says_what = {
        "rollout": "spec.rules[0].targets[0].weight: 0 is below 1; spec.rules[0].targets[1].weight: 0 is below 1",
        "chat": "spec.targetModels[0].weight: 0 is below 1",
        "premium": "spec.priority: 'high'",
    }
    async with site.watching(), site.reading() as seen:
        for kind, name in ((REWRITE, "rollout"), (MODEL, "chat"), (OBJECTIVE, "premium")):
            condition = await says(site.admin, kind, name, site.namespace, "Invalid")
            assert condition["status"] == "False"
            assert condition["message"].startswith(says_what[name])
        await seen.sees("a-rank-0")
        await says(site.admin, OBJECTIVE, "good", site.namespace, "Accepted")

        async def told() -> bool:
            found = (await site.admin.list("events.k8s.io/v1", "Event", site.namespace))["items"]
            return {one["regarding"]["name"] for one in found if one["reason"] == "ResourceRefused"} == {*says_what}

        await eventually(told, "Events")
        await site.patch(OBJECTIVE, "premium", {"priority": 5})
        assert (await says(site.admin, OBJECTIVE, "premium", site.namespace, "Accepted"))["status"] == "True"
        await eventually(lambda: "premium" in seen.facts("objective"), "the objective")
