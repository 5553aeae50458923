"""The real API server takes every object as it is written, lets every pod into a namespace with the strictest rules,
and allows the watcher what its role says.

Fields are judged strictly: one that a kind doesn't have is an error. Of the gateways' kinds and the ServiceMonitor,
whose definitions come from elsewhere, `crds` has the fields that are used here.
"""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.deploy.render import NAMESPACE, OVERLAYS, Object, Objects, Renderer, workloads

CRDS = tuple(sorted(Path(__file__).with_name("crds").glob("*.yaml")))
RESTRICTED = "pod-security.kubernetes.io/enforce"
CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding")


@pytest.fixture
async def cluster(apiserver: ApiServer) -> AsyncIterator[Api]:
    """An administrator's client, with our kinds, the gateways', and the namespace, which takes restricted pods only."""
    async with apiserver.client() as admin:
        await admin.install(CRDS)
        metadata = {"name": NAMESPACE, "labels": {RESTRICTED: "restricted"}}
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        yield admin


async def refusals(cluster: Api, objects: Iterable[Object]) -> dict[str, str]:
    """What the server says against the objects, by their names; nothing is made."""
    found: dict[str, str] = {}
    for one in objects:
        namespace = "" if one["kind"] in CLUSTER_WIDE else NAMESPACE
        try:
            await cluster.apply(one, namespace, dry_run=True)
        except ApiError as error:
            found[f"{one['kind']} {one['metadata']['name']}"] = error.message
    return found


@pytest.mark.parametrize("name", OVERLAYS)
async def test_every_object_of_an_overlay_is_taken(cluster: Api, renderer: Renderer, name: str) -> None:
    assert await refusals(cluster, renderer.overlay(name).values()) == {}


async def test_every_object_of_the_base_with_components_is_taken(cluster: Api, renderer: Renderer) -> None:
    objects = renderer.base("monitoring", "custom-metrics", "nodes", "endpoint-slices")
    assert await refusals(cluster, objects.values()) == {}


async def test_every_object_of_the_chart_with_everything_is_taken(cluster: Api, renderer: Renderer) -> None:
    tier = {"extraArgs": ["--log-level=debug"], "extraEnv": [{"name": "A", "value": "b"}]}
    objects = renderer.chart(
        {
            "priorityClassName": "high",
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"key": "cpu", "operator": "Exists"}],
            "imagePullSecrets": [{"name": "registry"}],
            "podAnnotations": {"a": "b"},
            "pool": {"appProtocol": "http", "failureMode": "FailOpen", "targetPorts": [8000, 8001]},
            "watcher": {"nodes": True, "endpointSlices": "model-servers", **tier},
            "collector": {"autoscaling": {"endpoints": 100}, **tier},
            "picker": {
                "autoscaling": {"inFlightRequests": 100},
                "certificateSecret": "certificate",
                "service": {"annotations": {"a": "b"}},
                **tier,
            },
            "nats": {"authSecret": "login"},
            "networkPolicy": {"metrics": [{"namespaceSelector": {}}]},
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        }
    )
    assert await refusals(cluster, objects.values()) == {}


async def test_with_a_nats_elsewhere_too(cluster: Api, renderer: Renderer) -> None:
    nats = {"enabled": False, "url": "nats://bus.example:4222", "authSecret": "login", "caSecret": "authority"}
    assert await refusals(cluster, renderer.chart({"nats": nats}).values()) == {}


async def test_a_field_that_isnt_one_would_be_refused(cluster: Api, base: Objects) -> None:
    pool = base["InferencePool", "model-servers"]
    wrong = {**pool, "spec": {**pool["spec"], "targetPort": 8000}}
    assert "targetPort" in (await refusals(cluster, [wrong]))["InferencePool model-servers"]


async def test_a_restricted_namespace_lets_every_pod_in(cluster: Api, base: Objects) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **one["spec"]["template"]}
        | {"metadata": {**one["spec"]["template"]["metadata"], "name": one["metadata"]["name"]}}
        for one in workloads(base)
    ]
    assert len(pods) == 4
    assert await refusals(cluster, pods) == {}
    privileged = {**pods[0], "spec": {**pods[0]["spec"], "securityContext": {}}}
    assert "restricted" in str(await refusals(cluster, [privileged])), "the namespace restricts nothing"


async def test_the_server_allows_the_watcher_what_its_role_says(cluster: Api, renderer: Renderer) -> None:
    objects = renderer.base("nodes", "endpoint-slices")
    for kind in ("ServiceAccount", "Role", "RoleBinding", *CLUSTER_WIDE):
        for (other, _), one in objects.items():
            if other == kind:
                await cluster.apply(one, "" if kind in CLUSTER_WIDE else NAMESPACE)
    roles = [("Role", "pointsman-watcher", False), ("ClusterRole", "pointsman-watcher-nodes", True)]
    for kind, name, wide in roles:
        await cluster.until_allowed("pointsman-watcher", NAMESPACE, objects[kind, name]["rules"][-1], cluster=wide)
        for rule in ({**one, "resources": [only]} for one in objects[kind, name]["rules"] for only in one["resources"]):
            for verb in ("get", "list", "watch", "create", "update", "patch", "delete"):
                asked = {**rule, "verbs": [verb]}
                allowed = await cluster.allowed("pointsman-watcher", NAMESPACE, asked, cluster=wide)
                assert allowed == (verb in rule["verbs"]), asked
                assert not await cluster.allowed("pointsman-picker", NAMESPACE, asked, cluster=wide), asked
    for resource in ("secrets", "configmaps", "pods/exec", "services", "namespaces"):
        denied = {"apiGroups": [""], "resources": [resource], "verbs": ["list"]}
        assert not await cluster.allowed("pointsman-watcher", NAMESPACE, denied), resource
