"""Resources that can't be used: each is refused with a condition or an Event that names the field, the rest goes on.

The API server refuses most of them by the resources' definitions. What reaches a watcher all the same comes through
older or looser definitions; here they are those of `crds` without rules for `spec`.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.apiserver import CRDS, ApiServer
from tests.kubernetes.peers import Peers
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import (
    EXPERIMENTAL,
    MODEL,
    OBJECTIVE,
    POOLS,
    REWRITE,
    accepted,
    event,
    events,
    referring,
    says,
)
from tests.kubernetes.watching import LABELS, POOL, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")

TARGET = {"modelRewrite": "base-v2"}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loose(kubernetes_peers: Peers, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApiServer]:
    """A server whose definitions take any `spec`."""
    directory = tmp_path_factory.mktemp("loose")
    async with ApiServer(kubernetes_peers, directory / "apiserver") as server:
        async with server.client() as admin:
            await admin.install([_loosened(path, directory) for path in CRDS])
        yield server


def _loosened(path: Path, directory: Path) -> Path:
    definition = yaml.safe_load(path.read_text())
    for version in definition["spec"]["versions"]:
        schema = version["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    written = directory / path.name
    written.write_text(yaml.safe_dump(definition))
    return written


@pytest.fixture
async def free(loose: ApiServer) -> AsyncIterator[Api]:
    """A client of that server that may do everything."""
    async with loose.client() as client:
        yield client


@pytest.fixture
async def place(free: Api) -> str:
    """A namespace of that server for this test alone, with a pool and a pod of it."""
    namespace = await free.create_namespace()
    await free.create(pool_document(), namespace)
    await Pods(free, namespace).create("a", "10.1.0.1", labels=LABELS)
    return namespace


# Pools


@pytest.mark.parametrize(
    ("ports", "says_what"),
    [
        ([], "spec.targetPorts: empty; the port at which the model servers serve is needed"),
        ([{"number": 0}], "spec.targetPorts[0].number: 0 is below 1"),
        ([{"number": 70000}], "spec.targetPorts[0].number: 70000 is above 65535"),
    ],
    ids=["none", "0", "70000"],
)
async def test_a_pool_with_bad_ports_is_refused_and_serves_on_with_its_last_good_ones(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path, ports: list[object], says_what: str
) -> None:
    await free.create(referring(OBJECTIVE, "premium", priority=10), place)
    async with watching(nats.url, loose, place, tmp_path) as service, reading(nats.url, place) as seen:
        await seen.sees("a-rank-0")
        await free.patch(*POOLS, POOL, {"spec": {"targetPorts": ports}}, place)
        found = await event(free, place, "ResourceRefused")
        assert found["regarding"]["kind"] == "InferencePool"
        assert found["note"] == says_what
        assert says_what in service.readiness.notes()["files"]
        await Pods(free, place).create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        assert seen.addresses["b-rank-0"] == "10.1.0.2:8000"
        await says(free, OBJECTIVE, "premium", place, "Accepted")


async def test_a_pool_that_was_bad_from_the_start_is_refused_and_the_other_pool_serves(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    await free.create(pool_document("broken", ports=(0,)), place)
    several: dict[str, Any] = {"pools": (f"{place}/broken", f"{place}/{POOL}")}
    async with watching(nats.url, loose, place, tmp_path, **several), reading(nats.url, place) as seen:
        found = await event(free, place, "ResourceRefused")
        assert (found["regarding"]["name"], found["note"]) == ("broken", "spec.targetPorts[0].number: 0 is below 1")
        await seen.sees("a-rank-0")


async def test_a_pool_that_is_refused_when_watchers_start_keeps_its_published_endpoints(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    async with reading(nats.url, place) as seen:
        async with watching(nats.url, loose, place, tmp_path):
            await seen.sees("a-rank-0")
        await free.patch(*POOLS, POOL, {"spec": {"targetPorts": [{"number": 0}]}}, place)
        since, epoch = len(seen.events), seen.replica.epoch
        async with watching(nats.url, loose, place, tmp_path) as service:
            await eventually(lambda: seen.replica.epoch > epoch and seen.replica.age() < 0.5, "another leader")
            await eventually(lambda: "targetPorts" in service.readiness.reasons().get("published", ""), "the reason")
            await event(free, place, "ResourceRefused")
            await eventually(lambda: seen.replica.source_age() > 0.5, "their age")
            assert seen.endpoints == ["a-rank-0"]
            assert seen.events[since:] == []
            await Pods(free, place).create("b", "10.1.0.2", labels=LABELS)
            await free.patch(*POOLS, POOL, {"spec": {"targetPorts": [{"number": 8000}]}}, place)
            await seen.sees("a-rank-0", "b-rank-0")
            await eventually(lambda: service.readiness.ready, "ready")
            assert seen.deleted(since) == set()


async def test_an_objective_that_is_refused_when_watchers_start_keeps_what_was_published_of_it(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    await free.create(referring(OBJECTIVE, "premium", priority=10), place)
    async with reading(nats.url, place) as seen:
        async with watching(nats.url, loose, place, tmp_path):
            await eventually(lambda: "premium" in seen.facts("objective"), "the objective")
        await free.patch(*OBJECTIVE, "premium", {"spec": {"priority": "high"}}, place)
        epoch, since = seen.replica.epoch, len(seen.events)
        async with watching(nats.url, loose, place, tmp_path) as service:
            await eventually(lambda: seen.replica.epoch > epoch and seen.replica.age() < 0.5, "another leader")
            await eventually(lambda: service.readiness.ready, "ready")
            await Pods(free, place).create("b", "10.1.0.2", labels=LABELS)
            await seen.sees("a-rank-0", "b-rank-0")
            assert seen.facts("objective")["premium"].priority == 10  # type: ignore[union-attr]
            await free.delete(*OBJECTIVE, "premium", place)
            await eventually(lambda: not seen.facts("objective"), "its end")
            assert [one for one in seen.events[since:] if "objective" in getattr(one, "key", "")] == seen.events[-1:]


async def test_a_pool_that_isnt_known_is_neither_empty_nor_in_the_way_of_another(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    other = await free.create_namespace()
    await free.create(pool_document("other", ports=(0,)), other)
    several: dict[str, Any] = {"pools": (f"{place}/{POOL}", f"{other}/other")}
    async with (
        watching(nats.url, loose, place, tmp_path, **several) as service,
        reading(nats.url, place) as seen,
        reading(nats.url, other, "other") as theirs,
    ):
        await seen.sees("a-rank-0")
        await Pods(free, place).create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        assert not service.readiness.ready
        assert f"{other}/other" in service.readiness.reasons()["published"]
        await asyncio.sleep(0.5)
        assert not theirs.replica.synced, "nobody knows what it is, so nobody says that it is empty"
        await free.patch(*POOLS, "other", {"spec": {"targetPorts": [{"number": 8000}]}}, other)
        await Pods(free, other).create("c", "10.1.0.3", labels=LABELS)
        await theirs.sees("c-rank-0")
        await eventually(lambda: service.readiness.ready, "ready")


async def test_a_pool_with_an_unknown_field_is_refused(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    async with watching(nats.url, loose, place, tmp_path), reading(nats.url, place) as seen:
        await seen.sees("a-rank-0")
        await free.patch(*POOLS, POOL, {"spec": {"targetPort": 8000}}, place)
        found = await event(free, place, "ResourceRefused")
        assert found["note"] == "spec.targetPort: unknown field; did you mean 'targetPorts'?"
        await seen.sees("a-rank-0")


# What refers to them


@pytest.mark.parametrize(
    ("kind", "spec", "says_what"),
    [
        (REWRITE, {"rules": [{"targets": []}]}, "spec.rules[0].targets: empty; at least one model is expected"),
        (REWRITE, {"rules": [{"targets": [{**TARGET, "weight": 0}]}]}, "spec.rules[0].targets[0].weight: 0 is below 1"),
        (
            REWRITE,
            {"rules": [{"targets": [{**TARGET, "weight": 0}, {**TARGET, "weight": 0}]}]},
            "spec.rules[0].targets[0].weight: 0 is below 1; spec.rules[0].targets[1].weight: 0 is below 1",
        ),
        (OBJECTIVE, {"priorty": 1}, "spec.priorty: unknown field; did you mean 'priority'?"),
        (
            MODEL,
            {"modelName": "chat", "targetModels": [{"name": "base", "weight": 0}]},
            "spec.targetModels[0].weight: 0 is below 1",
        ),
    ],
    ids=["empty-targets", "weight-0", "weights-0", "unknown-field", "model-weight-0"],
)
async def test_what_is_refused_has_a_condition_and_an_event_and_the_rest_goes_on(
    loose: ApiServer,
    free: Api,
    place: str,
    nats: NatsServer,
    tmp_path: Path,
    kind: tuple[str, str],
    spec: dict[str, Any],
    says_what: str,
) -> None:
    await free.create(referring(kind, "bad", **spec), place)
    async with watching(nats.url, loose, place, tmp_path), reading(nats.url, place) as seen:
        condition = await says(free, kind, "bad", place, "Invalid")
        assert (condition["status"], condition["message"]) == ("False", says_what)
        found = await event(free, place, "ResourceRefused")
        assert (found["regarding"]["name"], found["note"]) == ("bad", says_what)
        await seen.sees("a-rank-0")
        await free.create(referring(OBJECTIVE, "premium", priority=10), place)
        await says(free, OBJECTIVE, "premium", place, "Accepted")
        await eventually(lambda: "premium" in seen.facts("objective"), "the good one")
        await free.delete(EXPERIMENTAL, kind[1], "bad", place)


async def test_what_is_corrected_is_accepted(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    await free.create(referring(OBJECTIVE, "premium", priority="high"), place)
    async with watching(nats.url, loose, place, tmp_path), reading(nats.url, place) as seen:
        condition = await says(free, OBJECTIVE, "premium", place, "Invalid")
        assert condition["message"].startswith("spec.priority: 'high'")
        await free.patch(*OBJECTIVE, "premium", {"spec": {"priority": 5}}, place)
        condition = await says(free, OBJECTIVE, "premium", place, "Accepted")
        assert condition["status"] == "True"
        await eventually(lambda: "premium" in seen.facts("objective"), "the objective")


async def test_a_bad_resource_of_another_pool_is_not_ours_to_refuse(
    loose: ApiServer, free: Api, place: str, nats: NatsServer, tmp_path: Path
) -> None:
    await free.create(pool_document("another"), place)
    await free.create(referring(OBJECTIVE, "bad", "another", priority="high"), place)
    await free.create(referring(OBJECTIVE, "premium"), place)
    async with watching(nats.url, loose, place, tmp_path) as service:
        await says(free, OBJECTIVE, "premium", place, "Accepted")
        assert await accepted(free, OBJECTIVE, "bad", place) == {}
        assert await events(free, place) == []
        assert service.readiness.notes() == {}


# What the definitions of today don't let through


@pytest.mark.parametrize("ports", [[], [{"number": 0}], [{"number": 70000}]], ids=["none", "0", "70000"])
async def test_the_definitions_refuse_a_pool_with_bad_ports(admin: Api, namespace: str, ports: list[object]) -> None:
    with pytest.raises(ApiError, match="targetPorts") as raised:
        await admin.create(pool_document(targetPorts=ports), namespace)
    assert raised.value.status == 422


@pytest.mark.parametrize(
    "targets", [[], [{**TARGET, "weight": 0}, {**TARGET, "weight": 0}]], ids=["empty-targets", "weights-0"]
)
async def test_the_definitions_refuse_a_rewrite_without_targets_or_weights(
    admin: Api, namespace: str, targets: list[object]
) -> None:
    with pytest.raises(ApiError, match="targets") as raised:
        await admin.create(referring(REWRITE, "bad", rules=[{"targets": targets}]), namespace)
    assert raised.value.status == 422


async def test_the_definitions_drop_unknown_fields_and_the_rest_is_accepted(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    made = await admin.create(referring(OBJECTIVE, "premium", priorty=1), namespace, strict=False)
    assert "priorty" not in made["spec"]
    async with watching(nats.url, apiserver, namespace, tmp_path):
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
