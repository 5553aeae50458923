"""Envoy with a configuration of deploy/envoy between stand-ins: pickers with a fixed answer, and model servers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import yaml

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress, load
from pointsman.local.ports import Ports
from services.watcher.eds import EdsFile, render
from shared.model import ROLE, Endpoint, split_host_port
from tests.protocol.envoy.standin import Script, StandIn
from tests.protocol.model_server import ModelServer
from tests.waiting import TIMEOUT, eventually

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

    async def picker(self, script: Script | None = None) -> StandIn:
        """By default it picks the first model server."""
        at, script = self.address(), script or Script(destinations=[self.models[0].authority])
        return await self.stack.enter_async_context(StandIn(at.port, at.health_port, script))

    async def leaves_out(self, envoy: Envoy, picker: StandIn) -> None:
        """Wait until Envoy gives this picker no more streams, for what its health check says."""
        async with httpx.AsyncClient(base_url=envoy.admin_url, trust_env=False, timeout=TIMEOUT) as admin:

            async def so() -> bool:
                flags = f"pickers::127.0.0.1:{picker.port}::health_flags::"
                lines = (await admin.get("/clusters")).text.splitlines()
                return any(line.startswith(flags) and "failed_active_hc" in line for line in lines)

            await eventually(so, "the health check")

    def endpoints(self, authorities: Sequence[str] | None = None, helpers: Sequence[str] = ()) -> None:
        """Write Envoy's endpoints; by default all model servers. `helpers` are those of other servers."""
        write_eds(self.eds, [m.authority for m in self.models] if authorities is None else authorities, helpers)

    async def envoy(
        self, configuration: Path = STANDALONE, *, picker_tls: bool | None = None, message_timeout: str = LONG
    ) -> Envoy:
        """Unless a test is about the time after which a picker is given up, that time is long."""
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


@pytest_asyncio.fixture(loop_scope="module")
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(tmp_path, stack.enter_context(Ports()), stack)


def unhurried(configuration: Path, directory: Path, message_timeout: str = LONG, patience: str = LONG) -> Path:
    """The configuration with time for every picker that stands still for a while: nothing but time-outs is changed.
    `patience` is how long Envoy waits for answers to PINGs and to health checks."""

    def visit(node: Any) -> None:
        if isinstance(node, list):
            for child in node:
                visit(child)
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


def write_eds(path: Path, authorities: Sequence[str], helpers: Sequence[str] = ()) -> None:
    """As the watcher does."""
    places = [split_host_port(authority) for authority in (*authorities, *helpers)]
    endpoints = [
        Endpoint(
            id=f"{at}",
            name=f"{at}",
            address=host,
            port=port or 0,
            labels={} if at < len(authorities) else {ROLE: "prefill"},
        )
        for at, (host, port) in enumerate(places)
    ]
    EdsFile(str(path)).write(render(endpoints, "model-servers"))


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
        self.bench.endpoints([server.authority for server in self.models] + self.dead)

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
        dead = [bench.dead() for _ in range(2)]
        bench.endpoints([server.authority for server in bench.models] + dead)
        envoy = await bench.envoy()
        yield Pool(bench, envoy, picker, await bench.client(envoy), dead)


@pytest_asyncio.fixture(loop_scope="module")
async def pool(started: Pool) -> Pool:
    """As it was at the start."""
    started.reset()
    return started
