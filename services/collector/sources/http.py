"""Base of the sources that poll over HTTP: URL, interval and TLS.

Each instance has its own addresses and TLS settings. When the servers of a pool differ, `overrides` select other
settings by the endpoints' labels, so that one instance polls all of them.
"""

import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from yarl import URL

from services.collector.http.client import Client
from services.collector.http.tls import TlsContext, TlsFiles
from services.collector.interfaces import Poll, PollingSource
from shared.model import Endpoint, join_host_port
from shared.plugin import Concern, Demand
from shared.quantities import Duration, format_duration

Scheme = Literal["http", "https"]
Port = Annotated[int, Meta(ge=1, le=65535)]

MIN_INTERVAL = 0.001
"""Seconds, the resolution of timers."""


class Override(Struct, frozen=True, kw_only=True, rename="camel"):
    """Other settings for the endpoints with these labels. Missing fields are those of the source.

    Raises ValueError on creation when it would apply to every endpoint, or changes nothing.
    """

    match_labels: dict[str, str]
    scheme: Scheme | None = None
    path: str | None = None
    port: Port | None = None

    def __post_init__(self) -> None:
        if not self.match_labels:
            raise ValueError(
                "matchLabels: empty, which matches every endpoint; set the parameters of the source instead"
            )
        if self.scheme is None and self.path is None and self.port is None:
            raise ValueError("scheme, path, port: at least one is required")
        if self.path is not None:
            check_path(self.path)

    def applies(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.match_labels.items())


class HttpParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they contradict each other."""

    scheme: Scheme = "http"
    path: str = "/"
    port: Port | None = None
    insecure_skip_verify: bool | None = None
    """By default true, unless `ca_cert_path` is given."""
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""
    interval: Duration | None = None
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        check_path(self.path)
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath: give both or none")
        if self.interval and self.interval < MIN_INTERVAL:
            raise ValueError(f"interval: {format_duration(self.interval)} is below {format_duration(MIN_INTERVAL)}")

    @property
    def verifies(self) -> bool:
        """Whether the certificates of https servers are verified."""
        return bool(self.ca_cert_path) if self.insecure_skip_verify is None else not self.insecure_skip_verify

    @property
    def tls_files(self) -> TlsFiles | None:
        """The TLS files; None if no endpoint is polled by https."""
        if "https" not in (self.scheme, *(override.scheme for override in self.overrides)):
            return None
        ca = self.ca_cert_path if self.verifies else ""
        return TlsFiles(self.verifies, ca, self.client_cert_path, self.client_key_path)


class HttpSource(PollingSource):
    """A polling source that sends one GET per poll."""

    Parameters = HttpParameters
    parameters: HttpParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        """Raises ValueError when a certificate file can't be used."""
        super().__init__(name, parameters)
        files = self.parameters.tls_files
        self._tls_context = None if files is None else TlsContext(name, files)

    @classmethod
    def check(cls, parameters: HttpParameters, demand: Demand) -> list[Concern]:
        if not parameters.ca_cert_path:
            return []
        if parameters.tls_files is None:
            return [Concern("caCertPath", "no effect: no endpoint is polled by https", fatal=False)]
        if not parameters.verifies:
            why = "no effect: insecureSkipVerify is true, so any certificate is accepted"
            return [Concern("caCertPath", why, fatal=False)]
        return []

    @property
    def interval(self) -> float | None:
        # As in the Go EPP, 0 is the collector's interval.
        return self.parameters.interval or None

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """How https servers are verified: with this context, with the system's certificates (True) or not at all."""
        return True if self._tls_context is None else self._tls_context.context

    def place(self, endpoint: Endpoint) -> str:
        return self.url(endpoint)

    def reads(self, endpoint: Endpoint) -> object:
        try:
            return self.url(endpoint), ""
        except ValueError as error:
            return "", str(error)

    async def poll(self, endpoint: Endpoint, http: Client) -> Any:
        return await http.get(URL(self.url(endpoint), encoded=True), self.tls)

    def poller(self, endpoint: Endpoint, http: Client) -> Poll:
        if type(self).poll is not HttpSource.poll:
            return super().poller(endpoint, http)
        # The client has a time-out; another one would cost more than the request.
        url = URL(self.url(endpoint), encoded=True)
        return lambda: http.get(url, self.tls)

    def url(self, endpoint: Endpoint) -> str:
        """The URL of an endpoint. Raises ValueError with the reason if it has none."""
        host, port = self.address(endpoint)
        scheme, path = self.parameters.scheme, self.parameters.path
        override = next((each for each in self.parameters.overrides if each.applies(endpoint.labels)), None)
        if override is not None:
            scheme, path, port = override.scheme or scheme, override.path or path, override.port or port
        if not host or not 0 < port < 65536:
            raise ValueError(f"{host!r} with port {port} is not an address")
        return f"{scheme}://{join_host_port(host, port)}{path}"

    def address(self, endpoint: Endpoint) -> tuple[str, int]:
        """Host and port of an endpoint without overrides. Raises ValueError with the reason if it has none."""
        return endpoint.address, self.parameters.port or endpoint.port


def check_path(path: str) -> None:
    """Raises ValueError for a path that isn't valid in a request."""
    if not path.startswith("/"):
        raise ValueError(f"path: {path!r} doesn't begin with /")
    if not path.isascii() or not path.isprintable() or " " in path or "#" in path:
        raise ValueError(f"path: {path!r} has a blank, # or a non-ASCII character; percent-encode it")
