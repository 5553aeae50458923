"""docs/kubernetes.md can be followed literally: its commands render, its examples are what the API server takes."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from pointsman.docs import DOCS
from pointsman.local.stack import LocalStack, StackPlan, simulators
from services.watcher.kubernetes.events import event_of
from services.watcher.kubernetes.reports import Finding
from tests.kubernetes.api import Api
from tests.kubernetes.apiserver import ApiServer
from tests.kubernetes.definitions import GATEWAYS
from tests.kubernetes.deploy.render import COMPONENTS, DEPLOY, NAMESPACE, OVERLAYS, Objects, Renderer
from tests.kubernetes.deploy.test_apiserver import cluster
from tests.kubernetes.deploy.test_rbac import ALWAYS, NODES, PODS, POOL, SLICES, Permission
from tests.waiting import eventually

__all__ = ["cluster"]

ROOT = DEPLOY.parents[1]
PAGE = (DOCS / "kubernetes.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands() -> list[list[str]]:
    """Every command of the page, word by word."""
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line for language, block in blocks if not language for line in block.replace("\\\n", " ").splitlines()]
    return [shlex.split(line.rstrip("& ")) for line in lines if line.strip()]


async def test_helm_installs_upgrades_and_goes_back(
    renderer: Renderer, apiserver: ApiServer, cluster: Api, namespace: str, tmp_path: Path
) -> None:
    """The page's commands, in its order, with another namespace. No controller is there, so no pod starts."""
    environment = {"KUBECONFIG": str(apiserver.kubeconfig(tmp_path / "kubeconfig")), "HOME": str(tmp_path), "PATH": ""}
    said: list[str] = []
    passwords: list[dict[str, str]] = []
    for words in [words for words in commands() if words[0] == "helm" and "pointsman" in words]:
        words = [renderer.helm, *(namespace if word == NAMESPACE else word for word in words[1:])]
        done = await asyncio.to_thread(
            subprocess.run, words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        deployment = await cluster.get("apps/v1", "Deployment", "pointsman-picker", namespace)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        said.append(container["image"].rpartition(":")[2])
        passwords.append((await cluster.get("v1", "Secret", "pointsman-nats-logins", namespace))["data"])
        pool = await cluster.get("inference.networking.k8s.io/v1", "InferencePool", "llama", namespace)
        assert pool["spec"]["selector"] == {"matchLabels": {"model": "llama"}}
        assert pool["spec"]["targetPorts"] == [{"number": 8000}]
    assert said[1::2] == ["0.1.0", "0.1.0", "0.1.1", "0.1.0"]
    assert passwords == passwords[:1] * 4
    assert f"picks for the InferencePool {namespace}/llama" in said[0]
    config = await cluster.get("v1", "ConfigMap", "pointsman-config", namespace)
    assert "maxNumOfEndpoints: 3" in config["data"]["pointsman.yaml"]


NOT_RUN = {
    "apply -f https": "the definitions come from the internet, and are there in a form of ours",
    "--namespace inference port-forward": "there is no kubelet, so no pod runs",
    "--namespace inference exec": "there is no kubelet, so no pod runs",
}
"""The beginnings of the page's kubectl commands that can't be run here, and why."""


@pytest.mark.asyncio(loop_scope="session")
async def test_kubectl_takes_the_pages_commands_as_they_stand(kubectl: Path, victim: ApiServer, tmp_path: Path) -> None:
    """All of them, in the page's order, with the example of a kustomization, a server without the page's namespace, and
    two objects that the commands are to show."""
    server = victim
    environment = {"KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig")), "HOME": str(tmp_path), "PATH": ""}
    folder = tmp_path / "inference"
    folder.mkdir()
    (text,) = [example for example in EXAMPLES if "kind: Kustomization" in example]
    (folder / "kustomization.yaml").write_text(text)
    (tmp_path / "pointsman").symlink_to(ROOT)
    said: dict[str, str] = {}
    shown = False
    async with server.client() as admin:
        await admin.install(GATEWAYS)
        for words in (words[1:] for words in commands() if words[0] == "kubectl"):
            command = " ".join(words)
            if any(command.startswith(start) for start in NOT_RUN):
                continue
            if "get" in words and not shown:
                await something_to_see(admin)
                shown = True
            done = await asyncio.to_thread(
                subprocess.run,
                [str(kubectl), *words],
                cwd=folder if "-k" in words else ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"
            said[command] = done.stdout
        picker = await admin.get("apps/v1", "Deployment", "pointsman-picker", NAMESPACE)
        pool = await admin.get("inference.networking.k8s.io/v1", "InferencePool", "model-servers", NAMESPACE)
    assert picker["spec"]["template"]["spec"]["containers"][0]["image"] == "registry.example.com/pointsman:0.1.0"
    assert pool["spec"]["selector"] == {"matchLabels": {"model": "llama"}}
    assert len(said) + len(NOT_RUN) == len([words for words in commands() if words[0] == "kubectl"])
    assert "deployment.apps/pointsman-picker created" in said["apply -k ."]
    assert said["--namespace inference get inferencepool"].splitlines()[1].startswith("model-servers ")
    assert "name: premium" in said["--namespace inference get inferenceobjectives -o yaml"]
    assert "PoolNotFound" in said["--namespace inference events --types=Warning"]
    ours = "app.kubernetes.io/instance=pointsman"
    assert "a-picker" in said[f"--namespace inference get pods -l {ours}"]


async def test_curl_is_answered_as_the_page_says(tmp_path: Path) -> None:
    """The page's commands, with the addresses of a picker and a proxy that have been started here."""
    if (curl := shutil.which("curl")) is None:
        pytest.skip("there is no curl")
    plan = StackPlan(simulators=simulators(1, models="llama", speed=20), collectors=1, pickers=1)
    said: list[str] = []
    async with LocalStack(plan, tmp_path) as stack:
        (picker,) = stack.pickers

        async def scraped() -> bool:
            endpoints = (await picker.state())["endpoints"]
            return bool(endpoints) and all(endpoint["attributes"] for endpoint in endpoints)

        await eventually(scraped, "metrics of every endpoint")
        for words in (words for words in commands() if words[0] == "curl"):
            there = [
                word.replace("localhost:9090", picker.url.removeprefix("http://")).replace("http://GATEWAY", stack.url)
                for word in words[1:]
            ]
            done = await asyncio.to_thread(
                subprocess.run, [curl, "--noproxy", "*", *there], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{words}: {done.stderr}"
            said.append(done.stdout)
    ready, state, answer, decision = said
    assert "ready" in ready
    (endpoint,) = json.loads(state)["endpoints"]
    assert endpoint["attributes"]
    assert answer.startswith("HTTP/1.1 200")
    assert '"model":"llama"' in answer.replace(" ", "")
    assert endpoint["id"] in decision


async def something_to_see(admin: Api) -> None:
    """A pod of ours, an objective, and an Event as a watcher makes it."""
    labels = {"app.kubernetes.io/instance": "pointsman"}
    pod = {"metadata": {"name": "a-picker", "labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    for document in (
        {"apiVersion": "v1", "kind": "Pod", **pod},
        {
            "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
            "kind": "InferenceObjective",
            "metadata": {"name": "premium"},
            "spec": {"poolRef": {"name": "model-servers"}, "priority": 1},
        },
    ):
        await admin.apply(document, NAMESPACE)
    objective = await admin.get("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective", "premium", NAMESPACE)
    finding = Finding("PoolNotFound", "spec.poolRef.name: there is no InferencePool")
    await admin.create(event_of(objective, finding, "watcher-1", "2026-08-01T12:00:00.000000Z"), NAMESPACE)


async def test_the_pool_of_the_page_is_the_bases(cluster: Api, base: Objects) -> None:
    (text,) = [example for example in EXAMPLES if "kind: InferencePool\nmetadata" in example]
    pool = await cluster.apply(yaml.safe_load(text), NAMESPACE, dry_run=True)
    ours = await cluster.apply(base["InferencePool", "model-servers"], NAMESPACE, dry_run=True)
    assert pool["spec"] == ours["spec"]


def test_the_tables_have_every_overlay_and_component() -> None:
    first = re.findall(r"^\| `([a-z-]+)` \|", PAGE, re.MULTILINE)
    assert {*OVERLAYS, *COMPONENTS} - {*first} == set()
    assert all(f"`{overlay}`" in PAGE for overlay in OVERLAYS)


def test_the_table_of_rights_is_the_roles() -> None:
    rows = PAGE.partition("## Rights")[2].partition("##")[0]
    found: set[Permission] = set()
    for row in re.findall(r"^\| (–|`[^`]+`) \| (.+?) \| ([a-z, ]+) \|", rows, re.MULTILINE):
        group = row[0].strip("`–")
        resources, _, names = row[1].partition(", only ")
        for resource in re.findall(r"`([^`]+)`", resources):
            found |= {(verb, group, resource, tuple(re.findall(r"`(.+?)`", names))) for verb in row[2].split(", ")}
    assert found == ALWAYS | PODS | POOL | SLICES | NODES
