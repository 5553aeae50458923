"""Autoscalers ask for metrics that the tiers serve, and the rules for the adapter serve what they ask for."""

import re
from typing import Any

import yaml

from pointsman.metrics_page import described, registries
from tests.kubernetes.deploy.render import DEPLOY, Objects, Renderer

RULES: list[dict[str, Any]] = yaml.safe_load(
    (DEPLOY / "components/custom-metrics/prometheus-adapter-values.yaml").read_text()
)["rules"]["custom"]


def asked(objects: Objects) -> dict[str, str]:
    """The metrics of pods, by the tier that is scaled by them."""
    return {
        name.removeprefix("pointsman-"): metric["pods"]["metric"]["name"]
        for (kind, name), obj in objects.items()
        if kind == "HorizontalPodAutoscaler"
        for metric in obj["spec"]["metrics"]
        if metric["type"] == "Pods"
    }


def test_an_autoscaler_asks_for_a_gauge_of_the_tier_that_it_scales(renderer: Renderer) -> None:
    found = asked(renderer.base("custom-metrics"))
    assert found.keys() == {"picker", "collector"}
    for tier, metric in found.items():
        # one series a pod: with labels of its own the sum of them would be scaled by
        kinds = {metric.name: (metric.kind, metric.labels) for metric in described(registries()[tier])}
        assert kinds[metric] == ("gauge", ())


def test_without_the_component_they_need_no_adapter(base: Objects) -> None:
    assert asked(base) == {}


def test_the_adapters_rules_serve_these_metrics_of_pods(renderer: Renderer) -> None:
    served = set()
    for rule in RULES:
        match = re.fullmatch(r"(\w+)\{namespace!=\"\",pod!=\"\"\}", rule["seriesQuery"])
        assert match, rule["seriesQuery"]
        served.add(match[1])
        assert rule["resources"]["overrides"] == {resource: {"resource": resource} for resource in ("namespace", "pod")}
    assert served == set(asked(renderer.base("custom-metrics")).values())
