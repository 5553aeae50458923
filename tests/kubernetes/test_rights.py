"""The watcher with a ServiceAccount's token and the role of deploy/kubernetes: it is enough, and no more than that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from services.picker.app import PickerService
from services.watcher.app import WatcherService
from tests.in_process import picker, serving
from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.deploy.render import DEPLOY
from tests.kubernetes.pods import NODE, Pods
from tests.kubernetes.watching import LABELS, POOL, PoolReader, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")

STABLE, EXPERIMENTAL, LLMD = "inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"
CONFIG_MAP = "pointsman-config"
ACCOUNT = "pointsman-watcher"
REQUIRED = {("", "pods"), ("", "configmaps"), (STABLE, "inferencepools"), (EXPERIMENTAL, "inferencepools")}
"""Without a list of these it isn't known which endpoints there are, or by what configuration."""
PICKING = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
BAD = PICKING.replace("queue-scorer", "queue-scorre")
BY_NODES = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: node-labels-extractor
  parameters:
    attributes:
    - {label: nvidia.com/gpu.product, attributeKey: GPUClass, values: {NVIDIA-H100: 3, NVIDIA-A100: 2}}
"""


class Right(NamedTuple):
    """One thing that a role allows."""

    verb: str
    group: str
    resource: str
    names: tuple[str, ...] = ()

    @property
    def rule(self) -> dict[str, Any]:
        rule: dict[str, Any] = {"verbs": [self.verb], "apiGroups": [self.group], "resources": [self.resource]}
        return rule | ({"resourceNames": list(self.names)} if self.names else {})

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}"


def rights(path: Path, kind: str = "Role") -> list[Right]:
    """What the role in a file of deploy/kubernetes grants; the chart's is the same, by another test."""
    (role,) = (one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == kind)
    return [
        Right(verb, group, resource, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


GRANTED = rights(DEPLOY / "base/rbac.yaml")
NODES = rights(DEPLOY / "components/nodes/rbac.yaml", "ClusterRole")


@pytest.fixture
async def everything(admin: Api, namespace: str, pods: Pods) -> None:
    """One of each that a watcher reads."""
    refers: Mapping[str, Any] = {"poolRef": {"name": POOL}}
    rewrites = {"rules": [{"targets": [{"modelRewrite": "base", "weight": 1}]}]}
    documents: list[Object] = [pool_document()]
    for group in (EXPERIMENTAL, LLMD):
        short = group.partition(".")[0]
        documents += [
            _resource(group, "InferenceObjective", f"objective-{short}", {**refers, "priority": 1}),
            _resource(group, "InferenceModelRewrite", f"rewrite-{short}", {**refers, **rewrites}),
        ]
    documents.append(
        _resource(EXPERIMENTAL, "InferenceModel", "model", {**refers, "modelName": "m", "criticality": "Standard"})
    )
    for document in documents:
        await admin.create(document, namespace)
    await _configure(admin, namespace, PICKING)
    await pods.create("a", "10.1.0.1", labels=LABELS)


def _resource(group: str, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


async def _configure(admin: Api, namespace: str, text: str) -> None:
    metadata = {"name": CONFIG_MAP}
    await admin.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"c.yaml": text}}, namespace
    )


def complete(seen: PoolReader) -> bool:
    """Whether the reader has all of `everything`."""
    kinds = ("endpoint", "pool", "objective", "rewrite", "model", "config")
    return seen.replica.synced and [len(seen.facts(kind)) for kind in kinds] == [1, 1, 2, 2, 1, 1]


def said(service: WatcherService) -> str:
    """All that it complains of."""
    return str({**service.readiness.reasons(), **service.readiness.notes()})


def used(apiserver: ApiServer, namespace: str) -> set[tuple[str, str, str]]:
    """Verb, group and resource of all that was asked for."""
    return {(one.verb, one.group, one.resource) for one in apiserver.requests(ACCOUNT, namespace)}


