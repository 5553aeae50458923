"""Envoy with a configuration of deploy/envoy between stand-ins: pickers with a fixed answer, and model servers."""

import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import pytest_asyncio
import yaml
from grpc_health.v1 import health_pb2

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress, load
from pointsman.local.ports import Ports
from pointsman.local.process import NotReady, Process
from shared.model import split_host_port
from tests.protocol.envoy.model_server import ModelServer
from tests.protocol.envoy.standin import SERVICE, Mode, Script, StandIn, health_grpc
from tests.waiting import eventually

LONG = "100s"
"""Time-outs that no picker of a test exceeds by standing still."""


@dataclass
class Bench:
    """Builds the parts of a test and takes them down again."""

    directory: Path
    ports: Ports
    stack: AsyncExitStack
    pickers: list[PickerAddress] = field(default_factory=list)
    models: list[ModelServer] = field(default_factory=list)

    @property
    def eds(self) -> Path:
        return self.directory / "eds.json"

    async def model(self, name: str, *, host: str = "127.0.0.1") -> ModelServer:
        server = await self.stack.enter_async_context(ModelServer(name, host))
        self.models.append(server)
        return server

    def dead(self) -> str:
        """An address that refuses connections."""
        return f"127.0.0.1:{self.ports.take('nobody')}"

    def address(self) -> PickerAddress:
        """An address for a picker, where nobody listens yet."""
        address = PickerAddress(self.ports.take("ext_proc"), self.ports.take("gRPC health"))
        self.pickers.append(address)
        return address

    async def picker(
        self, script: Script | None = None, *, tls: bool = False, at: PickerAddress | None = None
    ) -> StandIn:
        """A picker in this process; by default it picks the first model server."""
        at = at or self.address()
        script = script or Script(destinations=[self.models[0].authority])
        return await self.stack.enter_async_context(StandIn(at.port, at.health_port, script, tls=tls))

    async def picker_process(self, destination: str, mode: Mode = Mode.BUFFERED, *, tls: bool = False) -> Process:
        """A picker as a process of its own, to be killed and paused."""
        at = self.address()
        name = f"picker-{len(self.pickers)}"
        command: list[str] = [sys.executable, "-m", "tests.protocol.envoy.standin"]
        command += ["--port", str(at.port), "--health-port", str(at.health_port), "--mode", mode]
        command += ["--destination", destination] + (["--tls"] if tls else [])

        async def ready() -> None:
            async with grpc.aio.insecure_channel(f"{at.host}:{at.health_port}") as channel:
                try:
                    stub = health_grpc.HealthStub(channel)
                    await stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=1)
                except grpc.aio.AioRpcError as error:
                    raise NotReady(error.details() or str(error.code())) from error

        return await self.stack.enter_async_context(Process(name, command, self.directory / f"{name}.log", ready=ready))

    async def leaves_out(self, envoy: Envoy, picker: StandIn) -> None:
        """Wait until Envoy gives this picker no more streams, for what its health check says."""
        async with httpx.AsyncClient(base_url=envoy.admin_url, trust_env=False) as admin:

            async def so() -> bool:
                flags = f"pickers::127.0.0.1:{picker.port}::health_flags::"
                lines = (await admin.get("/clusters")).text.splitlines()
                return any(line.startswith(flags) and "failed_active_hc" in line for line in lines)

            await eventually(so, "the health check")

    def endpoints(self, authorities: Sequence[str] | None = None) -> None:
        """Write Envoy's endpoints; by default all model servers."""
        write_eds(self.eds, [m.authority for m in self.models] if authorities is None else authorities)

    async def envoy(
        self,
        configuration: Path = STANDALONE,
        *,
        picker_tls: bool | None = None,
        patient: bool = True,
        message_timeout: str = LONG,
    ) -> Envoy:
        """Unless a test is about the time after which a picker is given up, that time is long."""
        if patient:
            configuration = unhurried(configuration, self.directory, message_timeout)
        if not self.eds.exists():
            self.endpoints()
        places = EnvoyPlaces(
            port=self.ports.take("Envoy"),
            admin_port=self.ports.take("Envoy's admin"),
            stats_port=self.ports.take("Envoy's statistics"),
            pickers=tuple(self.pickers),
            eds_file=self.eds,
            picker_tls=picker_tls,
        )
        return await self.stack.enter_async_context(Envoy(self.directory, configuration, places))

    async def client(self, envoy: Envoy) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None)
        return await self.stack.enter_async_context(
            httpx.AsyncClient(base_url=envoy.url, timeout=30, limits=limits, trust_env=False)
        )


