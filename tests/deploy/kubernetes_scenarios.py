"""What docs/kubernetes.md promises of the chart, under constant load through an Envoy in the cluster."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.images import OURS, PREVIOUS, REVISION, ROOT, UPGRADE
from tests.deploy.kubernetes import (
    CHART,
    COLLECTORS,
    DEPLOYMENTS,
    PATIENCE,
    PICKERS,
    PREVIOUS_TREE,
    STATEFUL,
    WATCHERS,
    Installation,
)
from tests.deploy.kubernetes_objects import NAMESPACE, RELEASE
from tests.deploy.kubernetes_variants import variant
from tests.deploy.metrics import metric_apis
from tests.deploy.results import Result
from tests.deploy.scenario import Scenarios, first_answers, response_broke_off
from tests.deploy.shell import run
from tests.faults.system.load import Load
from tests.waiting import eventually

NATS = f"{RELEASE}-nats"
TIERS = ("watcher", "collector", "picker", "nats")

scenario: Scenarios[Installation] = Scenarios()


async def everything(installed: Installation, only: str) -> list[Result]:
    """The installation, and all scenarios and variants, or those whose names match `only`."""
    first = await first_answers(installed.install, installed, installed.settled)
    return [first, *await scenario.play(installed, only), *await variant.play(installed, only)]


@scenario("half a minute of load, and nothing else")
async def measured(installed: Installation, load: Load) -> str:
    """What each tier takes: what the requests and limits of the chart are made of."""
    pids = {tier: [await installed.processes(pod) for pod in await installed.tier(tier)] for tier in TIERS}
    before, asked, began = _cpu(pids), len(load.request_ids), time.monotonic()
    await asyncio.sleep(30)
    requests, seconds = len(load.request_ids) - asked, time.monotonic() - began
    used = {tier: cpu - before[tier] for tier, cpu in _cpu(pids).items()}
    memory = {tier: max(map(_memory, pids[tier])) for tier in TIERS}
    return (
        f"{requests / seconds:.0f} requests/s, of which each takes {1000 * used['picker'] / requests:.1f} ms of a "
        f"picker's CPU, with all that it does besides; in thousandths of a core and MB, a pod takes "
        + ", ".join(
            f"{tier} {1000 * used[tier] / seconds / len(pids[tier]):.0f} and {memory[tier]:.0f}" for tier in TIERS
        )
    )


def _cpu(pids: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, float]:
    """Seconds of CPU of each tier's processes."""
    ticks = os.sysconf("SC_CLK_TCK")
    found = {}
    for tier, pods in pids.items():
        fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pod in pods for pid in pod]
        found[tier] = sum(int(one[11]) + int(one[12]) for one in fields) / ticks  # utime and stime
    return found


