"""Pointsman's tiers as processes: `python -m pointsman TIER --flag value …`, observed by admin HTTP.

Their environment has none of the `POINTSMAN_…` variables of this process: the plan alone configures a stack.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from msgspec import Struct

from pointsman.local import probes
from pointsman.local.envoy import PickerAddress
from pointsman.local.ports import LOOPBACK
from pointsman.local.process import Process
from shared.model import join_host_port
from shared.service.settings import PREFIX

Flags: TypeAlias = Mapping[str, str | int | float]
"""Values by flag without dashes: `{"log-level": "debug"}`."""

CONSOLE_TOKEN = f"{PREFIX}CONSOLE_TOKEN"
"""The variable with a console's token, which isn't among its flags: other users of the machine can see those."""

TOKEN_BYTES = 18
"""Random bytes of a new one."""

ROOT = Path(__file__).resolve().parents[2]
"""The directory of the packages, from which children import the same code."""


def console_token() -> str:
    """A token for consoles: that of the environment, or a new one."""
    return os.environ.get(CONSOLE_TOKEN) or secrets.token_urlsafe(TOKEN_BYTES)


class Address(Struct, frozen=True):
    """Where a process listens."""

    port: int
    host: str = LOOPBACK

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)


class ServiceProcess(Process):
    """A process of one tier, and its HTTP interface."""

    def __init__(
        self, tier: str, name: str, directory: Path, http: Address, flags: Flags, *, ready_path: str = "/readyz"
    ) -> None:
        self.tier = tier
        self.http = http
        self.flags = dict(flags)
        self._client: httpx.AsyncClient | None = None
        words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
        super().__init__(
            name,
            [sys.executable, "-m", "pointsman", tier, *words],
            directory / f"{name}.log",
            ready=probes.http(f"http://{http}{ready_path}"),
            stop_timeout=40.0,  # draining alone takes up to 30 s
            env={key: value for key, value in os.environ.items() if not key.startswith(PREFIX)},
            cwd=ROOT,
        )

    @property
    def url(self) -> str:
        """The URL of its admin HTTP; a simulator's only port."""
        return f"http://{self.http}"

    async def get(self, path: str) -> httpx.Response:
        """GET a path of its HTTP interface. Raises httpx.HTTPError, also for an error status."""
        if self._client is None or self._client.is_closed:
            self._client = httpx.AsyncClient(base_url=self.url, timeout=60, trust_env=False, verify=False)
        response = await self._client.get(path)
        return response.raise_for_status()

    async def state(self) -> Any:
        """Its `/debug/state`."""
        return (await self.get("/debug/state")).json()

    async def metrics(self) -> str:
        """Its `/metrics`, in Prometheus's text format."""
        return (await self.get("/metrics")).text

    async def wait(self) -> int:
        """Wait for its end and close the connections to it. Returns the exit code."""
        code = await super().wait()
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        return code


class Picker(ServiceProcess):
    """A picker, with its ext_proc and health ports."""

    def __init__(self, name: str, directory: Path, http: Address, address: PickerAddress, flags: Flags) -> None:
        self.address = address
        own: dict[str, str | int | float] = {
            "grpc-host": address.host,
            "grpc-port": address.port,
            "grpc-health-port": address.health_port,
        }
        super().__init__("picker", name, directory, http, own | dict(flags))


class Console(ServiceProcess):
    """A console, with the port of its page beside that of its admin HTTP."""

    def __init__(
        self, name: str, directory: Path, http: Address, page: Address, flags: Flags, *, token: str = ""
    ) -> None:
        self.page = f"http://{page}"
        own: dict[str, str | int | float] = {"console-host": page.host, "console-port": page.port}
        super().__init__("console", name, directory, http, own | dict(flags))
        if token:
            self.environment[CONSOLE_TOKEN] = token


class Simulator(ServiceProcess):
    """A simulated model server, with one port for everything; its state is at `/control/state`."""

    def __init__(self, name: str, directory: Path, http: Address, labels: Mapping[str, str], flags: Flags) -> None:
        self.labels = dict(labels)
        own: dict[str, str | int | float] = {"name": name, "host": http.host, "port": http.port}
        super().__init__("simulator", name, directory, http, own | dict(flags), ready_path="/health")

    @property
    def authority(self) -> str:
        """`address:port`, as in a picker's response."""
        return str(self.http)

    async def state(self) -> Any:
        """Its `/control/state`."""
        return (await self.get("/control/state")).json()
