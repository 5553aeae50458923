"""The chart, installed in a one-node Kubernetes. The outer part brings binaries and images; the inner part, this module
as a program in namespaces of its own, starts the cluster and plays the scenarios.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

from tests.deploy import binaries
from tests.deploy.cluster import GROUP, PAUSE, Cluster
from tests.deploy.engine import engine
from tests.deploy.images import BASE, ENVOY, NATS, OURS, PREVIOUS, ROOT, UPGRADE, provide, provide_previous
from tests.deploy.kubernetes_objects import NAMESPACE, RELEASE, VALUES, Object, envoy, model_servers, namespace
from tests.deploy.results import Result
from tests.deploy.scenario import answers, assert_settled
from tests.deploy.shell import GROUPS, Failed, Missing, need
from tests.kubernetes.api import Api, ApiError
from tests.kubernetes.definitions import CRDS
from tests.waiting import eventually

PATIENCE = 300.0
"""Seconds for what takes a tenth of it on an idle machine."""
CHART = ROOT / "deploy/kubernetes/chart"
PREVIOUS_TREE = "previous"
"""Beside the cluster's folder: the sources of the previous release, if there is one."""
PICKERS, COLLECTORS, WATCHERS = (f"{RELEASE}-{tier}" for tier in ("picker", "collector", "watcher"))
DEPLOYMENTS, STATEFUL = ("apps/v1", "Deployment"), ("apps/v1", "StatefulSet")
_PAUSE = f'FROM {BASE}\nENTRYPOINT ["sleep", "infinity"]\n'


