"""The whole system on this machine: NATS, model servers, watcher, collectors, pickers and Envoy as processes.

`LocalStack` starts them in the order of their dependencies, waits until each is ready, and stops them in reverse order,
so that no request fails. Each process can be stopped, killed, paused or restarted on its own.
"""

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import structlog
import yaml
from msgspec import Struct, structs

from pointsman.local.envoy import STANDALONE, Envoy, EnvoyPlaces, PickerAddress
from pointsman.local.nats import NatsServer
from pointsman.local.ports import (
    ADMIN_PORT,
    CONSOLE_PORT,
    ENVOY_ADMIN_PORT,
    ENVOY_PORT,
    GRPC_PORT,
    LOOPBACK,
    NATS_PORT,
    Ports,
)
from pointsman.local.process import Process, ProcessError, write
from pointsman.local.services import Address, Console, Flags, Picker, ServiceProcess, Simulator

log = structlog.get_logger(__name__)

ENGINE_LABEL = "llm-d.ai/engine-type"
"""The label from which collectors take an endpoint's engine."""
CONFIGURATION = Path(__file__).with_name("pointsman.yaml")
"""An EndpointPickerConfig with fallbacks, which Envoy uses when a server fails; that of docker-compose.yml."""
_EDS_TIMEOUT = 60.0


class SimulatorPlan(Struct, frozen=True, kw_only=True):
    """A simulated model server and its entry in the endpoints file."""

    name: str
    engine: str = "vllm"
    labels: Mapping[str, str] = {}
    flags: Flags = {}
    listed: bool = True
    """Whether it is in the endpoints file."""


class ModelServer(Struct, frozen=True, kw_only=True):
    """A model server that runs already, in the endpoints file."""

    name: str
    address: str
    port: int


def simulators(count: int, **flags: str | int | float) -> tuple[SimulatorPlan, ...]:
    """`count` equal model servers, `model-1` and so on. Flags have underscores instead of dashes."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    return tuple(SimulatorPlan(name=f"model-{number}", flags=given) for number in range(1, count + 1))


class StackPlan(Struct, frozen=True, kw_only=True):
    """What to start."""

    simulators: tuple[SimulatorPlan, ...] = simulators(3)
    servers: tuple[ModelServer, ...] = ()
    endpoints_file: Path | None = None
    """Followed instead of one with the simulators and servers."""
    watchers: int = 1
    collectors: int = 2
    pickers: int = 2
    consoles: int = 0
    configuration: str | None = None
    """An EndpointPickerConfig (YAML); None: the default of the tiers."""
    config_file: Path | None = None
    """A file with one, followed instead."""
    resources: str = ""
    """Further YAML documents for the watcher: InferencePool, InferenceObjective, …"""
    kubeconfig: str = ""
    """A cluster from which the watchers read pods and resources, instead of the endpoints file."""
    pool_name: str = "default"
    pool_namespace: str = "default"
    envoy: Path | None = STANDALONE
    """A configuration of deploy/envoy; None: no Envoy."""
    envoy_concurrency: int = 1
    host: str = LOOPBACK
    """Address of Envoy's listener."""
    port: int = 0
    """Its port; 0: a free one."""
    usual_ports: bool = False
    """Whether processes get the ports of their defaults, where those are free."""
    console_token: str = ""
    """What consoles ask for. With one, they and the watchers have `--allow-actions`."""
    secure_serving: bool = False
    """TLS between Envoy and pickers."""
    flags: Mapping[str, Flags] = {}
    """Further flags of each tier: `{"picker": {"drain-timeout": "5s"}}`."""
    log_level: str = "info"
    nats_http: bool = False
    """Whether nats-server serves its monitoring pages."""
    nats_name: str = ""
    """nats-server's name; by default one that no other server has."""


