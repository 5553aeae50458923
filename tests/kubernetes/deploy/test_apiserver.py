"""The real API server takes every object as it is written, and lets every pod into a namespace with the strictest
rules. Fields are judged strictly: one that a kind doesn't have is an error."""

from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial

import pytest

from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.definitions import GATEWAYS
from tests.kubernetes.deploy.render import COMPONENTS, NAMESPACE, OVERLAYS, Object, Objects, Renderer, envoy, workloads

RESTRICTED = "pod-security.kubernetes.io/enforce"
CLUSTER_WIDE = ("ClusterRole", "ClusterRoleBinding")


@pytest.fixture
async def cluster(apiserver: ApiServer) -> AsyncIterator[Api]:
    """An administrator's client, with our kinds, the gateways', and the namespace, which takes restricted pods only."""
    async with apiserver.client() as admin:
        await admin.install(GATEWAYS)
        metadata = {"name": NAMESPACE, "labels": {RESTRICTED: "restricted"}}
        await admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        yield admin


async def refusals(cluster: Api, objects: Iterable[Object]) -> dict[str, str]:
    """What the server says against the objects, by their names; nothing is made."""
    found: dict[str, str] = {}
    for obj in objects:
        namespace = "" if obj["kind"] in CLUSTER_WIDE else NAMESPACE
        try:
            await cluster.apply(obj, namespace, dry_run=True)
        except ApiError as error:
            found[f"{obj['kind']} {obj['metadata']['name']}"] = error.message
    return found


TIER = {"extraArgs": ["--log-level=debug"], "extraEnv": [{"name": "A", "value": "b"}]}
EVERYTHING = {
    "priorityClassName": "high",
    "nodeSelector": {"pool": "cpu"},
    "tolerations": [{"key": "cpu", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "podAnnotations": {"a": "b"},
    "pool": {"appProtocol": "http", "failureMode": "FailOpen", "targetPorts": [8000, 8001]},
    "watcher": {"nodes": True, "endpointSlices": "model-servers", **TIER},
    "collector": {"autoscaling": {"endpoints": 100}, **TIER},
    "picker": {
        "autoscaling": {"inFlightRequests": 100},
        "certificateSecret": "certificate",
        "service": {"annotations": {"a": "b"}},
        **TIER,
    },
    "nats": {"loginsSecret": "login"},
    "networkPolicy": {"metrics": [{"namespaceSelector": {}}]},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True},
    "console": {"enabled": True},
}
ELSEWHERE = {"enabled": False, "url": "nats://bus.example:4222", "loginsSecret": "login", "caSecret": "authority"}
ALTERNATIVES = {"standalone", "console"}
"""Components that don't go with all others: a gateway of its own, and what `console-actions` includes."""
RENDERED: dict[str, Callable[[Renderer], Objects]] = {
    **{f"overlay {name}": partial(Renderer.overlay, name=name) for name in OVERLAYS},
    "base": lambda renderer: renderer.base(*(component for component in COMPONENTS if component not in ALTERNATIVES)),
    "chart with everything": lambda renderer: renderer.chart(EVERYTHING),
    "chart with another NATS": lambda renderer: renderer.chart({"nats": ELSEWHERE}),
    "envoy.yaml": lambda _: envoy(),
}


@pytest.mark.parametrize("what", RENDERED)
async def test_every_object_is_taken(cluster: Api, renderer: Renderer, what: str) -> None:
    assert await refusals(cluster, RENDERED[what](renderer).values()) == {}


async def test_a_field_that_isnt_one_would_be_refused(cluster: Api, base: Objects) -> None:
    pool = base["InferencePool", "model-servers"]
    wrong = {**pool, "spec": {**pool["spec"], "targetPort": 8000}}
    assert "targetPort" in (await refusals(cluster, [wrong]))["InferencePool model-servers"]


async def test_a_restricted_namespace_lets_every_pod_in(cluster: Api, base: Objects) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", **workload["spec"]["template"]}
        | {"metadata": {**workload["spec"]["template"]["metadata"], "name": workload["metadata"]["name"]}}
        for workload in workloads(base | envoy())
    ]
    assert len(pods) == 5
    assert await refusals(cluster, pods) == {}
    privileged = {**pods[0], "spec": {**pods[0]["spec"], "securityContext": {}}}
    assert "restricted" in str(await refusals(cluster, [privileged])), "the namespace restricts nothing"
