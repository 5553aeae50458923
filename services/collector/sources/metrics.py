"""`metrics-data-source`: the model servers' Prometheus pages.

Each instance has its own address rules and its own idea of trust: how one verifies https never affects another.
"""

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from services.collector.interfaces import PROMETHEUS_TEXT, Binding, MetricsBinding, PollingSource
from services.collector.scan import scan, steps
from services.collector.selection import Choice, Selector
from shared.model import Endpoint, join_host_port, split_host_port
from shared.quantities import Duration


class MetricsParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they don't fit together."""

    scheme: Literal["http", "https"] = "http"
    path: str = "/metrics"
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    insecure_skip_verify: bool = True
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""
    interval: Duration | None = None

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path: {self.path!r} doesn't begin with /")
        if any(char.isspace() or char == "#" for char in self.path):
            raise ValueError(f"path: {self.path!r} has a blank or #; escape it as %20 or %23")
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: give both or none")


class MetricsSource(PollingSource):
    """The polling source of metrics pages."""

    TYPE = "metrics-data-source"
    OUTPUT = PROMETHEUS_TEXT
    Parameters = MetricsParameters

    parameters: MetricsParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        """Raises ValueError when a certificate file can't be used."""
        super().__init__(name, parameters)
        self._tls = _tls(self.parameters) if self.parameters.scheme == "https" else True

    @property
    def interval(self) -> float | None:
        # As in the Go original 0 stands for the collector's own.
        return self.parameters.interval or None

    @property
    def tls(self) -> ssl.SSLContext | bool:
        return self._tls

    def url(self, endpoint: Endpoint) -> str:
        host, port = endpoint.address, endpoint.port
        if endpoint.metrics_host:
            host, named = split_host_port(endpoint.metrics_host)
            port = named or port
        port = self.parameters.port or port
        if not host or not 0 < port < 65536:
            raise ValueError(f"{host!r} with port {port} is no address")
        return f"{self.parameters.scheme}://{join_host_port(host, port)}{self.parameters.path}"

    async def read(self, page: bytes, bindings: Sequence[Binding]) -> None:
        choices = [choice for one in bindings if isinstance(one, MetricsBinding) for choice in one.choices]
        pieces = list(steps(page))
        while wanted := _wanted(choices):
            for index, (start, end) in enumerate(pieces):
                if index:
                    await asyncio.sleep(0)
                scan(page, wanted, start, end)


def _wanted(choices: Iterable[Choice]) -> dict[bytes, list[Selector]]:
    """What to look for next, by the metric's name: specifications that share a metric share the search for it."""
    wanted: dict[bytes, list[Selector]] = {}
    for choice in choices:
        selector = choice.next()
        if selector is not None:
            wanted.setdefault(selector.name, []).append(selector)
    return wanted


def _tls(parameters: MetricsParameters) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if parameters.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif parameters.ca_cert_path:
        try:
            context = ssl.create_default_context(cafile=parameters.ca_cert_path)
        except OSError as error:
            raise ValueError(f"caCertPath: {parameters.ca_cert_path!r} can't be used: {error}") from error
    if parameters.client_cert_path:
        try:
            context.load_cert_chain(parameters.client_cert_path, parameters.client_key_path)
        except OSError as error:
            files = f"{parameters.client_cert_path!r} and {parameters.client_key_path!r}"
            raise ValueError(f"clientCertPath, clientKeyPath: {files} can't be used: {error}") from error
    return context
