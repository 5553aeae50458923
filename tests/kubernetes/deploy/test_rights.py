"""The watcher with the flags and the roles that `deploy/kubernetes` gives it, against the real API server: they are
enough, everything that they grant is used, and what is taken from them hurts nothing else."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from shared.bus.actions import drain
from shared.bus.subjects import Subjects, pool_token
from shared.service.pages import json_state
from tests.kubernetes.api import Api, Object
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.definitions import EXPERIMENTAL, LLMD, STABLE
from tests.kubernetes.deploy.render import NAMESPACE, Objects, Renderer, container
from tests.kubernetes.pods import Pods
from tests.kubernetes.said import MODEL, OBJECTIVE, REWRITE, referring
from tests.kubernetes.watching import POOL, Site, config_map, pool_document
from tests.waiting import eventually

ACCOUNT = "pointsman-watcher"
CONFIG_MAP = "pointsman-config"
LABELS = {"app": "model-server"}
REQUIRED = (("", "pods"), ("", "configmaps"), (STABLE, "inferencepools"), (EXPERIMENTAL, "inferencepools"))
"""Without a list of these it isn't known which endpoints there are, or by what configuration."""
PICKING = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins: [{type: queue-scorer}]\n"
BAD = PICKING.replace("queue-scorer", "queue-scorre")
BY_NODES = PICKING.replace(
    "{type: queue-scorer}",
    "{type: node-labels-extractor, parameters: {attributes: [{label: gpus, attributeKey: GPUs}]}}",
)


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
        """As a refusal says it."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'


def rights(role: Object) -> list[Right]:
    return [
        Right(verb, group, resource, tuple(rule.get("resourceNames", ())))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def used(apiserver: ApiServer, account_of: str, namespace: str) -> set[tuple[str, ...]]:
    """What the account of a namespace has asked for in a namespace, or in none; nothing was refused."""
    asked = apiserver.requests(ACCOUNT, account_of)
    assert not [request for request in asked if not request.allowed]
    return {(request.verb, request.group, request.resource) for request in asked if request.namespace == namespace}


def granted(role: Object) -> set[tuple[str, ...]]:
    return {right[:3] for right in rights(role)}


async def resources(admin: Api, namespace: str) -> None:
    """A pool and one of each that refers to it, one of them for a pool that isn't there, of which an Event tells."""
    rules = [{"targets": [{"modelRewrite": "base", "weight": 1}]}]
    documents = [pool_document(labels=LABELS), referring(OBJECTIVE, "lost", "nowhere", priority=1)]
    for group in (EXPERIMENTAL, LLMD):
        version, short = f"{group}/v1alpha2", group.partition(".")[0]
        documents.append(referring((version, OBJECTIVE[1]), f"objective-{short}", priority=1))
        documents.append(referring((version, REWRITE[1]), f"rewrite-{short}", rules=rules))
    documents.append(referring(MODEL, "model", modelName="m", criticality="Standard"))
    for document in documents:
        await admin.create(document, namespace)


async def served(site: Site, configuration: str = PICKING) -> None:
    await resources(site.admin, site.namespace)
    await site.pods.create("a", "10.1.0.1", labels=LABELS)
    await site.create(config_map(CONFIG_MAP, configuration))


