"""A watcher with the flags and the roles that `deploy/kubernetes` gives it, for each way to find endpoints: against the
real API server the roles are enough, and everything that they grant is used."""

from collections.abc import Mapping
from typing import Any

from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.deploy.render import NAMESPACE, Objects, Renderer, container
from tests.kubernetes.pods import Pods
from tests.kubernetes.watching import POOL, Site, config_map, pool_document
from tests.waiting import eventually

ACCOUNT = "pointsman-watcher"
CONFIG_MAP = "pointsman-config"
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


async def uses_all(site: Site, role: Object, *names: str, **settings: Any) -> None:
    """A watcher with the role finds these, complains of nothing, and uses every right."""
    settings |= {
        "token": await site.admin.service_account(ACCOUNT, site.namespace, rules=role["rules"]),
        "config_map": f"{site.namespace}/{CONFIG_MAP}",
        "kubernetes_event_grace": 0.5,
    }
    async with site.watching(**settings) as watcher, site.reading() as seen:
        await seen.sees(*names)
        await eventually(lambda: watcher.readiness.ready and not watcher.readiness.notes(), "no complaint")
        # of which an Event tells
        await site.apply(config_map(CONFIG_MAP, PICKING.replace("queue-scorer", "queue-scorre")))
        await eventually(
            lambda: used(site.server, site.namespace, site.namespace) == grants(role), "every right is used", step=0.1
        )


async def test_of_the_component_endpoint_slices(renderer: Renderer, site: Site) -> None:
    objects = renderer.base("endpoint-slices")
    service = flags(objects)["--endpoint-slices"]
    await resources(site.admin, site.namespace)
    slices: Object = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "x", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"port": 80}],
        "endpoints": [{"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "a"}}],
    }
    await site.create(slices, config_map(CONFIG_MAP, PICKING))
    await uses_all(site, objects["Role", ACCOUNT], "a-rank-0", endpoint_slices=service)


async def test_of_the_component_standalone(renderer: Renderer, site: Site) -> None:
    objects = renderer.base("standalone")
    given = flags(objects)
    await site.create(config_map(CONFIG_MAP, PICKING))
    name, _, value = given["--endpoint-selector"].partition("=")
    await site.pods.create("a", "10.1.0.1", labels={name: value})
    await uses_all(
        site,
        objects["Role", ACCOUNT],
        "a-rank-0",
        endpoint_selector=(given["--endpoint-selector"],),
        endpoint_target_ports=(int(given["--endpoint-target-ports"]),),
    )


async def test_of_a_watcher_with_pools_in_another_namespace(renderer: Renderer, site: Site) -> None:
    other = await site.admin.create_namespace()
    objects = renderer.chart({"watcher": {"pools": [f"{NAMESPACE}/{POOL}", f"models/{POOL}"]}})
    there = objects["Role", f"{NAMESPACE}-{ACCOUNT}"]
    assert there["metadata"]["namespace"] == "models"
    for place in (site.namespace, other):
        await resources(site.admin, place)
        await Pods(site.admin, place).create("a", "10.1.0.1", labels=LABELS)
    await site.create(config_map(CONFIG_MAP, PICKING))
    await bind(site.admin, objects, other, site.namespace)
    async with site.reading(namespace=other) as seen:
        pools = (f"{site.namespace}/{POOL}", f"{other}/{POOL}")
        await uses_all(site, objects["Role", ACCOUNT], "a-rank-0", pools=pools)
        await seen.sees("a-rank-0")
    await eventually(
        lambda: used(site.server, site.namespace, other) == grants(there), "every right is used there", step=0.1
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