@pytest.mark.usefixtures("everything")
async def test_the_role_is_enough_and_everything_that_it_grants_is_used(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    token = await admin.service_account(ACCOUNT, namespace, rules=[one.rule for one in GRANTED])
    settings: dict[str, Any] = {"token": token, "config_map": f"{namespace}/{CONFIG_MAP}"}
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
    ):
        await eventually(lambda: complete(seen), "everything")
        await eventually(lambda: service.readiness.ready and not service.readiness.notes(), "no complaint")
        await pods.create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        await _configure(admin, namespace, PICKING.replace("queue-scorer", "kv-cache-utilization-scorer"))
        await eventually(lambda: "kv-cache" in str(seen.facts("config")), "the next configuration")
        await _configure(admin, namespace, BAD)  # of which an Event tells
        await eventually(
            lambda: used(apiserver, namespace) == {one[:3] for one in GRANTED}, "every right is used", 10.0
        )
    asked = apiserver.requests(ACCOUNT, namespace)
    assert not [one for one in asked if not one.allowed]
    assert {one.namespace for one in asked} == {namespace}


@pytest.mark.usefixtures("everything")
@pytest.mark.parametrize("lacking", GRANTED, ids=str)
async def test_what_is_not_granted_is_named(
    apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path, lacking: Right
) -> None:
    token = await admin.service_account(ACCOUNT, namespace, rules=[one.rule for one in GRANTED if one != lacking])
    settings: dict[str, Any] = {"token": token, "config_map": f"{namespace}/{CONFIG_MAP}"}
    words = f'cannot {lacking.verb} resource "{lacking.resource}" in API group "{lacking.group}"'
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
    ):
        if lacking.resource == "events":
            await eventually(lambda: complete(seen), "everything")
            await _configure(admin, namespace, BAD)
        await eventually(lambda: words in said(service), words, 10.0)
        if lacking.verb == "list" and (lacking.group, lacking.resource) in REQUIRED:
            assert words in service.readiness.reasons()["published"]
            assert not seen.facts("endpoint")
        else:
            await seen.sees("a-rank-0")
            await eventually(lambda: service.readiness.ready, "ready, with a note")
            assert words in str(service.readiness.notes())


def gpu_class(service: PickerService, namespace: str) -> float | None:
    """As the picker has it of pod a."""
    for one in service.state()["endpoints"]:
        if one["id"] == f"{namespace}/a-rank-0":
            values = {wire.partition("/")[0]: known["value"] for wire, known in one["attributes"].items()}
            return values.get("GPUClass")
    return None


@pytest.fixture
async def node(admin: Api) -> None:
    """The node on which pods run; it is the cluster's, so it stays for other tests."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100"}
    await admin.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})


@pytest.mark.usefixtures("everything", "node")
@pytest.mark.parametrize("granted", [True, False], ids=["granted", "not granted"])
async def test_nodes_that_an_extractor_looks_at_need_a_right_and_its_lack_hurts_nothing_else(
    apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path, granted: bool
) -> None:
    await _configure(admin, namespace, BY_NODES)
    token = await admin.service_account(
        ACCOUNT,
        namespace,
        rules=[one.rule for one in GRANTED],
        cluster_rules=[one.rule for one in NODES] if granted else [],
    )
    settings: dict[str, Any] = {"token": token, "config_map": f"{namespace}/{CONFIG_MAP}"}
    made = picker(nats.url, pool_name=POOL, pool_namespace=namespace)
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as service,
        reading(nats.url, namespace) as seen,
        serving(made) as picking,
    ):
        await eventually(lambda: complete(seen), "everything")
        if granted:
            await eventually(lambda: gpu_class(picking, namespace) == 3.0, "the node's label")
            labels = {"nvidia.com/gpu.product": "NVIDIA-A100"}
            await admin.patch("v1", "Node", NODE, {"metadata": {"labels": labels}}, "")
            await eventually(lambda: gpu_class(picking, namespace) == 2.0, "the change of the label")
            assert not service.readiness.notes()
            asked = {(one.verb, one.resource) for one in apiserver.requests(ACCOUNT, namespace) if not one.namespace}
            assert asked == {(one.verb, one.resource) for one in NODES}
        else:
            await eventually(lambda: 'cannot list resource "nodes"' in str(service.readiness.notes()), "the reason")
            await pods.create("b", "10.1.0.2", labels=LABELS)
            await seen.sees("a-rank-0", "b-rank-0")
            await eventually(lambda: service.readiness.ready, "ready")
            assert gpu_class(picking, namespace) is None
