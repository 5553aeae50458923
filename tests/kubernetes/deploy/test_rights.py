"""A watcher with the flags and the roles that `deploy/kubernetes` gives it, for each way to find endpoints: against the
real API server the roles are enough, and everything that they grant is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.deploy.render import NAMESPACE, Objects, Renderer, container
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import POOL, pool_document, reading, watching
from tests.nats import NatsServer
from tests.protocol.watcher.harness import eventually

pytestmark = pytest.mark.usefixtures("kubernetes_peers")

ACCOUNT = "pointsman-watcher"
LABELS = {"app": "model-server"}
PICKING = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
LLMD, EXPERIMENTAL = "llm-d.ai", "inference.networking.x-k8s.io"
Grant = tuple[str, str, str]
"""Verb, group and resource."""


def flags(objects: Objects) -> Mapping[str, str]:
    """What the watcher's container is told, by flag."""
    args: list[str] = container(objects["Deployment", ACCOUNT])["args"]
    return {name: value for name, _, value in (one.partition("=") for one in args)}


def grants(role: Object) -> set[Grant]:
    return {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def used(apiserver: ApiServer, account_of: str, namespace: str) -> set[Grant]:
    """What the account of a namespace has asked for in a namespace; nothing was refused."""
    asked = apiserver.requests(ACCOUNT, account_of)
    assert not [one for one in asked if not one.allowed]
    return {(one.verb, one.group, one.resource) for one in asked if one.namespace == namespace}


def referring(group: str, kind: str, name: str, **spec: object) -> Object:
    named = {"poolRef": {"name": POOL}, **spec}
    return {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": named}


async def resources(admin: Api, namespace: str) -> None:
    """A pool and one of each that refers to it, one of them for a pool that isn't there, of which an Event tells."""
    await admin.create(pool_document(labels=LABELS), namespace)
    rules = [{"targets": [{"modelRewrite": "base", "weight": 1}]}]
    for group in (EXPERIMENTAL, LLMD):
        short = group.partition(".")[0]
        await admin.create(referring(group, "InferenceObjective", f"objective-{short}", priority=1), namespace)
        await admin.create(referring(group, "InferenceModelRewrite", f"rewrite-{short}", rules=rules), namespace)
    model = referring(EXPERIMENTAL, "InferenceModel", "model", modelName="m", criticality="Standard")
    await admin.create(model, namespace)
    lost = referring(EXPERIMENTAL, "InferenceObjective", "lost", priority=1)
    await admin.create({**lost, "spec": {**lost["spec"], "poolRef": {"name": "nowhere"}}}, namespace)


async def configure(admin: Api, namespace: str, text: str = PICKING) -> None:
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "pointsman-config"},
        "data": {"c.yaml": text},
    }
    await admin.apply(document, namespace)


async def test_of_the_component_endpoint_slices(
    renderer: Renderer, apiserver: ApiServer, admin: Api, namespace: str, nats: NatsServer, tmp_path: Path
) -> None:
    objects = renderer.base("endpoint-slices")
    role, service = objects["Role", ACCOUNT], flags(objects)["--endpoint-slices"]
    await resources(admin, namespace)
    await configure(admin, namespace)
    slices: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "a"}}],
    }
    await admin.create(slices, namespace)
    settings: dict[str, Any] = {
        "token": await admin.service_account(ACCOUNT, namespace, rules=role["rules"]),
        "config_map": f"{namespace}/pointsman-config",
        "endpoint_slices": service,
        "kubernetes_event_grace": 0.5,
    }
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as watcher,
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("a-rank-0", timeout=10.0)
        await eventually(lambda: watcher.readiness.ready and not watcher.readiness.notes(), "no complaint", 10.0)
        await eventually(lambda: used(apiserver, namespace, namespace) == grants(role), "every right is used", 15.0)


async def test_of_the_component_standalone(
    renderer: Renderer, apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    objects = renderer.base("standalone")
    role, given = objects["Role", ACCOUNT], flags(objects)
    await configure(admin, namespace)
    name, _, value = given["--endpoint-selector"].partition("=")
    await pods.create("a", "10.1.0.1", labels={name: value})
    settings: dict[str, Any] = {
        "token": await admin.service_account(ACCOUNT, namespace, rules=role["rules"]),
        "config_map": f"{namespace}/pointsman-config",
        "endpoint_selector": (given["--endpoint-selector"],),
        "endpoint_target_ports": (int(given["--endpoint-target-ports"]),),
    }
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as watcher,
        reading(nats.url, namespace) as seen,
    ):
        await seen.sees("a-rank-0", timeout=10.0)
        await eventually(lambda: watcher.readiness.ready and not watcher.readiness.notes(), "no complaint", 10.0)
        await configure(admin, namespace, PICKING.replace("queue-scorer", "queue-scorre"))  # of which an Event tells
        await eventually(lambda: used(apiserver, namespace, namespace) == grants(role), "every right is used", 15.0)


async def test_of_a_watcher_with_pools_in_another_namespace(
    renderer: Renderer, apiserver: ApiServer, admin: Api, namespace: str, pods: Pods, nats: NatsServer, tmp_path: Path
) -> None:
    other = await admin.create_namespace()
    objects = renderer.chart({"watcher": {"pools": [f"{NAMESPACE}/{POOL}", f"models/{POOL}"]}})
    here, there = objects["Role", ACCOUNT], objects["Role", f"{NAMESPACE}-{ACCOUNT}"]
    assert there["metadata"]["namespace"] == "models"
    for place in (namespace, other):
        await resources(admin, place)
        await Pods(admin, place).create("a", "10.1.0.1", labels=LABELS)
    await configure(admin, namespace)
    token = await admin.service_account(ACCOUNT, namespace, rules=here["rules"])
    await bind(admin, objects, other, namespace)
    settings: dict[str, Any] = {
        "token": token,
        "config_map": f"{namespace}/pointsman-config",
        "pools": (f"{namespace}/{POOL}", f"{other}/{POOL}"),
        "kubernetes_event_grace": 0.5,
    }
    async with (
        watching(nats.url, apiserver, namespace, tmp_path, **settings) as watcher,
        reading(nats.url, namespace) as first,
        reading(nats.url, other) as second,
    ):
        await first.sees("a-rank-0", timeout=10.0)
        await second.sees("a-rank-0", timeout=10.0)
        await eventually(lambda: watcher.readiness.ready and not watcher.readiness.notes(), "no complaint", 10.0)
        await eventually(lambda: used(apiserver, namespace, other) == grants(there), "every right is used there", 15.0)
        await eventually(
            lambda: used(apiserver, namespace, namespace) == grants(here), "every right is used here", 15.0
        )


async def bind(admin: Api, objects: Objects, namespace: str, account_of: str) -> None:
    """The chart's Role and RoleBinding for another namespace, in that one, for the account of this one."""
    name = f"{NAMESPACE}-{ACCOUNT}"
    for kind in ("Role", "RoleBinding"):
        document = {**objects[kind, name], "metadata": {"name": name}}
        if kind == "RoleBinding":
            (subject,) = document["subjects"]
            document["subjects"] = [{**subject, "namespace": account_of}]
        await admin.create(document, namespace)
    await admin.until_allowed(ACCOUNT, namespace, objects["Role", name]["rules"][0], of=account_of)
