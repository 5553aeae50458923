"""The watcher against a real API server: what pickers see is what the cluster says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from shared.config.problems import Invalid
from shared.model import Configuration, Endpoint, Model, ModelRewrite, Objective, Pool
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import LABELS, POOL, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import CONVERGED, eventually, replace

pytestmark = pytest.mark.usefixtures("kubernetes_peers")


async def test_a_ready_pod_is_an_endpoint_until_it_ends(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await pods.create("b", labels=LABELS)
    await pods.create("other", "10.1.0.9", labels={"app": "other"})
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
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
        await pods.terminate("a")
        await seen.sees("b-rank-0")
        await pods.delete("a")
        await pods.delete("b")
        await seen.sees()


async def test_labels_decide_whether_a_pod_is_the_pools(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0")
        await pods.label("a", {"app": "draining"})
        await seen.sees()
        await pods.label("a", {"app": "vllm", "tier": "gold"})
        await seen.sees("a-rank-0")
        await eventually(lambda: "tier" in next(iter(seen.facts("endpoint").values())).labels, "the label")  # type: ignore[union-attr]


async def test_every_target_port_is_a_rank_unless_the_pod_says_otherwise(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(ports=(8000, 8001, 8002)), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await pods.create("b", "10.1.0.2", labels=LABELS, annotations={"llm-d.ai/active-ports": "8001, 9000"})
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0", "a-rank-1", "a-rank-2", "b-rank-1")
        assert seen.addresses["b-rank-1"] == "10.1.0.2:8001"
        await pods.annotate("b", {"llm-d.ai/active-ports": None})
        await seen.sees("a-rank-0", "a-rank-1", "a-rank-2", "b-rank-0", "b-rank-1", "b-rank-2")
        ports = {"spec": {"targetPorts": [{"number": 8000}]}}
        await admin.patch("inference.networking.k8s.io/v1", "InferencePool", POOL, ports, namespace)
        await seen.sees("a-rank-0", "b-rank-0")


async def test_another_selector_takes_the_place_of_the_first_without_an_empty_pool_in_between(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await pods.create("b", "10.1.0.2", labels={"app": "sglang"})
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0")
        since = len(seen.events)
        selector = {"spec": {"selector": {"matchLabels": {"app": "sglang"}}}}
        await admin.patch("inference.networking.k8s.io/v1", "InferencePool", POOL, selector, namespace)
        await seen.sees("b-rank-0")
        assert seen.ever_had(since) == {f"{namespace}/b-rank-0"}
        keys = [type(event).__name__ for event in seen.events[since:]]
        assert keys.index("Upsert") < keys.index("Delete")


async def test_a_pool_that_goes_takes_its_endpoints_along_and_one_that_comes_brings_them(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await pods.create("a", "10.1.0.1", labels=LABELS)
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees()
        await admin.create(pool_document(appProtocol="kubernetes.io/h2c"), namespace)
        await seen.sees("a-rank-0")
        [pool] = seen.facts("pool").values()
        assert isinstance(pool, Pool)
        assert (pool.app_protocol, pool.target_ports, pool.selector) == ("kubernetes.io/h2c", (8000,), LABELS)
        await admin.delete("inference.networking.k8s.io/v1", "InferencePool", POOL, namespace)
        await seen.sees()


async def test_a_pool_of_the_former_group_is_served(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    former = {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferencePool",
        "metadata": {"name": POOL},
        "spec": {"selector": LABELS, "targetPortNumber": 8200, "extensionRef": {"name": "pointsman"}},
    }
    await admin.create(former, namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0")
        assert seen.addresses == {"a-rank-0": "10.1.0.1:8200"}
        await admin.create(pool_document(ports=(8100,)), namespace)
        await eventually(lambda: seen.addresses == {"a-rank-0": "10.1.0.1:8100"}, "the newer group's pool")
        await admin.delete("inference.networking.k8s.io/v1", "InferencePool", POOL, namespace)
        await eventually(lambda: seen.addresses == {"a-rank-0": "10.1.0.1:8200"}, "the former group's pool")


def _resource(kind: str, name: str, spec: dict[str, object], group: str = "inference.networking.x-k8s.io") -> object:
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"poolRef": {"name": POOL, "group": "inference.networking.k8s.io"}, **spec},
    }


async def test_objectives_rewrites_and_models_of_the_pool_are_told_and_others_are_not(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    rule = {"targets": [{"modelRewrite": "base-v2", "weight": 1}]}
    for document in (
        _resource("InferenceObjective", "premium", {"priority": 10}),
        _resource("InferenceObjective", "elsewhere", {"poolRef": {"name": "another"}, "priority": 1}),
        _resource("InferenceModelRewrite", "rollout", {"rules": [rule]}, "llm-d.ai"),
        _resource("InferenceModel", "chat", {"modelName": "chat", "criticality": "Critical"}),
    ):
        await admin.create(document, namespace)  # type: ignore[arg-type]
    async with watching(nats.url, apiserver, namespace, tmp_path) as service, reading(nats.url, namespace) as seen:
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
        assert "another" in ours[f"InferenceObjective {namespace}/elsewhere"]
        await admin.patch(
            *("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective", "premium", {"spec": {"priority": -1}}),
            namespace,
        )
        await eventually(lambda: seen.facts("objective") == {"premium": Objective(name="premium", priority=-1)}, "-1")
        await admin.delete("llm-d.ai/v1alpha2", "InferenceModelRewrite", "rollout", namespace)
        await eventually(lambda: not seen.facts("rewrite"), "no rewrite")


async def test_the_configuration_comes_from_a_config_map_and_a_bad_one_keeps_the_last(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    document = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: {}\n"
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    settings = {"config_map": f"{namespace}/picker"}
    async with watching(nats.url, apiserver, namespace, tmp_path, **settings) as service:
        await eventually(lambda: "isn't known yet" in str(service.readiness.reasons()), "it waits for the ConfigMap")
        async with reading(nats.url, namespace) as seen:
            await _config_map(admin, namespace, document.format("queue-scorer"))
            await seen.sees("a-rank-0")
            await eventually(lambda: _configured(seen.facts("config"), "queue-scorer"), "the configuration")
            await _config_map(admin, namespace, document.format("queue-scorre"))
            await eventually(lambda: bool(service.keepers[0].holding.problems()), "a problem")
            assert "queue-scorer" in str(service.readiness.notes())
            assert _configured(seen.facts("config"), "queue-scorer")
            await _config_map(admin, namespace, document.format("kv-cache-utilization-scorer"))
            await eventually(lambda: _configured(seen.facts("config"), "kv-cache"), "the next configuration")


async def _config_map(admin: Api, namespace: str, text: str) -> None:
    await admin.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "picker"}, "data": {"config.yaml": text}},
        namespace,
    )


def _configured(facts: object, text: str) -> bool:
    found = list(facts.values()) if isinstance(facts, dict) else []
    return bool(found) and isinstance(found[0], Configuration) and text in found[0].text


async def test_without_a_pool_flags_say_which_pods_serve_and_where(
    apiserver: ApiServer, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await pods.create("a", "10.1.0.1", labels={"app": "vllm", "tier": "gold"})
    await pods.create("b", "10.1.0.2", labels={"app": "vllm"})
    alone: dict[str, Any] = {"endpoint_selector": ("app=vllm", "tier=gold"), "endpoint_target_ports": (8000, 8001)}
    async with watching(nats.url, apiserver, namespace, tmp_path, **alone), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0", "a-rank-1")
        assert isinstance(next(iter(seen.facts("pool").values())), Pool)


async def test_one_watcher_serves_several_pools_and_takes_none_off_that_it_doesnt_know_yet(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    second = await admin.create_namespace()
    await admin.create(pool_document(), namespace)
    await admin.create(pool_document("qwen", {"app": "qwen"}, (9000,)), second)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    await Pods(admin, second).create("q", "10.1.0.2", labels={"app": "qwen"})
    several: dict[str, Any] = {"pools": (f"{namespace}/{POOL}", f"{second}/qwen")}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **several),
        reading(nats.url, namespace) as first_seen,
        reading(nats.url, second, "qwen") as second_seen,
    ):
        await first_seen.sees("a-rank-0")
        await second_seen.sees("q-rank-0")
        await Pods(admin, second).delete("q")
        await second_seen.sees()
        await first_seen.sees("a-rank-0")


async def test_an_ip_that_goes_to_another_pod_is_another_endpoint(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0")
        before = next(iter(seen.facts("endpoint").values()))
        await pods.delete("a")
        await pods.create("a", "10.1.0.1", labels=LABELS)
        await eventually(
            lambda: [one.uid for one in seen.facts("endpoint").values()] not in ([], [before.uid]),  # type: ignore[union-attr]
            "another server of the same name and address",
        )
        await pods.delete("a")
        await pods.create("b", "10.1.0.1", labels=LABELS)
        await seen.sees("b-rank-0")


async def test_of_a_dual_stack_pod_the_wanted_family_is_taken(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", "fd00::1", labels=LABELS)
    async with watching(nats.url, apiserver, namespace, tmp_path), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0")
        assert seen.addresses == {"a-rank-0": "10.1.0.1:8000"}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, ip_family="IPv6"),
        reading(nats.url, namespace) as seen,
    ):
        await eventually(lambda: seen.addresses == {"a-rank-0": "[fd00::1]:8000"}, "the IPv6 address")


async def test_endpoint_slices_say_where_the_servers_are(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)

    def slice_of(name: str, kind: str, *endpoints: tuple[str, str, bool]) -> dict[str, object]:
        return {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": "servers"}},
            "addressType": kind,
            "ports": [{"port": 80}],
            "endpoints": [
                {
                    "addresses": [address],
                    "conditions": {"ready": ready},
                    "targetRef": {"kind": "Pod", "name": pod, "namespace": namespace},
                    "nodeName": "node-2",
                }
                for pod, address, ready in endpoints
            ],
        }

    await admin.create(slice_of("one", "IPv4", ("a", "10.1.0.1", True), ("b", "10.1.0.2", False)), namespace)
    await admin.create(slice_of("two", "IPv6", ("a", "fd00::1", True), ("c", "fd00::3", True)), namespace)
    slices = {"endpoint_slices": "servers"}
    async with watching(nats.url, apiserver, namespace, tmp_path, **slices), reading(nats.url, namespace) as seen:
        await seen.sees("a-rank-0", "c-rank-0")
        assert seen.addresses == {"a-rank-0": "10.1.0.1:8000", "c-rank-0": "[fd00::3]:8000"}
        ready = {"endpoints": slice_of("one", "IPv4", ("b", "10.1.0.2", True))["endpoints"]}
        await admin.patch("discovery.k8s.io/v1", "EndpointSlice", "one", ready, namespace)
        await eventually(lambda: seen.addresses.get("a-rank-0") == "[fd00::1]:8000", "the other family's address")
        await seen.sees("a-rank-0", "b-rank-0", "c-rank-0")


async def test_a_server_of_a_slice_whose_pods_name_is_left_out_is_one_too(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    document = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "one", "labels": {"kubernetes.io/service-name": "servers"}},
        "addressType": "IPv4",
        "ports": [{"port": 80}],
        "endpoints": [
            {"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod"}},
            {"addresses": ["10.1.0.2"], "targetRef": {"kind": "Pod", "name": "b"}},
        ],
    }
    await admin.create(document, namespace)
    slices = {"endpoint_slices": "servers"}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **slices) as service,
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("10.1.0.1-rank-0", "b-rank-0")
        assert not service.readiness.notes()


async def test_a_burst_is_a_few_changes_and_every_fact_is_told_once(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    await admin.create(pool_document(), namespace)
    async with watching(nats.url, apiserver, namespace, tmp_path) as service, reading(nats.url, namespace) as seen:
        await eventually(lambda: seen.replica.synced and bool(seen.facts("pool")), "the pool")
        await service.leadership.publisher.wait_published(CONVERGED)
        publisher = service.leadership.publisher
        written, establishments = publisher.written, publisher.establishments
        limit = asyncio.Semaphore(16)

        async def one(number: int) -> None:
            async with limit:
                await pods.create(f"p{number:03}", f"10.1.1.{number}", labels=LABELS)

        await asyncio.gather(*(one(number) for number in range(1, 101)))
        await seen.sees(*(f"p{number:03}-rank-0" for number in range(1, 101)), timeout=20.0)
        await publisher.wait_published(CONVERGED)  # a reader may know of a fact before its writer
        # what NATS didn't acknowledge in time is written again, and nothing else
        assert publisher.written - written == 100 or publisher.establishments > establishments
        before = len(seen.events)
        await pods.annotate("p001", {"note": "nothing that matters"})
        await asyncio.sleep(0.5)
        assert len(seen.events) == before


async def test_the_configuration_of_a_file_is_followed_beside_the_cluster(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    document = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: {}\n"
    await admin.create(pool_document(), namespace)
    await pods.create("a", "10.1.0.1", labels=LABELS)
    file = tmp_path / "config.yaml"
    file.write_text(document.format("queue-scorer"))
    settings = {"config_file": str(file)}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("a-rank-0")
        await eventually(lambda: _configured(seen.facts("config"), "queue-scorer"), "the configuration")
        replace(file, document.format("queue-scorre"))
        await eventually(lambda: "queue-scorre" in str(service.readiness.notes()), "the reason")
        assert _configured(seen.facts("config"), "queue-scorer")
        replace(file, document.format("kv-cache-utilization-scorer"))
        await eventually(lambda: _configured(seen.facts("config"), "kv-cache"), "the next configuration")


@pytest.mark.parametrize("text", [None, "kind: EndpointPickerConfig\nplugins: [{type: queue-scorre}]\n"])
async def test_a_configuration_file_that_is_bad_at_the_start_ends_the_process(
    apiserver: ApiServer, namespace: str, nats: NatsServer, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "config.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Invalid, match=r"config\.yaml"):
        async with watching(nats.url, apiserver, namespace, tmp_path, config_file=str(file)):
            pass