def _memory(pids: Sequence[int]) -> float:
    """The resident megabytes of a pod."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


for _name in (PICKERS, COLLECTORS, WATCHERS, "model-server"):

    async def _restart(installed: Installation, load: Load, name: str = _name) -> None:
        await installed.restart(name)
        await installed.settled()

    scenario(f"rolling restart of {_name.removeprefix(f'{RELEASE}-')}s")(_restart)


@scenario("rolling restart of NATS, three servers")
async def nats_restarted(installed: Installation, load: Load) -> None:
    await installed.restart(NATS, STATEFUL)
    await installed.settled()


@scenario("pickers 2 → 4 → 1 → 2")
async def pickers(installed: Installation, load: Load) -> None:
    for replicas in (4, 1, 2):
        await installed.scale(PICKERS, replicas)
        await installed.settled()
        await load.goes_on()


@scenario("model servers 3 → 10 → 2 → 3")
async def model_servers(installed: Installation, load: Load) -> None:
    for replicas in (10, 2, 3):
        await installed.scale("model-server", replicas)
        await installed.settled(endpoints=replicas)
        await load.goes_on()


@scenario("another image for everything of the release at once")
async def upgraded(installed: Installation, load: Load) -> None:
    before = installed.values
    installed.values = {**before, "image": {"tag": UPGRADE.rpartition(":")[2]}}
    await installed.upgrade()
    for tier in ("watcher", "collector", "picker"):
        for pod in await installed.tier(tier):
            assert pod["spec"]["containers"][0]["image"] == UPGRADE, pod["metadata"]["name"]
    await installed.settled()
    installed.values = before
    await installed.upgrade()
    await installed.settled()


@scenario("an older revision's chart and image, and this one's again")
async def from_previous(installed: Installation, load: Load) -> str:
    tree = installed.cluster.directory.with_name(PREVIOUS_TREE)
    if not tree.exists():
        return "not played: no tag is older than this revision, and none was given"
    before = installed.values
    for chart, values, image in (
        (tree / CHART.relative_to(ROOT), {**before, "image": {"tag": PREVIOUS.rpartition(":")[2]}}, PREVIOUS),
        (CHART, before, OURS),
    ):
        installed.chart, installed.values = chart, values
        await installed.upgrade()
        for tier in ("watcher", "collector", "picker"):
            assert {pod["spec"]["containers"][0]["image"] for pod in await installed.tier(tier)} == {image}, tier
        await installed.settled()
        await load.goes_on()
    return f"a rollback to {(tree / REVISION).read_text()}, and the upgrade from it"


@scenario("other values for every tier and NATS, and a rollback")
async def changed(installed: Installation, load: Load) -> None:
    before = installed.values
    more = {"extraArgs": ["--log-level=debug"]}
    installed.values = {
        **before,
        "podAnnotations": {"changed": "yes"},
        "configuration": before["configuration"].replace("maxRequestGap: 32", "maxRequestGap: 24"),
        "watcher": {**before["watcher"], "extraArgs": [*before["watcher"]["extraArgs"], *more["extraArgs"]]},
        "collector": {**before["collector"], **more, "replicas": 1},
        "picker": {**before["picker"], **more, "replicas": 3},
        "nats": {**before["nats"], "memoryStore": "128MB"},
    }
    await installed.upgrade()
    assert len(await installed.tier("picker")) == 3
    await installed.settled()
    installed.values = before
    await installed.helm("rollback")
    await installed.complete(PICKERS)
    await installed.settled()


@scenario("the commands of docs/kubernetes.md that ask pods, as they stand")
async def page_followed(installed: Installation, load: Load) -> str:
    """The others are run against an API server alone, by tests/kubernetes/deploy/test_guide.py."""
    blocks = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    programs = os.pathsep.join([str(installed.cluster.binaries["kubectl"].parent), os.environ["PATH"]])
    here = {"PATH": programs, "KUBECONFIG": str(installed.cluster.kubeconfig)}
    (status,) = [line for line in lines if " exec " in line]
    said = await run(["bash", "-c", status.replace("--pool-name llama", "--pool-name model-servers")], env=here)
    for tier in ("watcher", "collector", "picker"):
        for pod in await installed.tier(tier):
            assert pod["metadata"]["name"] in said, f"{pod['metadata']['name']} isn't in: {said}"
    (forward,) = [line for line in lines if " port-forward " in line]
    asks = [line for line in lines if line.startswith("curl -s localhost:9090")]
    waits = "until curl -s localhost:9090/readyz >/dev/null; do sleep 0.1; done"
    script = "\n".join([f"{forward} >/dev/null", "trap 'kill $!' EXIT", waits, *(f"{line}; echo" for line in asks)])
    script = script.replace("& >/dev/null", ">/dev/null &")
    ready, state, _ = (await run(["bash", "-c", script], env=here, timeout=PATIENCE)).splitlines()
    assert json.loads(ready)["ready"], ready
    assert len(json.loads(state)["endpoints"]) == 3, state
    return f"{len(asks) + 2} commands"


@scenario("every pod of the release evicted, as `kubectl drain` does it")
async def evicted(installed: Installation, load: Load) -> str:
    pods = [pod for tier in TIERS for pod in await installed.tier(tier)]
    left = {pod["metadata"]["name"]: pod["metadata"]["labels"]["app.kubernetes.io/component"] for pod in pods}
    refused = set()

    async def gone() -> bool:
        for name, tier in tuple(left.items()):
            if await installed.api.evict(name, NAMESPACE):
                del left[name]
            else:
                refused.add(tier)
        assert not left, f"not evicted yet: {sorted(left)}"
        return True

    await eventually(gone, "all pods are evicted", timeout=PATIENCE, step=0.5)
    for name in (WATCHERS, COLLECTORS, PICKERS):
        await installed.complete(name)
    await installed.complete(NATS, STATEFUL)
    await installed.settled()
    assert refused == set(TIERS), f"only {refused} have a PodDisruptionBudget"
    return "PodDisruptionBudgets let one pod of each workload go at a time"


@scenario("pickers and collectors scaled by their autoscalers")
async def autoscaled(installed: Installation, load: Load) -> str:
    before = installed.values
    scaling = {"enabled": True, "minReplicas": 2, "maxReplicas": 4}
    scaled = {
        "picker": {**before["picker"], "autoscaling": {**scaling, "inFlightRequests": 1}},
        "collector": {**before["collector"], "autoscaling": {**scaling, "endpoints": 1}},
    }
    asked = {
        PICKERS: {"cpu", "pointsman_picker_own_inflight_requests"},
        COLLECTORS: {"cpu", "pointsman_collector_assigned_endpoints"},
    }
    async with metric_apis(installed.cluster, installed.api):
        installed.values = {**before, **scaled}
        await installed.upgrade()
        for name, metrics in asked.items():
            await eventually(partial(_scaled, installed, name, metrics), f"{name} is scaled", timeout=PATIENCE, step=1)
        await load.goes_on()
        reached = [len(await installed.tier(tier)) for tier in ("picker", "collector")]
        installed.values = before
        await installed.upgrade()
        await installed.settled()
    return (
        f"2 → {reached[0]} pickers by requests in flight, 2 → {reached[1]} collectors by endpoints; CPU comes from "
        "metrics-server, the others from prometheus-adapter"
    )


async def _scaled(installed: Installation, name: str, metrics: set[str]) -> bool:
    """Whether the autoscaler has found these metrics, and added a pod."""
    found = await installed.api.get("autoscaling/v2", "HorizontalPodAutoscaler", name, NAMESPACE)
    status = found.get("status", {})
    conditions = {one["type"]: (one["status"], one.get("message")) for one in status.get("conditions", ())}
    assert conditions.get("ScalingActive", ("",))[0] == "True", conditions
    values = [one for one in status.get("currentMetrics") or () if one.get("type")]
    names = {one["resource"]["name"] if one["type"] == "Resource" else one["pods"]["metric"]["name"] for one in values}
    assert names == metrics, f"it has found {names}: {conditions}"
    assert status["currentReplicas"] > 2, f"{status['currentReplicas']} replicas"
    return True


@scenario("a model server's pod deleted", response_broke_off)
async def pod_deleted(installed: Installation, load: Load) -> None:
    await installed.delete((await installed.pods("app=model-server"))[0])
    await installed.complete("model-server")
    await installed.settled()


@scenario("a model server's pod hangs for 20 s")
async def pod_hangs(installed: Installation, load: Load) -> str:
    pod = (await installed.pods("app=model-server"))[0]
    await installed.signal(pod, signal.SIGSTOP)
    since = time.monotonic()
    await asyncio.sleep(5)  # its metrics are stale after 2 s
    async with Load(installed.url, workers=4) as later:
        await later.goes_on()
    assert not later.failures, later.failures
    await asyncio.sleep(max(0, 20 - (time.monotonic() - since)))
    await installed.signal(pod, signal.SIGCONT)
    await installed.complete("model-server")
    await installed.settled()
    return "what it had begun goes on afterwards; requests that come 5 s later don't wait for it"


@scenario("a model server's pod hangs until it isn't ready, and returns")
async def pod_unready(installed: Installation, load: Load) -> str:
    pod = (await installed.pods("app=model-server"))[0]
    name = pod["metadata"]["name"]
    await installed.signal(pod, signal.SIGSTOP)
    since = time.monotonic()
    await eventually(partial(_known, installed, name, False), f"{name} is forgotten", timeout=PATIENCE, step=0.2)
    seconds = time.monotonic() - since
    await installed.signal(pod, signal.SIGCONT)  # before clients lose their patience, after a minute
    await eventually(partial(_known, installed, name, True), f"{name} is known", timeout=PATIENCE, step=0.2)
    await installed.settled()
    return f"not ready after {seconds:.0f} s: ten probes of 3 s; what it had begun goes on afterwards"


@scenario("a pod added, and deleted", response_broke_off)
async def added_and_deleted(installed: Installation, load: Load) -> str:
    """How long a change of the pods takes to every picker, as a client of the API sees it. Polls: some 50 ms more."""
    before = {pod["metadata"]["name"] for pod in await installed.pods("app=model-server")}
    await installed.api.patch(*DEPLOYMENTS, "model-server", {"spec": {"replicas": len(before) + 1}}, NAMESPACE)
    added = {}

    async def ready() -> bool:
        for pod in await installed.pods("app=model-server"):
            conditions = pod["status"].get("conditions", ())
            if any((one["type"], one["status"]) == ("Ready", "True") for one in conditions):
                added[pod["metadata"]["name"]] = pod
        return len(added) > len(before)

    await eventually(ready, "a pod more is ready", timeout=PATIENCE, step=0.02)
    (name,) = added.keys() - before
    since = time.monotonic()
    await eventually(partial(_known, installed, name, True), f"{name} is known", step=0.02)
    appeared = time.monotonic() - since
    await load.goes_on()
    await installed.api.delete("v1", "Pod", name, NAMESPACE)
    since = time.monotonic()
    await eventually(partial(_known, installed, name, False), f"{name} is forgotten", step=0.02)
    disappeared = time.monotonic() - since
    await installed.scale("model-server", len(before))
    await installed.settled()
    return (
        f"all pickers know it {appeared:.2f} s after it is ready, and forget it {disappeared:.2f} s after its deletion"
    )


async def _known(installed: Installation, pod: str, known: bool) -> bool:
    """Whether all pickers know a pod's endpoint, or none does."""
    for state in await installed.states("picker"):
        assert any(pod in one["id"] for one in state["endpoints"]) is known, (pod, state["id"])
    return True