class Installation:
    """A release, its model servers and its Envoy (`entrance`) in a namespace of the cluster."""

    def __init__(
        self,
        cluster: Cluster,
        api: Api,
        session: aiohttp.ClientSession,
        namespace: str = NAMESPACE,
        values: Object = VALUES,
        entrance: Sequence[Object] = (),
    ) -> None:
        self.cluster = cluster
        self.api = api
        self.namespace = namespace
        self._session = session
        self._installed_with = values
        self.values = values
        self.chart = CHART
        self._entrance = entrance
        self.url = ""

    def beside(self, namespace: str, values: Object, entrance: Sequence[Object] = ()) -> "Installation":
        """Another one in the same cluster."""
        return Installation(self.cluster, self.api, self._session, namespace, values, entrance)

    async def install(self, servers: int = 3) -> None:
        """The namespace, the definitions, model servers, the release, and Envoy if there is one; until it answers."""
        await self.api.install(CRDS)
        await self.api.apply(namespace(self.namespace))
        await self.api.apply(model_servers(servers), self.namespace)
        await self.upgrade("--install")
        for document in self._entrance:
            await self.api.apply(document, self.namespace)
        if self._entrance:
            await self.scale("envoy", 1)  # one entrance, so that all requests meet what happens to it
            (pod,) = await self.tier("envoy")
            self.url = f"http://{pod['status']['podIP']}:8080"
            await self.answers()

    async def upgrade(self, *arguments: str) -> None:
        """`helm upgrade` with the values, until all pods are ready."""
        file = self.cluster.directory / f"{self.namespace}.yaml"
        file.write_text(yaml.safe_dump(self.values))
        await self.helm("upgrade", self.chart, "--values", file, *arguments)

    async def helm(self, command: str, *arguments: str | Path) -> None:
        """`helm COMMAND` for the release, until it has taken effect."""
        where = ("--namespace", self.namespace, "--wait", "--timeout=10m")
        await self.cluster.helm(command, RELEASE, *arguments, *where)

    async def uninstall(self) -> None:
        """Remove what `install` has brought, except the namespace and the definitions."""
        await self.helm("uninstall")
        for one in (*self._entrance, model_servers(0)):
            await self.api.delete(one["apiVersion"], one["kind"], one["metadata"]["name"], self.namespace)

    async def mend(self) -> None:
        """The release as it was installed, settled."""
        self.values, self.chart = self._installed_with, CHART
        await self.upgrade()
        await self.scale("model-server", 3)
        await self.settled()

    # ---- objects

    async def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Those with these labels that aren't being deleted."""
        wanted = dict(one.split("=") for one in selector.split(",") if one)
        listed = (await self.api.list("v1", "Pod", self.namespace))["items"]
        return [
            pod
            for pod in listed
            if "deletionTimestamp" not in pod["metadata"] and wanted.items() <= pod["metadata"]["labels"].items()
        ]

    async def tier(self, name: str) -> list[dict[str, Any]]:
        """The pods of a tier."""
        return await self.pods(f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={name}")

    async def scale(self, name: str, replicas: int) -> None:
        await self.api.patch(*DEPLOYMENTS, name, {"spec": {"replicas": replicas}}, self.namespace)
        await self.complete(name)

    async def restart(self, name: str, kind: tuple[str, str] = DEPLOYMENTS) -> None:
        """`kubectl rollout restart`."""
        now = str(asyncio.get_running_loop().time())
        patch = {"spec": {"template": {"metadata": {"annotations": {"restarted": now}}}}}
        await self.api.patch(*kind, name, patch, self.namespace)
        await self.complete(name, kind)

    async def complete(self, name: str, kind: tuple[str, str] = DEPLOYMENTS) -> None:
        """Wait until all replicas are the newest, and ready, and no others are left."""

        async def is_so() -> bool:
            one = await self.api.get(*kind, name, self.namespace)
            wanted, status = one["spec"]["replicas"], one["status"]
            assert status.get("observedGeneration") == one["metadata"]["generation"], f"{name}: not observed yet"
            counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
            assert counts == [wanted] * 3, f"{name}: {counts} of {wanted}"
            selector = one["spec"]["selector"]["matchLabels"]
            listed = (await self.api.list("v1", "Pod", self.namespace))["items"]
            left = [pod for pod in listed if selector.items() <= pod["metadata"]["labels"].items()]
            assert len(left) == wanted, f"{name}: {len(left)} pods, not {wanted}"
            return True

        await eventually(is_so, f"{name} is rolled out", timeout=PATIENCE, step=0.3)

    async def delete(self, pod: Mapping[str, Any]) -> None:
        """Delete it, and wait until it is gone, or another one has its name."""
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        await self.api.delete("v1", "Pod", name, self.namespace)

        async def gone() -> bool:
            try:
                found = await self.api.get("v1", "Pod", name, self.namespace)
            except ApiError as error:
                return error.status == 404
            return bool(found["metadata"]["uid"] != uid)

        await eventually(gone, f"{name} is gone", timeout=PATIENCE, step=0.2)

    async def signal(self, pod: Mapping[str, Any], number: signal.Signals) -> None:
        """To our process in a pod, as the kernel does it when memory is short."""
        for pid in await self.processes(pod):
            os.kill(pid, number)

    async def processes(self, pod: Mapping[str, Any]) -> list[int]:
        """Those of our program, or of NATS, in a pod."""
        name = pod["metadata"]["name"]
        found = await asyncio.to_thread(_processes, name)
        assert found, f"no process of {name}"
        return found

    # ---- what the processes say

    async def get(self, url: str) -> str:
        """The text of a page. Raises AssertionError, so that one can wait for it."""
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
                text = await response.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AssertionError(f"{url}: {type(error).__name__}: {error}") from error
        assert response.status == 200, f"{url}: {response.status} {text[:300]}"
        return text

    async def states(self, tier: str) -> list[dict[str, Any]]:
        pages = []
        for pod in await self.tier(tier):
            assert pod["status"].get("podIP"), f"{pod['metadata']['name']} has no address"
            text = await self.get(f"http://{pod['status']['podIP']}:9090/debug/state")
            pages.append({**yaml.safe_load(text), "pod": pod})
        return pages

    async def leader(self) -> dict[str, Any]:
        """The pod whose watcher leads: one of the release, or Envoy's. Raises AssertionError unless it is one."""
        states = [*await self.states("watcher"), *await self.states("envoy")]
        leads = [dict(one["pod"]) for one in states if one["leadership"]["leads"]]
        assert len(leads) == 1, f"{len(leads)} watchers lead"
        return leads[0]

    async def settled(self, *, endpoints: int = 3) -> None:
        """Wait until the pickers agree with each other, with the collectors and with Envoy."""

        async def is_so() -> bool:
            try:
                pickers = await self.states("picker")
                assert_settled(pickers, await self.states("collector"), endpoints=endpoints)
            except ApiError as error:
                raise AssertionError(str(error)) from error
            if not self._entrance:
                return True
            page = await self.get(self.url.replace(":8080", ":9902") + "/stats/prometheus")
            series = 'envoy_cluster_membership_healthy{envoy_cluster_name="pickers"}'
            (value,) = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(series)]
            assert int(float(value)) == len(pickers), f"Envoy sees {value} healthy pickers"
            return True

        await eventually(is_so, "settled", timeout=PATIENCE, step=0.3)

    async def answers(self) -> None:
        """Wait for the first request that is answered."""
        await eventually(partial(answers, self._session, self.url), "an answer", timeout=PATIENCE, step=0.05)


