"""What the watcher says of resources, seen in the API server: conditions where the API has a place, Events."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import (
    CONVERGED,
    GRACE,
    GROUP,
    MODEL,
    OBJECTIVE,
    POOLS,
    REWRITE,
    accepted,
    event,
    events,
    referring,
    says,
    until,
)
from tests.kubernetes.watching import LABELS, POOL, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")


async def test_what_is_taken_over_is_accepted(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    """In both groups, with the generation that this is said of."""
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    rules = [{"targets": [{"modelRewrite": "base-v2"}]}]
    await admin.create(referring(OBJECTIVE, "premium", priority=10), namespace)
    await admin.create(referring(REWRITE, "rollout", rules=rules), namespace)
    await admin.create(referring(MODEL, "chat", modelName="chat"), namespace)
    await admin.create(referring(("llm-d.ai/v1alpha2", "InferenceObjective"), "batch"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path) as service:
        for kind, name in (
            *((OBJECTIVE, "premium"), (REWRITE, "rollout"), (MODEL, "chat")),
            (("llm-d.ai/v1alpha2", "InferenceObjective"), "batch"),
        ):
            condition = await says(admin, kind, name, namespace, "Accepted")
            assert (condition["status"], condition["observedGeneration"]) == ("True", 1)
            assert f"{namespace}/{POOL}" in condition["message"]
        assert not (await admin.get(*POOLS, POOL, namespace)).get("status")
        assert await events(admin, namespace) == []
        since = (await accepted(admin, OBJECTIVE, "premium", namespace))["lastTransitionTime"]
        await asyncio.sleep(1.1)  # a second is what a condition's time tells apart
        await admin.patch(*OBJECTIVE, "premium", {"spec": {"priority": 1}}, namespace)

        async def seen_again() -> bool:
            return bool((await accepted(admin, OBJECTIVE, "premium", namespace))["observedGeneration"] == 2)

        await until(seen_again, "the second generation")
        assert (await accepted(admin, OBJECTIVE, "premium", namespace))["lastTransitionTime"] == since
        assert service.readiness.notes() == {}


async def test_nothing_is_written_while_nothing_changes_nor_by_a_start_anew(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await admin.create(referring(OBJECTIVE, "premium"), namespace)
    await admin.create(referring(OBJECTIVE, "lost", "nowhere"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE):
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
        await event(admin, namespace, "NoEndpoints")
        await event(admin, namespace, "PoolNotFound")
        before = await _versions(admin, namespace)
        await pods.create("a", "10.1.0.1", labels={"app": "another"})
        await asyncio.sleep(3.0)
        assert await _versions(admin, namespace) == before
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE) as service:
        await eventually(lambda: service.leadership.leads, "it leads")
        await asyncio.sleep(3.0)
        assert await _versions(admin, namespace) == before


async def _versions(admin: Api, namespace: str) -> dict[str, str]:
    found = [*(await admin.list(*OBJECTIVE, namespace))["items"], *(await events(admin, namespace))]
    return {one["metadata"]["name"]: one["metadata"]["resourceVersion"] for one in found}


@pytest.mark.usefixtures("patient_lease")
async def test_a_condition_of_another_controller_is_not_taken_over(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    for name in ("theirs", "ours"):
        await admin.create(referring(OBJECTIVE, name), namespace)
    theirs = {
        "type": "Accepted",
        "status": "Unknown",
        "reason": "Pending",
        "message": "by somebody else",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await _own(admin, namespace, theirs)
    async with watching(nats.url, apiserver, namespace, tmp_path) as service:
        await says(admin, OBJECTIVE, "ours", namespace, "Accepted")
        left = f"InferenceObjective {namespace}/theirs"
        await eventually(lambda: left in service.state()["status"]["left_alone"], "it is left alone")
        version = (await admin.get(*OBJECTIVE, "theirs", namespace))["metadata"]["resourceVersion"]
        conflicts = service.registry.get_sample_value("pointsman_watcher_condition_conflicts_total")
        assert conflicts == 1.0
        await asyncio.sleep(2.5)
        found = await admin.get(*OBJECTIVE, "theirs", namespace)
        assert found["metadata"]["resourceVersion"] == version
        assert found["status"]["conditions"] == [theirs]
        assert service.registry.get_sample_value("pointsman_watcher_condition_conflicts_total") == conflicts
        await _own(admin, namespace, None)
        await says(admin, OBJECTIVE, "theirs", namespace, "Accepted")


async def test_a_controller_that_takes_the_condition_over_is_let_have_it(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await admin.create(referring(OBJECTIVE, "theirs"), namespace)
    condition = {"type": "Accepted", "status": "False", "reason": "Theirs", "message": "taken over"}
    async with watching(nats.url, apiserver, namespace, tmp_path) as service:
        await says(admin, OBJECTIVE, "theirs", namespace, "Accepted")
        await _own(admin, namespace, {**condition, "lastTransitionTime": "2026-01-01T00:00:00Z"})
        await eventually(lambda: bool(service.state()["status"]["left_alone"]), "it is left alone", CONVERGED)
        await asyncio.sleep(2.5)
        assert (await accepted(admin, OBJECTIVE, "theirs", namespace))["reason"] == "Theirs"


async def _own(admin: Api, namespace: str, condition: Mapping[str, Any] | None) -> None:
    """Apply the condition by force, as another controller; None gives it back."""
    conditions = [] if condition is None else [dict(condition)]
    body = {**referring(OBJECTIVE, "theirs"), "status": {"conditions": conditions}}
    del body["spec"]
    await admin.apply(body, namespace, manager="another-controller", subresource="status")


async def test_a_condition_that_is_no_longer_ours_to_say_is_taken_back(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    """Who serves its new pool may say something of it; that stays."""
    await admin.create(pool_document(), namespace)
    await admin.create(pool_document("another"), namespace)
    await admin.create(referring(OBJECTIVE, "premium"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path):
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
        await admin.patch(*OBJECTIVE, "premium", {"spec": {"poolRef": {"name": "another"}}}, namespace)

        async def gone() -> bool:
            return not await accepted(admin, OBJECTIVE, "premium", namespace)

        await until(gone, "no condition")
        second = {"pool_name": "another", "nats_prefix": "second"}
        (tmp_path / "second").mkdir()
        async with watching(nats.url, apiserver, namespace, tmp_path / "second", **second):
            await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
            await asyncio.sleep(2.5)
            assert "another" in (await accepted(admin, OBJECTIVE, "premium", namespace))["message"]


async def test_a_watcher_without_the_right_to_write_says_so_and_goes_on(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"],
            "resources": ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"],
            "verbs": ["list", "watch"],
        },
    ]
    token = await admin.service_account("reader", namespace, rules=rules)
    await admin.create(pool_document(), namespace)
    await admin.create(referring(OBJECTIVE, "premium"), namespace)
    await admin.create(referring(OBJECTIVE, "lost", "nowhere"), namespace)
    settings: dict[str, Any] = {**GRACE, "token": token, "kubernetes_refused_interval": 30.0}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
    ):
        await eventually(lambda: len(service.state()["status"]["problems"]) == 2, "both are told", CONVERGED)
        problems = service.state()["status"]["problems"]
        assert "inferenceobjectives" in problems[f"inferenceobjectives.{GROUP}/status in namespace {namespace}"]
        assert "403 Forbidden" in problems[f"events.events.k8s.io in namespace {namespace}"]
        assert "403 Forbidden" in service.readiness.notes()["status"]
        assert service.readiness.reasons() == {}
        await pods.create("a", "10.1.0.1", labels=LABELS)
        await seen.sees("a-rank-0")
        assert await events(admin, namespace) == []
    refused = {(one.verb, one.resource) for one in apiserver.requests("reader", namespace) if not one.allowed}
    assert refused == {("patch", "inferenceobjectives/status"), ("create", "events")}


@pytest.mark.usefixtures("patient_lease")
async def test_a_standby_writes_nothing_until_it_leads(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    """What the first one couldn't write, for want of the right, the second one does."""
    await admin.create(pool_document(), namespace)
    verbs = {"verbs": ["list", "watch"]}
    groups = ["inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"]
    resources = ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], **verbs},
        {"apiGroups": groups, "resources": resources, **verbs},
    ]
    token = await admin.service_account("first", namespace, rules=rules)
    for directory in ("first", "second"):
        (tmp_path / directory).mkdir()
    async with watching(nats.url, apiserver, namespace, tmp_path / "first", token=token, **GRACE) as first:
        await eventually(lambda: first.leadership.leads, "the first leads")
        async with watching(nats.url, apiserver, namespace, tmp_path / "second", **GRACE) as second:
            await admin.create(referring(OBJECTIVE, "premium"), namespace)
            await eventually(lambda: first.readiness.notes() != {}, "the first would write", CONVERGED)
            await eventually(lambda: second.readiness.reasons() == {}, "the second is ready", CONVERGED)
            await asyncio.sleep(2.0)
            assert await accepted(admin, OBJECTIVE, "premium", namespace) == {}
            assert await events(admin, namespace) == []
            await first.drain()
            await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
            await event(admin, namespace, "NoEndpoints")