@scenario("a collector killed")
async def collector_killed(installed: Installation, load: Load) -> str:
    (pod, *_) = await installed.tier("collector")
    await installed.signal(pod, signal.SIGKILL)
    await installed.complete(COLLECTORS)
    await installed.settled()
    return "as the kernel does it when memory is short"


@scenario("the active watcher's pod deleted")
async def leader_deleted(installed: Installation, load: Load) -> None:
    leader = await _leader(installed)
    while leader["metadata"]["labels"]["app.kubernetes.io/component"] == "envoy":  # that pod has the only Envoy, too
        await installed.signal(leader, signal.SIGKILL)
        leader = await _leader(installed, but=leader)
    await installed.delete(leader)
    await _leader(installed, but=leader)
    await installed.complete(WATCHERS)
    await installed.settled()


async def _leader(installed: Installation, *, but: dict[str, Any] | None = None) -> dict[str, Any]:
    """The pod of the watcher that leads, once one does that isn't this one."""

    async def found() -> dict[str, Any]:
        leader = await installed.leader()
        assert but is None or leader["metadata"]["uid"] != but["metadata"]["uid"], "the same watcher leads"
        return leader

    return await eventually(found, "a watcher leads", timeout=PATIENCE, step=0.2)


@scenario("a NATS pod deleted")
async def nats_deleted(installed: Installation, load: Load) -> None:
    await installed.delete(
        (await installed.pods(f"app.kubernetes.io/name=nats,statefulset.kubernetes.io/pod-name={NATS}-0"))[0]
    )
    await installed.complete(NATS, STATEFUL)
    await installed.settled()