@asynccontextmanager
async def installation(cluster: Cluster) -> AsyncIterator[Installation]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session, cluster.client() as api:
        yield Installation(cluster, api, session, entrance=envoy())


def _processes(pod: str) -> list[int]:
    """Those of our program, or of NATS, in a pod, by the host name in their environments."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            ours = any(word.endswith((b"/pointsman", b"nats-server")) for word in words)
            if ours and f"HOSTNAME={pod}".encode() in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


# ---- outside


async def part(only: str, *, build: bool, previous: str = "") -> list[Result]:
    """Everything; `build`: make binaries that aren't cached, too; `previous`: upgrade the chart from this revision, by
    default that of the newest tag. Raises Missing and Failed."""
    need("unshare", "runc", "ip", "iptables", "conntrack", package=f"util-linux {binaries.PACKAGES}")
    binaries.need_plugins()
    if not build and not binaries.ready():
        raise Missing("its binaries aren't cached: `make deploy-test` builds them, in half an hour")
    binaries.provide(lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(prefix="pointsman-kubernetes-") as name:
        directory = Path(name)
        async with engine(directory) as docker:
            made = await provide(docker)
            (directory / "pause").mkdir()
            (directory / "pause" / "Dockerfile").write_text(_PAUSE)
            await docker("build", "--tag", PAUSE, directory / "pause")
            try:
                images = [OURS, UPGRADE, NATS, ENVOY, PAUSE]
                if await provide_previous(docker, previous, directory / PREVIOUS_TREE):
                    images.append(PREVIOUS)
                await docker("save", "--output", directory / "images.tar", *images)
            finally:
                if not docker.own:
                    await docker("rmi", "--force", PAUSE, PREVIOUS, *made)
        inside = [sys.executable, "-m", "tests.deploy.kubernetes", str(directory), only]
        await _isolated(inside)
        return msgspec.json.decode((directory / "results.json").read_bytes(), type=list[Result])


async def _isolated(command: Sequence[str]) -> None:
    """Run it in namespaces that end with it, whatever it has started."""
    unshare = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    process = await asyncio.create_subprocess_exec(*unshare, *command, cwd=ROOT)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    finally:
        for _ in range(50):  # processes take a moment to end
            if not await asyncio.to_thread(_remove_groups):
                break
            await asyncio.sleep(0.1)
    if code:
        raise Failed(f"the cluster's scenarios ended with {code}")


def _remove_groups() -> bool:
    """Remove the control groups of pods, whose processes end with the namespaces. Returns whether some are left."""
    for group in GROUPS.glob(f"*/{GROUP}"):
        for one in (*(path for path in group.glob("*") if path.is_dir()), group):
            with suppress(OSError):
                one.rmdir()
    return any(GROUPS.glob(f"*/{GROUP}"))


# ---- inside


async def _inside(directory: Path, only: str) -> None:
    from tests.deploy.kubernetes_scenarios import everything  # it imports this module

    found = binaries.provide(lambda line: print(line, flush=True))
    async with Cluster(found, directory / "cluster") as cluster:
        await cluster.load(directory / "images.tar")
        async with installation(cluster) as installed:
            results = await everything(installed, only)
    (directory / "results.json").write_bytes(msgspec.json.encode(results))


if __name__ == "__main__":
    asyncio.run(_inside(Path(sys.argv[1]), sys.argv[2]))