@pytest.fixture
def ports() -> Iterator[Ports]:
    with Ports() as held:
        yield held


@pytest_asyncio.fixture(loop_scope="module")
async def bench(tmp_path: Path, ports: Ports) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, ports, stack)


def unhurried(configuration: Path, directory: Path, message_timeout: str = LONG, patience: str = LONG) -> Path:
    """The configuration with time for every picker that stands still for a while: nothing but time-outs is changed.
    `patience` is how long Envoy waits for answers to PINGs and to health checks."""

    def visit(node: Any) -> None:
        if isinstance(node, list):
            for one in node:
                visit(one)
        elif isinstance(node, dict):
            for key, value in node.items():
                if key == "connect_timeout":
                    node[key] = LONG
                elif key == "message_timeout":
                    node[key] = message_timeout
                elif key == "connection_keepalive":
                    value["timeout"] = patience
                elif key == "health_checks":
                    for check in value:
                        check["timeout"] = patience
                else:
                    visit(value)

    document = load(configuration)
    visit(document)
    path = directory / f"unhurried-{configuration.name}"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def write_eds(path: Path, authorities: Sequence[str]) -> None:
    """Replace the endpoints' file by rename, as the watcher does."""
    endpoints = []
    for authority in authorities:
        host, port = split_host_port(authority)
        address = {"socket_address": {"address": host, "port_value": port}}
        endpoints.append({"endpoint": {"address": address}})
    assignment = {
        "@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
        "cluster_name": "model-servers",
        "endpoints": [{"lb_endpoints": endpoints}],
    }
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps({"resources": [assignment]}), encoding="utf-8")
    draft.rename(path)


@dataclass
class Pool:
    """One Envoy for all tests of a module: servers of which some are dead, and a picker that picks the first."""

    bench: Bench
    envoy: Envoy
    picker: StandIn
    client: httpx.AsyncClient
    dead: list[str]

    @property
    def models(self) -> list[ModelServer]:
        return self.bench.models

    def endpoints(self) -> None:
        """The servers and the dead ones."""
        self.bench.endpoints([one.authority for one in self.models] + self.dead)

    async def follows(self) -> bool:
        """Whether Envoy has the endpoints, and sends a request to the first."""
        response = await self.client.post("/", content=b"x")
        return response.status_code == 200 and response.headers["x-served-by"] == "a"

    def reset(self) -> None:
        self.picker.script = Script(destinations=[self.models[0].authority])
        self.picker.conversations.clear()
        for model in self.models:
            model.status, model.reset, model.delay = 200, False, 0.0
            model.release.clear()
            model.received.clear()
            model.connections.clear()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        bench = Bench(tmp_path_factory.mktemp("envoy"), stack.enter_context(Ports()), stack)
        for name in "abc":
            await bench.model(name)
        picker = await bench.picker(Script())
        dead = [bench.dead() for _ in range(3)]
        bench.endpoints([one.authority for one in bench.models] + dead)
        envoy = await bench.envoy()
        yield Pool(bench, envoy, picker, await bench.client(envoy), dead)


@pytest_asyncio.fixture(loop_scope="module")
async def pool(started: Pool) -> Pool:
    """As it was at the start."""
    started.reset()
    return started