async def allowed(site: Site, rules: Iterable[Mapping[str, Any]], *cluster: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a watcher that may do that."""
    token = await site.admin.service_account(ACCOUNT, site.namespace, rules=[*rules], cluster_rules=cluster)
    return {"token": token, "config_map": f"{site.namespace}/{CONFIG_MAP}", "kubernetes_event_grace": 0.5}


async def uses_all(site: Site, role: Object, cluster_roles: Sequence[Object] = (), **settings: Any) -> None:
    """A watcher with the role finds pod a, complains of nothing, and uses every right, also those for the cluster."""
    wide = [rule for cluster_role in cluster_roles for rule in cluster_role["rules"]]
    settings |= await allowed(site, role["rules"], *wide)
    async with site.watching(**settings) as watcher, site.reading() as seen:
        await seen.sees("a-rank-0")
        await eventually(lambda: watcher.readiness.ready and not watcher.readiness.notes(), "no complaint")
        await site.apply(config_map(CONFIG_MAP, BAD))  # of which an Event tells
        if settings.get("allow_actions"):
            place = Subjects(), pool_token(site.namespace, POOL), f"{site.namespace}/a-rank-0"
            assert (await drain(seen.bus, *place, drain=True, by="a test")).error == ""
        expected = {site.namespace: granted(role), "": {right for role in cluster_roles for right in granted(role)}}

        def all_used() -> bool:
            return {place: used(site.server, site.namespace, place) for place in expected} == expected

        await eventually(all_used, "every right is used", step=0.1)


@pytest.mark.parametrize("component", ["", "nodes", "endpoint-slices", "standalone", "console-actions"])
async def test_the_roles_are_enough_and_everything_that_they_grant_is_used(
    renderer: Renderer, site: Site, component: str
) -> None:
    objects = renderer.base(*([component] if component else []))
    args: list[str] = container(objects["Deployment", ACCOUNT])["args"]
    flags = {name: value for name, _, value in (arg.partition("=") for arg in args)}
    settings: dict[str, Any] = {"allow_actions": "--allow-actions" in flags}
    if component == "standalone":
        await site.pods.create("a", "10.1.0.1", labels=LABELS)
        await site.create(config_map(CONFIG_MAP, PICKING))
        settings["endpoint_selector"] = (flags["--endpoint-selector"],)
        settings["endpoint_target_ports"] = (int(flags["--endpoint-target-ports"]),)
    else:
        await served(site, BY_NODES if component == "nodes" else PICKING)
    if component == "endpoint-slices":
        settings["endpoint_slices"] = service = flags["--endpoint-slices"]
        slices: Object = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {"name": "x", "labels": {"kubernetes.io/service-name": service}},
            "addressType": "IPv4",
            "ports": [{"port": 80}],
            "endpoints": [{"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "a"}}],
        }
        await site.create(slices)
    wide = [obj for (kind, _), obj in objects.items() if kind == "ClusterRole"]
    await uses_all(site, objects["Role", ACCOUNT], wide, **settings)


async def test_of_a_watcher_with_pools_in_another_namespace(renderer: Renderer, site: Site) -> None:
    other = await site.admin.create_namespace()
    objects = renderer.chart({"watcher": {"pools": [f"{NAMESPACE}/{POOL}", f"models/{POOL}"]}})
    there = objects["Role", f"{NAMESPACE}-{ACCOUNT}"]
    await resources(site.admin, other)
    await Pods(site.admin, other).create("a", "10.1.0.1", labels=LABELS)
    await served(site)
    await bind(site.admin, objects, other, site.namespace)
    async with site.reading(namespace=other) as seen:
        pools = (f"{site.namespace}/{POOL}", f"{other}/{POOL}")
        await uses_all(site, objects["Role", ACCOUNT], pools=pools)
        await seen.sees("a-rank-0")
    await eventually(
        lambda: used(site.server, site.namespace, other) == granted(there), "every right is used there", step=0.1
    )


async def bind(admin: Api, objects: Objects, namespace: str, account_of: str) -> None:
    """The chart's Role and RoleBinding for another namespace, in that one, for the account of this one."""
    name = f"{NAMESPACE}-{ACCOUNT}"
    (subject,) = objects["RoleBinding", name]["subjects"]
    for kind, more in (("Role", {}), ("RoleBinding", {"subjects": [{**subject, "namespace": account_of}]})):
        await admin.create({**objects[kind, name], "metadata": {"name": name}, **more}, namespace)


@pytest.mark.parametrize("group_and_resource", REQUIRED, ids=" ".join)
async def test_without_the_right_to_list_what_is_needed_nothing_is_published(
    base: Objects, site: Site, group_and_resource: tuple[str, str]
) -> None:
    await served(site)
    every = rights(base["Role", ACCOUNT])
    [lacking] = [right for right in every if right.verb == "list" and right[1:3] == group_and_resource]
    settings = await allowed(site, [right.rule for right in every if right != lacking])
    async with site.watching(**settings) as service, site.reading() as seen:
        await eventually(lambda: str(lacking) in service.readiness.reasons().get("published", ""), str(lacking))
        assert not seen.facts("endpoint")


@pytest.mark.parametrize("verbs", [{"watch"}, {"list"}, {"patch", "create"}], ids=lambda verbs: " ".join(sorted(verbs)))
async def test_other_rights_that_are_lacking_are_named_and_the_rest_goes_on(
    renderer: Renderer, site: Site, verbs: set[str]
) -> None:
    """Among them those on nodes, at which an extractor looks."""
    await served(site, BY_NODES)
    objects = renderer.base("nodes")
    every = rights(objects["Role", ACCOUNT])
    lacking = [
        right for right in every if right.verb in verbs and not (right.verb == "list" and right[1:3] in REQUIRED)
    ]
    settings = await allowed(site, [right.rule for right in every if right not in lacking])
    if "list" in verbs:
        lacking.append(Right("list", "", "nodes"))
    async with site.watching(**settings) as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await eventually(lambda: service.readiness.ready, "ready, with a note")

        def unsaid() -> list[str]:
            state = b"".join(json_state(service.state(), msgspec.json.encode)).decode()  # the notes show some of many
            text = state.replace('\\"', '"')
            return [str(right) for right in lacking if str(right) not in text]

        await eventually(lambda: not unsaid(), unsaid)
        assert service.readiness.notes()
