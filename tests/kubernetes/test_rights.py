"""The watcher with a ServiceAccount's token and the role of deploy/kubernetes: it is enough, and no more than that."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from services.picker.app import PickerService
from tests.in_process import picker, serving
from tests.kubernetes.api import Object
from tests.kubernetes.deploy.render import DEPLOY
from tests.kubernetes.pods import NODE
from tests.kubernetes.watching import LABELS, POOL, PoolReader, Site, config_map
from tests.waiting import eventually

STABLE, EXPERIMENTAL, LLMD = "inference.networking.k8s.io", "inference.networking.x-k8s.io", "llm-d.ai"
CONFIG_MAP = "pointsman-config"
ACCOUNT = "pointsman-watcher"
REQUIRED = (("", "pods"), ("", "configmaps"), (STABLE, "inferencepools"), (EXPERIMENTAL, "inferencepools"))
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


@pytest.fixture(autouse=True)
async def everything(site: Site) -> None:
    """One of each that a watcher reads."""
    refers: Mapping[str, Any] = {"poolRef": {"name": POOL}}
    rewrites = {"rules": [{"targets": [{"modelRewrite": "base", "weight": 1}]}]}
    await site.serve("a")
    for group in (EXPERIMENTAL, LLMD):
        short = group.partition(".")[0]
        await site.create(
            _resource(group, "InferenceObjective", f"objective-{short}", {**refers, "priority": 1}),
            _resource(group, "InferenceModelRewrite", f"rewrite-{short}", {**refers, **rewrites}),
        )
    model = {**refers, "modelName": "m", "criticality": "Standard"}
    await site.create(_resource(EXPERIMENTAL, "InferenceModel", "model", model), config_map(CONFIG_MAP, PICKING))


def _resource(group: str, kind: str, name: str, spec: Mapping[str, Any]) -> Object:
    return {"apiVersion": f"{group}/v1alpha2", "kind": kind, "metadata": {"name": name}, "spec": dict(spec)}


def complete(seen: PoolReader) -> bool:
    """Whether the reader has all of `everything`."""
    kinds = ("endpoint", "pool", "objective", "rewrite", "model", "config")
    return seen.replica.synced and [len(seen.facts(kind)) for kind in kinds] == [1, 1, 2, 2, 1, 1]


async def allowed(site: Site, rules: Sequence[Right], cluster: Sequence[Right] = ()) -> dict[str, Any]:
    """The settings of a watcher that may do that."""
    token = await site.admin.service_account(
        ACCOUNT,
        site.namespace,
        rules=[one.rule for one in rules],
        cluster_rules=[one.rule for one in cluster],
    )
    return {"token": token, "config_map": f"{site.namespace}/{CONFIG_MAP}"}


async def test_the_role_is_enough_and_everything_that_it_grants_is_used(site: Site) -> None:
    async with site.watching(**await allowed(site, GRANTED)) as service, site.reading() as seen:
        await eventually(lambda: complete(seen), "everything")
        await eventually(lambda: service.readiness.ready and not service.readiness.notes(), "no complaint")
        await site.pods.create("b", "10.1.0.2", labels=LABELS)
        await seen.sees("a-rank-0", "b-rank-0")
        await site.apply(config_map(CONFIG_MAP, PICKING.replace("queue-scorer", "kv-cache-utilization-scorer")))
        await eventually(lambda: "kv-cache" in str(seen.facts("config")), "the next configuration")
        await site.apply(config_map(CONFIG_MAP, BAD))  # of which an Event tells

        def used() -> bool:
            asked = site.server.requests(ACCOUNT, site.namespace)
            return {(one.verb, one.group, one.resource) for one in asked} == {one[:3] for one in GRANTED}

        await eventually(used, "every right is used", step=0.1)
    asked = site.server.requests(ACCOUNT, site.namespace)
    assert not [one for one in asked if not one.allowed]
    assert {one.namespace for one in asked} == {site.namespace}


def words(lacking: Right) -> str:
    return f'cannot {lacking.verb} resource "{lacking.resource}" in API group "{lacking.group}"'


@pytest.mark.parametrize(
    "lacking", [one for one in GRANTED if one.verb == "list" and (one.group, one.resource) in REQUIRED], ids=str
)
async def test_without_the_right_to_list_what_is_needed_nothing_is_published(site: Site, lacking: Right) -> None:
    settings = await allowed(site, [one for one in GRANTED if one != lacking])
    async with site.watching(**settings) as service, site.reading() as seen:
        await eventually(lambda: words(lacking) in service.readiness.reasons().get("published", ""), words(lacking))
        assert not seen.facts("endpoint")


@pytest.mark.parametrize("verbs", [{"watch"}, {"list"}, {"patch", "create"}], ids=lambda verbs: " ".join(sorted(verbs)))
async def test_other_rights_that_are_lacking_are_named_and_the_rest_goes_on(site: Site, verbs: set[str]) -> None:
    lacking = [
        one
        for one in GRANTED
        if one.verb in verbs and not (one.verb == "list" and (one.group, one.resource) in REQUIRED)
    ]
    assert lacking
    settings = await allowed(site, [one for one in GRANTED if one not in lacking])
    async with site.watching(**settings) as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await eventually(lambda: service.readiness.ready, "ready, with a note")
        await site.apply(config_map(CONFIG_MAP, BAD))  # of which an Event would tell

        def unsaid() -> list[str]:
            text = json.dumps(service.state()).replace('\\"', '"')  # the notes show some of many
            return [words(one) for one in lacking if words(one) not in text]

        await eventually(lambda: not unsaid(), unsaid)
        assert service.readiness.notes()


def gpu_class(service: PickerService, namespace: str) -> float | None:
    """As the picker has it of pod a."""
    for one in service.state()["endpoints"]:
        if one["id"] == f"{namespace}/a-rank-0":
            values = {wire.partition("/")[0]: known["value"] for wire, known in one["attributes"].items()}
            return values.get("GPUClass")
    return None


@pytest.mark.parametrize("granted", [True, False], ids=["granted", "not granted"])
async def test_nodes_that_an_extractor_looks_at_need_a_right_and_its_lack_hurts_nothing_else(
    site: Site, granted: bool
) -> None:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100"}
    await site.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": labels}})
    await site.apply(config_map(CONFIG_MAP, BY_NODES))
    settings = await allowed(site, GRANTED, NODES if granted else ())
    made = picker(site.nats.url, pool_name=POOL, pool_namespace=site.namespace)
    async with site.watching(**settings) as service, site.reading() as seen, serving(made) as picking:
        await eventually(lambda: complete(seen), "everything")
        if granted:
            await eventually(lambda: gpu_class(picking, site.namespace) == 3.0, "the node's label")
            labels = {"nvidia.com/gpu.product": "NVIDIA-A100"}
            await site.admin.patch("v1", "Node", NODE, {"metadata": {"labels": labels}}, "")
            await eventually(lambda: gpu_class(picking, site.namespace) == 2.0, "the change of the label")
            assert not service.readiness.notes()
            asked = [one for one in site.server.requests(ACCOUNT, site.namespace) if not one.namespace]
            assert {(one.verb, one.resource) for one in asked} == {(one.verb, one.resource) for one in NODES}
        else:
            await eventually(lambda: 'cannot list resource "nodes"' in str(service.readiness.notes()), "the reason")
            await site.pods.create("b", "10.1.0.2", labels=LABELS)
            await seen.sees("a-rank-0", "b-rank-0")
            await eventually(lambda: service.readiness.ready, "ready")
            assert gpu_class(picking, site.namespace) is None