@scenario("the ConfigMap changed, to a bad one and back")
async def configured(installed: Installation, load: Load) -> str:
    name = f"{RELEASE}-config"
    before = (await installed.api.get("v1", "ConfigMap", name, NAMESPACE))["data"]
    (key,) = before

    async def notes(bad: bool) -> bool:
        said = [note for one in await installed.states("watcher") for note in (await _notes(installed, one)).values()]
        assert any("no-such-scorer" in note for note in said) is bad, said
        return True

    for text, bad in (
        (before[key].replace("maxRequestGap: 32", "maxRequestGap: 24"), False),
        (before[key].replace("token-load-scorer", "no-such-scorer"), True),
        (before[key], False),
    ):
        await installed.api.patch("v1", "ConfigMap", name, {"data": {key: text}}, NAMESPACE)
        await eventually(partial(notes, bad), "the watchers tell")
        await load.goes_on()
    return "the bad one changes nothing; the watchers' `/readyz` names the error"


async def _notes(installed: Installation, state: dict[str, object]) -> dict[str, str]:
    pod = state["pod"]
    assert isinstance(pod, dict)
    page = await installed.get(f"http://{pod['status']['podIP']}:9090/readyz")
    found: dict[str, str] = yaml.safe_load(page)["notes"]
    return found


@scenario("the API server stopped for 60 s")
async def apiserver_stopped(installed: Installation, load: Load) -> None:
    await installed.cluster.stop_apiserver(60)
    await installed.settled()


@scenario("the kubelet stopped for 60 s")
async def kubelet_stopped(installed: Installation, load: Load) -> str:
    await installed.cluster.kubelet.kill()
    await asyncio.sleep(60)
    await installed.cluster.kubelet.start()
    await installed.settled()
    return "after 50 s, Kubernetes calls all pods of the node not ready"
