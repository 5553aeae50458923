"""The chart and the kustomizations make the same objects: whichever somebody installs by, the other's words hold."""

from copy import deepcopy
from typing import Any

import pytest

from tests.kubernetes.deploy.render import COMPONENTS, DEPLOY, NAMESPACE, OVERLAYS, Object, Objects, Renderer

GATEWAY_KINDS = {"Gateway", "HTTPRoute", "DestinationRule", "HealthCheckPolicy", "GCPBackendPolicy"}
"""What an overlay has in its gateway.yaml, for the chart's users to apply as it is."""

VALUES: dict[str, dict[str, Any]] = {
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "networkPolicy": {
            "metrics": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        },
    },
    "custom-metrics": {
        "picker": {"autoscaling": {"inFlightRequests": 500}},
        "collector": {"autoscaling": {"endpoints": 250}},
    },
    "alerts": {"prometheusRule": {"enabled": True}},
    "console": {"console": {"enabled": True}},
    "console-actions": {"console": {"enabled": True, "allowActions": True, "tokenSecret": "pointsman-console"}},
    "tracing": {"picker": {"tracing": {"enabled": True}}},
    "nodes": {"watcher": {"nodes": True}},
    "endpoint-slices": {"watcher": {"endpointSlices": "model-servers"}},
    "standalone": {"pool": {"standalone": True}},
}
"""What the chart is told for a component."""


def plain(objects: Objects) -> Objects:
    """Without what only one of the two can say: whose an object is (Helm), that pods change with their configuration
    (Helm's checksum), in which namespace it is (Helm's installation), the namespace in a ClusterRole's name, and
    passwords that Helm draws."""
    found: Objects = {}
    for (kind, name), value in deepcopy(objects).items():
        if kind == "Secret":
            continue
        metadata = value["metadata"]
        assert metadata.pop("namespace", NAMESPACE) == NAMESPACE
        for label in ("app.kubernetes.io/managed-by", "helm.sh/chart"):
            metadata["labels"].pop(label, None)
        _without_checksum(value)
        if kind.startswith("ClusterRole"):
            name = metadata["name"] = name.removeprefix(f"{NAMESPACE}-")
            if "roleRef" in value:
                value["roleRef"]["name"] = value["roleRef"]["name"].removeprefix(f"{NAMESPACE}-")
        found[kind, name] = value
    return found


def _without_checksum(value: Object) -> None:
    pod = value.get("spec", {}).get("template", {}).get("metadata", {})
    pod.get("annotations", {}).pop("checksum/config", None)
    if not pod.get("annotations", True):
        del pod["annotations"]


def assert_same(kustomized: Objects, charted: Objects) -> None:
    left, right = plain(kustomized), plain(charted)
    assert left.keys() == right.keys()
    for key, value in left.items():
        assert value == right[key], key


def test_the_chart_as_it_is_makes_the_base(base: Objects, chart: Objects) -> None:
    assert_same(base, chart)


def test_every_component_has_its_values_here() -> None:
    assert set(COMPONENTS) == VALUES.keys()


@pytest.mark.parametrize("component", VALUES)
def test_a_component_is_a_value_of_the_chart(renderer: Renderer, base: Objects, component: str) -> None:
    made = renderer.base(component)
    assert made != base, "the component changes nothing"
    assert_same(made, renderer.chart(VALUES[component]))


def test_components_go_together(renderer: Renderer) -> None:
    together = ("console", "monitoring", "alerts", "custom-metrics", "nodes", "endpoint-slices")
    values: dict[str, Any] = {}
    for component in together:
        for part, what in VALUES[component].items():
            values[part] = values.get(part, {}) | what
    assert_same(renderer.base(*together), renderer.chart(values))


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_its_values_and_its_gateway(renderer: Renderer, name: str) -> None:
    made = renderer.overlay(name)
    without = {key: value for key, value in made.items() if key[0] not in GATEWAY_KINDS}
    assert_same(without, renderer.chart(DEPLOY / "overlays" / name / "values.yaml"))
    assert (len(without) < len(made)) == (name != "standalone")


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "standalone"])
def test_a_route_of_an_overlay_leads_through_its_gateway_to_the_pool(renderer: Renderer, name: str) -> None:
    made = renderer.overlay(name)
    ((_, pool),) = [key for key in made if key[0] == "InferencePool"]
    ((_, gateway),) = [key for key in made if key[0] == "Gateway"]
    ((_, route),) = [key for key in made if key[0] == "HTTPRoute"]
    spec = made["HTTPRoute", route]["spec"]
    assert [ref["name"] for ref in spec["parentRefs"]] == [gateway]
    (rule,) = spec["rules"]
    assert [(ref["group"], ref["kind"], ref["name"]) for ref in rule["backendRefs"]] == [
        ("inference.networking.k8s.io", "InferencePool", pool)
    ]
    for (kind, _), value in made.items():
        if kind in ("HealthCheckPolicy", "GCPBackendPolicy"):
            assert value["spec"]["targetRef"]["name"] == pool
        if kind == "DestinationRule":
            assert ("Service", value["spec"]["host"]) in made


def test_another_release_shares_nothing_with_it_but_the_pools_name(renderer: Renderer, chart: Objects) -> None:
    other = renderer.chart({"pool": {"name": "others"}}, release="second")
    assert not chart.keys() & other.keys()
    assert "pointsman-" not in str([{**document, "metadata": {}} for document in other.values()])