async def test_a_selector_that_matches_no_pod_is_an_event_on_the_pool(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    """The rest goes on: the pool serves as soon as there is a pod."""
    made = await admin.create(pool_document(), namespace)
    await admin.create(referring(OBJECTIVE, "premium"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE), reading(nats.url, namespace) as seen:
        found = await event(admin, namespace, "NoEndpoints")
        assert found["regarding"]["uid"] == made["metadata"]["uid"]
        assert found["type"] == "Warning"
        assert found["note"].startswith("spec.selector: no pod of namespace")
        assert "app=vllm" in found["note"]
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
        await pods.create("a", "10.1.0.1", labels=LABELS)
        await seen.sees("a-rank-0")


async def contested(admin: Api, namespace: str, pods: Pods) -> Object:
    """The pools `older` and `a-younger`, which both select the pod a; the younger one."""
    await admin.create(pool_document("older"), namespace)
    await asyncio.sleep(1.1)  # a second is what times of creation tell apart
    younger = await admin.create(pool_document("a-younger", {"tier": "gold"}), namespace)
    await pods.create("a", "10.1.0.1", labels={**LABELS, "tier": "gold"})
    return younger


async def test_two_pools_that_claim_a_pod_are_an_event_on_the_younger_and_both_serve(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    younger = await contested(admin, namespace, pods)
    several: dict[str, Any] = {"pools": (f"{namespace}/older", f"{namespace}/a-younger"), **GRACE}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **several),
        reading(nats.url, namespace, "older") as first,
        reading(nats.url, namespace, "a-younger") as second,
    ):
        found = await event(admin, namespace, "PodClaimedTwice")
        assert found["regarding"]["uid"] == younger["metadata"]["uid"]
        assert f"spec.selector: it selects pods that InferencePool {namespace}/older selects too" in found["note"]
        await first.sees("a-rank-0")
        await second.sees("a-rank-0")


async def test_the_younger_pools_watcher_says_so_too_where_another_watcher_serves_the_older_one(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    """As the chart has it: a release, and with it a watcher, for each pool."""
    younger = await contested(admin, namespace, pods)
    for directory in ("first", "second"):
        (tmp_path / directory).mkdir()
    first: dict[str, Any] = {"pool_name": "older", "nats_prefix": "first", **GRACE}
    second: dict[str, Any] = {"pool_name": "a-younger", "nats_prefix": "second", **GRACE}
    async with watching(nats.url, apiserver, namespace, tmp_path / "first", **first):
        await asyncio.sleep(2.5)
        assert await events(admin, namespace) == [], "that is for the younger one's watcher to say"
        async with watching(nats.url, apiserver, namespace, tmp_path / "second", **second):
            found = await event(admin, namespace, "PodClaimedTwice")
            assert found["regarding"]["uid"] == younger["metadata"]["uid"]
            assert f"InferencePool {namespace}/older selects too" in found["note"]
            await asyncio.sleep(2.5)
            assert len(await events(admin, namespace)) == 1


async def test_a_reference_to_another_group_than_the_pools_is_left_out_and_told_of(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    astray = referring(OBJECTIVE, "astray")
    astray["spec"]["poolRef"]["group"] = GROUP
    await admin.create(astray, namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE), reading(nats.url, namespace) as seen:
        found = await event(admin, namespace, "PoolNotFound")
        assert found["regarding"]["name"] == "astray"
        assert f"spec.poolRef.group: InferencePool '{POOL}' of namespace {namespace} isn't in {GROUP}" in found["note"]
        assert await accepted(admin, OBJECTIVE, "astray", namespace) == {}
        assert not seen.facts("objective")
        reference = {"group": "inference.networking.k8s.io"}
        await admin.patch(*OBJECTIVE, "astray", {"spec": {"poolRef": reference}}, namespace)
        await says(admin, OBJECTIVE, "astray", namespace, "Accepted")
        await eventually(lambda: "astray" in seen.facts("objective"), "the objective", CONVERGED)


async def test_what_refers_to_a_pool_that_there_is_not_is_an_event_and_to_anothers_pool_is_not(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await admin.create(pool_document("somebody-elses"), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    for name, pool in (("lost", "nowhere"), ("elsewhere", "somebody-elses"), ("premium", POOL)):
        await admin.create(referring(OBJECTIVE, name, pool), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE):
        found = await event(admin, namespace, "PoolNotFound")
        assert found["regarding"]["name"] == "lost"
        assert "spec.poolRef.name: there is no InferencePool 'nowhere'" in found["note"]
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
        assert await accepted(admin, OBJECTIVE, "lost", namespace) == {}
        assert await accepted(admin, OBJECTIVE, "elsewhere", namespace) == {}
        assert len(await events(admin, namespace)) == 1


async def test_without_its_pool_what_refers_to_it_waits_and_says_so(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(referring(OBJECTIVE, "premium"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path, **GRACE):
        condition = await says(admin, OBJECTIVE, "premium", namespace, "PoolNotFound")
        assert condition["status"] == "False"
        assert "spec.poolRef.name" in condition["message"]
        await pods.create("a", "10.1.0.1", labels=LABELS)
        await admin.create(pool_document(), namespace)
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")


async def test_of_two_models_of_one_name_the_older_is_accepted(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await admin.create(referring(MODEL, "z-first", modelName="chat"), namespace)
    await asyncio.sleep(1.1)  # a second is what times of creation tell apart
    await admin.create(referring(MODEL, "a-second", modelName="chat"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path):
        await says(admin, MODEL, "z-first", namespace, "Accepted")
        condition = await says(admin, MODEL, "a-second", namespace, "ModelNameInUse")
        assert "spec.modelName: 'chat' is taken by InferenceModel 'z-first'" in condition["message"]
        assert (await event(admin, namespace, "ModelNameInUse"))["regarding"]["name"] == "a-second"
        await admin.delete(*MODEL, "z-first", namespace)
        await says(admin, MODEL, "a-second", namespace, "Accepted")


async def test_of_two_of_a_name_in_two_groups_the_one_that_does_not_count_says_so(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    other = ("llm-d.ai/v1alpha2", "InferenceObjective")
    await admin.create(pool_document(), namespace)
    for kind in (OBJECTIVE, other):
        await admin.create(referring(kind, "premium"), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path):
        await says(admin, OBJECTIVE, "premium", namespace, "Accepted")
        condition = await says(admin, other, "premium", namespace, "Shadowed")
        assert condition["message"].startswith(f"metadata.name: 'premium' is also in {GROUP}")
        await admin.delete(*OBJECTIVE, "premium", namespace)
        await says(admin, other, "premium", namespace, "Accepted")


async def test_a_configuration_that_is_refused_is_an_event_on_its_config_map(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    text = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: {}\n"

    def config(plugin: str) -> Object:
        data = {"config.yaml": text.format(plugin)}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "picker"}, "data": data}

    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await admin.create(config("queue-scorer"), namespace)
    settings = {"config_map": f"{namespace}/picker"}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings),
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("a-rank-0")
        await admin.apply(config("queue-scorre"), namespace)
        found = await event(admin, namespace, "ResourceRefused")
        assert (found["regarding"]["kind"], found["regarding"]["name"]) == ("ConfigMap", "picker")
        assert "queue-scorer" in found["note"]
        await pods.create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")


async def test_events_are_bounded_and_what_is_left_over_comes_later_or_never(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    for number in range(8):
        await admin.create(referring(OBJECTIVE, f"lost-{number}", "nowhere"), namespace)
    settings = {**GRACE, "kubernetes_events_per_minute": 3}
    async with watching(nats.url, apiserver, namespace, tmp_path, **settings) as service:

        async def three() -> bool:
            return len(await events(admin, namespace, "PoolNotFound")) == 3

        await until(three, "three Events")
        await asyncio.sleep(2.0)
        assert await three()
        assert len(service.state()["status"]["findings"]) == 8
