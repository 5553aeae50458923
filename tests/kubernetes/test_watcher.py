"""The watcher against a real API server: what pickers see is what the cluster says. What becomes of a pod, a slice or
a resource in detail: tests/unit/services/watcher/kubernetes."""

from pathlib import Path

import pytest

from services.watcher.app import WatcherService
from shared.config.problems import Invalid
from shared.model import Endpoint, Model, ModelRewrite, Objective, Pool
from tests.kubernetes.said import MODEL, OBJECTIVE, POOLS, referring
from tests.kubernetes.watching import LABELS, POOL, PoolReader, Site, config_map, pool_document
from tests.protocol.watcher.harness import replace
from tests.waiting import eventually

DOCUMENT = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: {}\n"


async def test_a_ready_pod_that_is_selected_is_an_endpoint_until_it_ends(site: Site) -> None:
    pods = site.pods
    await site.serve("a")
    await pods.create("b", labels=LABELS)
    await pods.create("other", "10.1.0.9", labels={"app": "other"})
    async with site.watching(), site.reading() as seen:
        await seen.sees("a-rank-0")
        [one] = seen.facts("endpoint").values()
        assert isinstance(one, Endpoint)
        assert (one.authority, one.labels, one.node) == ("10.1.0.1:8000", LABELS, "node-1")
        assert one.uid
        await pods.report("b", "10.1.0.2")
        await seen.sees("a-rank-0", "b-rank-0")
        await pods.report("a", ready=False)
        await seen.sees("b-rank-0")
        await pods.report("a")
        await seen.sees("a-rank-0", "b-rank-0")
        await pods.label("b", {"app": "draining"})
        await seen.sees("a-rank-0")
        await pods.label("b", LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        await pods.terminate("a")
        await seen.sees("b-rank-0")
        await pods.delete("a")
        await pods.delete("b")
        await seen.sees()


async def test_another_selector_takes_the_place_of_the_first_without_an_empty_pool_in_between(site: Site) -> None:
    await site.serve("a")
    await site.pods.create("b", "10.1.0.2", labels={"app": "sglang"})
    async with site.watching(), site.reading() as seen:
        await seen.sees("a-rank-0")
        since = len(seen.events)
        await site.patch(POOLS, POOL, {"selector": {"matchLabels": {"app": "sglang"}}})
        await seen.sees("b-rank-0")
        assert seen.ever_had(since) == {f"{site.namespace}/b-rank-0"}
        keys = [type(event).__name__ for event in seen.events[since:]]
        assert keys.index("Upsert") < keys.index("Delete")


async def test_a_pool_brings_its_endpoints_in_either_group_and_takes_them_along(site: Site) -> None:
    former = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferencePool",
        "metadata": {"name": POOL},
        "spec": {"selector": LABELS, "targetPortNumber": 8200, "extensionRef": {"name": "pointsman"}},
    }
    await site.pods.create("a", "10.1.0.1", labels=LABELS)
    async with site.watching(), site.reading() as seen:
        await seen.sees()
        await site.create(former)
        await eventually(lambda: seen.addresses == {"a-rank-0": "10.1.0.1:8200"}, "the former group's pool")
        await site.create(pool_document(ports=(8100,), appProtocol="kubernetes.io/h2c"))
        await eventually(lambda: seen.addresses == {"a-rank-0": "10.1.0.1:8100"}, "the newer group's pool")
        [pool] = seen.facts("pool").values()
        assert isinstance(pool, Pool)
        assert (pool.app_protocol, pool.target_ports, pool.selector) == ("kubernetes.io/h2c", (8100,), LABELS)
        await site.delete(POOLS, POOL)
        await eventually(lambda: seen.addresses == {"a-rank-0": "10.1.0.1:8200"}, "the former group's pool")
        await site.delete(("inference.networking.x-k8s.io/v1alpha2", "InferencePool"), POOL)
        await seen.sees()


