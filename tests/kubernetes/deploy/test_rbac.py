"""Who may do what: the watcher what it needs, nobody else anything."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.kubernetes.deploy.render import COMPONENTS, NAMESPACE, Objects, Renderer

Permission = tuple[str, str, str, tuple[str, ...]]
"""Verb, group, resource, names: no names are all of them."""

STABLE, EXPERIMENTAL, LLMD = "inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"
CONFIGURATION = "pointsman-config"


def of(verbs: Sequence[str], group: str, resources: Sequence[str], *names: str) -> set[Permission]:
    return {(verb, group, resource, names) for verb in verbs for resource in resources}


PODS = of(["list", "watch"], "", ["pods"])
EVENTS = of(["create"], "events.k8s.io", ["events"])
ALWAYS = EVENTS | of(["list", "watch"], "", ["configmaps"], CONFIGURATION)
POOL = (
    of(["list", "watch"], STABLE, ["inferencepools"])
    | of(
        ["list", "watch"],
        EXPERIMENTAL,
        ["inferencepools", "inferenceobjectives", "inferencemodelrewrites", "inferencemodels"],
    )
    | of(["list", "watch"], LLMD, ["inferenceobjectives", "inferencemodelrewrites"])
    | of(
        ["patch"],
        EXPERIMENTAL,
        ["inferenceobjectives/status", "inferencemodelrewrites/status", "inferencemodels/status"],
    )
    | of(["patch"], LLMD, ["inferenceobjectives/status", "inferencemodelrewrites/status"])
)
SLICES = of(["list", "watch"], "discovery.k8s.io", ["endpointslices"])
NODES = of(["list", "watch"], "", ["nodes"])

EXPECTED: dict[str, tuple[set[Permission], set[Permission]]] = {
    "": (ALWAYS | PODS | POOL, set()),
    "monitoring": (ALWAYS | PODS | POOL, set()),
    "custom-metrics": (ALWAYS | PODS | POOL, set()),
    "alerts": (ALWAYS | PODS | POOL, set()),
    "console": (ALWAYS | PODS | POOL, set()),
    "console-actions": (ALWAYS | PODS | POOL | of(["patch"], "", ["pods"]), set()),
    "tracing": (ALWAYS | PODS | POOL, set()),
    "endpoint-slices": (ALWAYS | SLICES | POOL, set()),
    "nodes": (ALWAYS | PODS | POOL, NODES),
    "standalone": (ALWAYS | PODS, set()),
}
"""By component: what is allowed in the namespace, and in the cluster."""


def permissions(rules: Sequence[dict[str, Any]]) -> set[Permission]:
    """Rules, one permission each. A rule with something else in it, such as a wildcard, fails."""
    found: set[Permission] = set()
    for rule in rules:
        assert rule.keys() <= {"apiGroups", "resources", "verbs", "resourceNames"}, rule
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    assert "*" not in group + resource + verb, rule
                    granted_right = verb, group, resource, tuple(rule.get("resourceNames", ()))
                    assert granted_right not in found, f"{granted_right} is allowed twice"
                    found.add(granted_right)
    return found


def allowed(objects: Objects, kind: str) -> set[Permission]:
    """What the watcher may by roles of that kind. A role that is bound to another, or to nobody, fails."""
    found: set[Permission] = set()
    bindings = [obj for (name, _), obj in objects.items() if name == f"{kind}Binding"]
    roles = {name: obj for (other, name), obj in objects.items() if other == kind}
    for binding in bindings:
        assert binding["roleRef"]["kind"] == kind
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "pointsman-watcher", "namespace": NAMESPACE}]
        found |= permissions(roles.pop(binding["roleRef"]["name"])["rules"])
    assert not roles, "roles that are bound to nobody"
    return found


def test_every_component_is_here() -> None:
    assert EXPECTED.keys() == {"", *COMPONENTS}


@pytest.mark.parametrize("component", EXPECTED)
def test_the_watcher_may_what_it_needs_and_nothing_else(renderer: Renderer, component: str) -> None:
    objects = renderer.base(*([component] if component else []))
    assert (allowed(objects, "Role"), allowed(objects, "ClusterRole")) == EXPECTED[component]


def test_releases_of_one_name_in_two_namespaces_have_cluster_roles_of_their_own(renderer: Renderer) -> None:
    values = {"watcher": {"nodes": True}}
    here, there = (
        {key for key in renderer.chart(values, namespace=namespace) if key[0].startswith("Cluster")}
        for namespace in ("a", "b")
    )
    assert len(here) == len(there) == 2
    assert not here & there


def test_rules_of_ones_own_come_beside_these(renderer: Renderer) -> None:
    """For objects that a `k8s-notification-source` of the configuration tells of."""
    own = {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["list", "watch"]}
    objects = renderer.chart({"watcher": {"extraRules": [own]}})
    assert allowed(objects, "Role") == ALWAYS | PODS | POOL | of(
        ["list", "watch"], "resource.k8s.io", ["resourceclaims"]
    )


def test_for_pools_of_other_namespaces_it_may_the_same_there_but_read_the_configuration(renderer: Renderer) -> None:
    pools = ["models/llama", "models/qwen", f"{NAMESPACE}/second"]
    objects = renderer.chart({"watcher": {"pools": pools}})
    name = f"{NAMESPACE}-pointsman-watcher"
    role, binding = objects.pop(("Role", name)), objects.pop(("RoleBinding", name))
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {"models"}
    assert permissions(role["rules"]) == PODS | POOL | EVENTS
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == objects["RoleBinding", "pointsman-watcher"]["subjects"]
    assert allowed(objects, "Role") == ALWAYS | PODS | POOL


def test_it_may_read_the_config_maps_that_pools_have_of_their_own(renderer: Renderer) -> None:
    pools = ["models/llama=policies", "models/qwen", f"{NAMESPACE}/second=more"]
    objects = renderer.chart({"watcher": {"pools": pools}})
    there, _ = (objects.pop((kind, f"{NAMESPACE}-pointsman-watcher")) for kind in ("Role", "RoleBinding"))
    of_pools = of(["list", "watch"], "", ["configmaps"], "policies")
    assert permissions(there["rules"]) == PODS | POOL | EVENTS | of_pools
    here = of(["list", "watch"], "", ["configmaps"], CONFIGURATION, "more")
    assert allowed(objects, "Role") == EVENTS | here | PODS | POOL


def test_without_a_watcher_nobody_may_anything_and_nothing_is_made_for_one(renderer: Renderer) -> None:
    objects = renderer.chart({"watcher": {"enabled": False, "nodes": True}})
    assert not [key for key in objects if "Role" in key[0] or "watcher" in key[1] or CONFIGURATION in key]
