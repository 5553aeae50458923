"""The Go endpoint picker (llm-d-router) as a process, for benchmarks that compare.

Build its `epp` by hand, from a checkout of llm-d-router: `CGO_ENABLED=0 go build ./cmd/epp`.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from pointsman.local.envoy import PickerAddress
from pointsman.local.ports import Ports
from pointsman.local.process import NotReady, Process, write
from pointsman.local.services import Simulator


class GoPeer(Process):
    """One replica with file discovery and without TLS. It takes a new configuration with a restart only."""

    def __init__(self, binary: Path, directory: Path, ports: Ports, servers: Sequence[Simulator]) -> None:
        self.address = PickerAddress(ports.take("the peer"), ports.take("the peer's health"))
        self._servers = servers
        self._endpoints, self._file = directory / "peer-endpoints.yaml", directory / "peer.yaml"
        flags = {
            "config-file": self._file,
            "grpc-port": self.address.port,
            "grpc-health-port": self.address.health_port,
            "metrics-port": ports.take("the peer's metrics"),
            "pool-name": "default",
            "pool-namespace": "default",
            "secure-serving": "false",
            "metrics-endpoint-auth": "false",
            "tracing": "false",
            "enable-pprof": "false",
            "allow-experimental-plugins": "true",
            "zap-log-level": "error",
        }
        super().__init__(
            "go-peer",
            [binary, *(f"--{flag}={value}" for flag, value in flags.items())],
            directory / "go-peer.log",
            ready=self._listens,
            env=dict(os.environ),
        )

    def configure(self, text: str) -> None:
        """Its next start has this EndpointPickerConfig, with the endpoints from a file."""
        document = yaml.safe_load(text)
        discovery = {"type": "file-discovery", "parameters": {"path": str(self._endpoints)}}
        document["plugins"].append(discovery)
        document["dataLayer"] = {"discovery": {"pluginRef": "file-discovery"}}
        endpoints = [
            {"name": server.name, "address": server.http.host, "port": str(server.http.port)}
            for server in self._servers
        ]
        write(
            {
                self._endpoints: yaml.safe_dump({"endpoints": endpoints}),
                self._file: yaml.safe_dump(document, sort_keys=False),
            }
        )

    async def _listens(self) -> None:
        """Its port opens when it has the endpoints."""
        try:
            _, writer = await asyncio.open_connection(self.address.host, self.address.port)
        except OSError as error:
            raise NotReady(str(error)) from error
        writer.close()