async def test_objectives_rewrites_and_models_of_the_pool_are_told_and_others_are_not(site: Site) -> None:
    llmd = ("llm-d.ai/v1alpha2", "InferenceModelRewrite")
    await site.create(
        pool_document(),
        referring(OBJECTIVE, "premium", priority=10),
        referring(OBJECTIVE, "elsewhere", "another", priority=1),
        referring(llmd, "rollout", rules=[{"targets": [{"modelRewrite": "base-v2", "weight": 1}]}]),
        referring(MODEL, "chat", modelName="chat", criticality="Critical"),
    )
    async with site.watching() as service, site.reading() as seen:
        await eventually(lambda: seen.replica.synced and len(seen.replica.facts()) == 4, "four facts")
        [objective], [rewrite], [model] = (
            list(seen.facts(kind).values()) for kind in ("objective", "rewrite", "model")
        )
        assert objective == Objective(name="premium", priority=10)
        assert isinstance(rewrite, ModelRewrite)
        assert (rewrite.name, rewrite.rules[0].targets[0].model) == ("rollout", "base-v2")
        assert rewrite.created > 1.7e9
        assert isinstance(model, Model)
        assert model.model_name == "chat"
        ours = service.state()["kubernetes"]["not_for_the_pools"]
        assert "another" in ours[f"InferenceObjective {site.namespace}/elsewhere"]
        await site.patch(OBJECTIVE, "premium", {"priority": -1})
        await eventually(lambda: seen.facts("objective") == {"premium": Objective(name="premium", priority=-1)}, "-1")
        await site.delete(llmd, "rollout")
        await eventually(lambda: not seen.facts("rewrite"), "no rewrite")


async def test_the_configuration_comes_from_a_config_map_and_a_bad_one_keeps_the_last(site: Site) -> None:
    await site.serve("a")
    async with site.watching(config_map=f"{site.namespace}/picker") as service:
        await eventually(lambda: "isn't known yet" in str(service.readiness.reasons()), "it waits for the ConfigMap")
        async with site.reading() as seen:
            await site.apply(config_map("picker", DOCUMENT.format("queue-scorer")))
            await seen.sees("a-rank-0")
            await configured(seen, "queue-scorer")
            await site.apply(config_map("picker", DOCUMENT.format("queue-scorre")))
            await refused(service, seen)
            await site.apply(config_map("picker", DOCUMENT.format("kv-cache-utilization-scorer")))
            await configured(seen, "kv-cache-utilization-scorer")


async def test_the_configuration_of_a_file_is_followed_beside_the_cluster(site: Site) -> None:
    await site.serve("a")
    file = site.directory / "config.yaml"
    file.write_text(DOCUMENT.format("queue-scorer"))
    async with site.watching(config_file=str(file)) as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await configured(seen, "queue-scorer")
        replace(file, DOCUMENT.format("queue-scorre"))
        await refused(service, seen)
        replace(file, DOCUMENT.format("kv-cache-utilization-scorer"))
        await configured(seen, "kv-cache-utilization-scorer")


async def configured(seen: PoolReader, plugin: str) -> None:
    await eventually(lambda: plugin in str(seen.facts("config")), f"the configuration with {plugin}")


async def refused(service: WatcherService, seen: PoolReader) -> None:
    await eventually(lambda: "queue-scorre" in str(service.readiness.notes()), "the reason")
    assert "queue-scorer" in str(seen.facts("config"))


async def test_a_configuration_file_that_is_bad_at_the_start_ends_the_process(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(DOCUMENT.format("queue-scorre"))
    with pytest.raises(Invalid, match=r"config\.yaml"):
        async with site.watching(config_file=str(file)):
            pass


async def test_an_ip_that_goes_to_another_pod_is_another_endpoint(site: Site) -> None:
    await site.serve("a")
    async with site.watching(), site.reading() as seen:
        await seen.sees("a-rank-0")
        before = uids(seen)
        await site.pods.delete("a")
        await site.pods.create("a", "10.1.0.1", labels=LABELS)
        await eventually(lambda: uids(seen) not in (set(), before), "another server of the same name and address")
        await site.pods.delete("a")
        await site.pods.create("b", "10.1.0.1", labels=LABELS)
        await seen.sees("b-rank-0")


def uids(seen: PoolReader) -> set[str]:
    return {one.uid for one in seen.facts("endpoint").values() if isinstance(one, Endpoint)}