class LocalStack:
    """The processes of a plan, with files and logs in one directory. Use as an async context manager.

    Raises PortTaken, BinaryMissing or ProcessError if it can't start, and then leaves nothing running.
    """

    def __init__(self, plan: StackPlan, directory: Path, ports: Ports | None = None) -> None:
        self.plan = plan
        self.directory = directory
        self.endpoints_file = plan.endpoints_file or directory / "endpoints.yaml"
        self.config_file = plan.config_file or directory / "config.yaml"
        self.eds_file = directory / "eds.json"
        self._ports = ports or Ports()
        self._outside = self._ports if plan.host == LOOPBACK or ports else Ports(plan.host)
        """Ports of the address for clients."""
        self._admin_ports = itertools.count(ADMIN_PORT)
        try:
            self._build()
        except BaseException:
            self._release()
            raise

    def _build(self) -> None:
        """Create every process and reserve all ports."""
        plan, take = self.plan, self._take
        envoy_port = (
            self._outside.take("Envoy's listener", plan.port, usual=self._usual(ENVOY_PORT)) if plan.envoy else 0
        )
        http = take("NATS's monitoring") if plan.nats_http else None
        self.nats = NatsServer(self.directory, take("NATS", NATS_PORT), http_port=http, server_name=plan.nats_name)
        self.simulators = [
            Simulator(
                server.name,
                self.directory,
                Address(take(server.name)),
                _labels(server),
                self._flags("simulator", server),
            )
            for server in plan.simulators
        ]
        self.watchers = [self._service("watcher", number, self._watcher_flags()) for number in _numbers(plan.watchers)]
        self.collectors = [self._service("collector", number, {}) for number in _numbers(plan.collectors)]
        self.pickers = [self._picker(number) for number in _numbers(plan.pickers)]
        self.consoles = [self._console(number) for number in _numbers(plan.consoles)]
        self.envoy = self._envoy(plan.envoy, envoy_port) if plan.envoy else None

    def _take(self, purpose: str, usual: int = 0) -> int:
        return self._ports.take(purpose, usual=self._usual(usual))

    def _usual(self, port: int) -> int:
        return port if self.plan.usual_ports else 0

    def _service(self, tier: str, number: int, flags: Flags) -> ServiceProcess:
        name = f"{tier}-{number}"
        http = Address(self._take(f"admin of {name}", next(self._admin_ports)))
        return ServiceProcess(tier, name, self.directory, http, self._tier_flags(tier, name, http) | dict(flags))

    def _picker(self, number: int) -> Picker:
        name = f"picker-{number}"
        http = Address(self._take(f"admin of {name}", next(self._admin_ports)))
        grpc = GRPC_PORT + 2 * (number - 1)
        address = PickerAddress(self._take(f"ext_proc of {name}", grpc), self._take(f"health of {name}", grpc + 1))
        secure = {"secure-serving": str(self.plan.secure_serving).lower()}
        return Picker(name, self.directory, http, address, secure | self._tier_flags("picker", name, http))

    def _console(self, number: int) -> Console:
        name = f"console-{number}"
        http = Address(self._take(f"admin of {name}", next(self._admin_ports)))
        page = Address(self._take(f"page of {name}", CONSOLE_PORT + number - 1))
        return Console(
            name,
            self.directory,
            http,
            page,
            {**self._actions(), **self._tier_flags("console", name, http)},
            token=self.plan.console_token,
        )

    def _actions(self) -> Flags:
        return {"allow-actions": "true"} if self.plan.console_token else {}

    def further_envoy(self, name: str, configuration: Path) -> Envoy:
        """Another Envoy for the pickers. The caller starts it, and stops it before the stack."""
        return self._envoy(configuration, self._ports.take(f"{name}'s listener"), title=name, name=name)

    def _envoy(self, configuration: Path, port: int, *, title: str = "Envoy", name: str = "envoy") -> Envoy:
        places = EnvoyPlaces(
            port=port,
            listen=self.plan.host,
            admin_port=self._take(f"{title}'s admin", ENVOY_ADMIN_PORT),
            stats_port=self._take(f"{title}'s statistics", ENVOY_ADMIN_PORT + 1),
            pickers=tuple(picker.address for picker in self.pickers),
            eds_file=self.eds_file,
            picker_tls=self.plan.secure_serving,
        )
        return Envoy(self.directory, configuration, places, concurrency=self.plan.envoy_concurrency, name=name)

    def _flags(self, tier: str, plan: SimulatorPlan) -> Flags:
        return {"engine": plan.engine, "log-level": self.plan.log_level, **self.plan.flags.get(tier, {}), **plan.flags}

    def _tier_flags(self, tier: str, name: str, http: Address) -> dict[str, str | int | float]:
        return {
            "id": name,
            "nats-url": self.nats.url,
            "pool-name": self.plan.pool_name,
            "pool-namespace": self.plan.pool_namespace,
            "admin-host": http.host,
            "admin-port": http.port,
            "log-level": self.plan.log_level,
            **self.plan.flags.get(tier, {}),
        }

    def _watcher_flags(self) -> Flags:
        flags: dict[str, str | int | float] = {"eds-file": str(self.eds_file), **self._actions()}
        if self.plan.kubeconfig:
            flags |= {"kubernetes": "true", "kubeconfig": self.plan.kubeconfig}
        else:
            flags["endpoints-file"] = str(self.endpoints_file)
        if self.plan.configuration is not None or self.plan.config_file is not None:
            flags["config-file"] = str(self.config_file)
        return flags

    def write_endpoints(self, servers: Sequence[Simulator] | None = None) -> None:
        """Replace the endpoints file by one with these simulators, by default all."""
        write({self.endpoints_file: self._endpoints(self.listed if servers is None else servers)})

    def write_configuration(self, text: str) -> None:
        """Replace the EndpointPickerConfig that the watcher publishes. Raises ValueError if the plan has none."""
        if self.plan.configuration is None:
            raise ValueError("the plan has no configuration")
        write({self.config_file: text})

    def files(self) -> dict[Path, str]:
        """The files that the processes read, without those that exist already. Raises ConfigurationError."""
        files = {}
        if self.plan.endpoints_file is None:
            files[self.endpoints_file] = self._endpoints(self.listed)
        if self.plan.configuration is not None and self.plan.config_file is None:
            files[self.config_file] = self.plan.configuration
        return files | self.nats.files() | (self.envoy.files() if self.envoy else {})

    @property
    def listed(self) -> list[Simulator]:
        """The simulators of the endpoints file."""
        return [server for plan, server in zip(self.plan.simulators, self.simulators, strict=True) if plan.listed]

    def _endpoints(self, simulators: Sequence[Simulator]) -> str:
        entries: list[dict[str, object]] = [
            {"name": server.name, "address": server.http.host, "port": server.http.port, "labels": server.labels}
            for server in simulators
        ]
        entries += [structs.asdict(server) for server in self.plan.servers]
        text: str = yaml.safe_dump({"endpoints": entries}, sort_keys=False)
        return f"{text}---\n{self.plan.resources}" if self.plan.resources else text

    @property
    def processes(self) -> Iterator[Process]:
        """All processes in the order of their start."""
        for tier in self._tiers():
            yield from tier

    def _tiers(self) -> list[Sequence[Process]]:
        envoys = [self.envoy] if self.envoy else []
        return [[self.nats, *self.simulators], self.watchers, [*self.collectors, *self.pickers, *self.consoles], envoys]

    def __getitem__(self, name: str) -> Process:
        """A process by its name: `nats`, `model-1`, `watcher-1`, `collector-1`, `picker-1`, `envoy`."""
        for process in self.processes:
            if process.name == name:
                return process
        raise KeyError(f"{name!r} isn't one of {', '.join(process.name for process in self.processes)}")

    @property
    def url(self) -> str:
        """The URL of Envoy's listener, for clients."""
        if self.envoy is None:
            raise ValueError("the plan has no Envoy")
        return self.envoy.url

    async def start(self, *, on_ready: Callable[[Process], None] | None = None) -> Self:
        """Start everything and wait until it is ready; calls `on_ready` for each process that is."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            write(self.files())
            for tier in self._tiers():
                if self.envoy in tier and self.watchers:
                    await self._wait_for_eds()
                await _start_all(tier, on_ready)
        except BaseException:
            await self.stop()
            raise
        log.info("stack.started", processes=sum(1 for _ in self.processes), directory=str(self.directory))
        return self

    async def _wait_for_eds(self) -> None:
        """Envoy doesn't start without its EDS file."""
        try:
            async with asyncio.timeout(_EDS_TIMEOUT):
                while not self.eds_file.exists():  # noqa: ASYNC110 -- another process writes it
                    await asyncio.sleep(0.02)
        except TimeoutError as error:
            raise ProcessError(self.watchers[0], f"did not write {self.eds_file} in {_EDS_TIMEOUT:g} s") from error

    async def stop(self) -> None:
        """Stop all processes, Envoy first and NATS last. Nothing runs afterwards, even after an error."""
        try:
            for tier in reversed(self._tiers()):
                await asyncio.gather(*(process.stop() for process in tier))
        finally:
            self.close()

    def close(self) -> None:
        """Kill all processes and release the ports: the end of `stop`, and of a stack that was never started."""
        for process in self.processes:
            process.kill_now()
        self._release()

    def _release(self) -> None:
        for ports in (self._ports, self._outside):
            ports.close()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __repr__(self) -> str:
        return f"<LocalStack {self.directory} {list(self.processes)}>"


async def _start_all(processes: Sequence[Process], on_ready: Callable[[Process], None] | None) -> None:
    """Start them concurrently. Raises the first error, after stopping the others."""

    async def start(process: Process) -> None:
        await process.start()
        if on_ready is not None:
            on_ready(process)

    tasks = [asyncio.create_task(start(process)) for process in processes]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _numbers(number: int) -> range:
    return range(1, number + 1)


def _labels(plan: SimulatorPlan) -> dict[str, str]:
    return {ENGINE_LABEL: plan.engine, **plan.labels}
