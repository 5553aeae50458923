"""Envoy with a configuration of deploy/envoy between stand-ins: pickers with a fixed answer, and model servers."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from pointsman.local.ports import Ports
from pointsman.local.process import NotReady, Process
from shared.model import split_host_port
from tests.protocol.envoy.model_server import ModelServer
from tests.protocol.envoy.standin import SERVICE, Mode, Script, StandIn, health_grpc


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

    def endpoints(self, authorities: Sequence[str] | None = None) -> None:
        """Write Envoy's endpoints; by default all model servers."""
        write_eds(self.eds, [m.authority for m in self.models] if authorities is None else authorities)

    async def envoy(self, configuration: Path = STANDALONE, *, picker_tls: bool | None = None) -> Envoy:
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


@pytest.fixture
async def bench(tmp_path: Path, ports: Ports) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, ports, stack)


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


async def wait_until(condition: Callable[[], bool], within: float = 5.0) -> None:
    """Poll a condition; fails the test when it doesn't come true."""
    async with asyncio.timeout(within):
        while not condition():  # noqa: ASYNC110 -- what is waited for happens in another process
            await asyncio.sleep(0.01)
