"""What the sources that poll over HTTP share: where an endpoint is asked, how often, and whom the source trusts.

Each instance has its own address rules and its own idea of trust: how one verifies https never affects another. Where
the servers of a pool differ, `overrides` say so by the endpoints' labels, so that one instance asks all of them.
"""

import ssl
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from yarl import URL

from services.collector.http.client import Client
from services.collector.interfaces import Poll, PollingSource
from services.collector.sources.trust import Trust, TrustFiles
from shared.model import Endpoint, join_host_port
from shared.plugin import Concern, Demand
from shared.quantities import Duration, format_duration

Scheme = Literal["http", "https"]
Port = Annotated[int, Meta(ge=1, le=65535)]

LEAST_INTERVAL = 0.001
"""Seconds: timers have no finer grain."""


class Override(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is different for the endpoints with these labels; what it doesn't give is as for all others.

    Raises ValueError on creation when it would apply to every endpoint, or changes nothing.
    """

    match_labels: dict[str, str]
    scheme: Scheme | None = None
    path: str | None = None
    port: Port | None = None

    def __post_init__(self) -> None:
        if not self.match_labels:
            raise ValueError("matchLabels: empty, which is every endpoint; give the source itself what holds for all")
        if self.scheme is None and self.path is None and self.port is None:
            raise ValueError("scheme, path, port: none is given, so nothing would be different; give at least one")
        if self.path is not None:
            check_path(self.path)

    def applies(self, labels: Mapping[str, str]) -> bool:
        return all(labels.get(name) == value for name, value in self.match_labels.items())


class HttpParameters(Struct, frozen=True, kw_only=True, rename="camel"):
    """Parameters. Raises ValueError on creation when they don't fit together."""

    scheme: Scheme = "http"
    path: str = "/"
    port: Port | None = None
    insecure_skip_verify: bool | None = None
    """None: true, unless a CA is named: whoever names one wants servers verified by it."""
    ca_cert_path: str = ""
    client_cert_path: str = ""
    client_key_path: str = ""
    interval: Duration | None = None
    overrides: tuple[Override, ...] = ()

    def __post_init__(self) -> None:
        check_path(self.path)
        if bool(self.client_cert_path) != bool(self.client_key_path):
            raise ValueError("clientCertPath and clientKeyPath belong together: give both or none")
        if self.interval and self.interval < LEAST_INTERVAL:
            raise ValueError(f"interval: {format_duration(self.interval)} is below {format_duration(LEAST_INTERVAL)}")

    @property
    def verifies(self) -> bool:
        """Whether the certificates of https servers are verified."""
        return bool(self.ca_cert_path) if self.insecure_skip_verify is None else not self.insecure_skip_verify

    @property
    def trust(self) -> TrustFiles | None:
        """What https servers are verified by; None where nobody is asked by https."""
        if "https" not in (self.scheme, *(one.scheme for one in self.overrides)):
            return None
        ca = self.ca_cert_path if self.verifies else ""
        return TrustFiles(self.verifies, ca, self.client_cert_path, self.client_key_path)


class HttpSource(PollingSource):
    """A polling source by these parameters, or by some that add to them."""

    Parameters = HttpParameters
    parameters: HttpParameters

    def __init__(self, name: str, parameters: Any = None) -> None:
        """Raises ValueError when a certificate file can't be used."""
        super().__init__(name, parameters)
        files = self.parameters.trust
        self._trust = None if files is None else Trust(name, files)

    @classmethod
    def check(cls, parameters: HttpParameters, demand: Demand) -> list[Concern]:
        if not parameters.ca_cert_path:
            return []
        if parameters.trust is None:
            return [Concern("caCertPath", "no effect while nothing is asked by https", fatal=False)]
        if not parameters.verifies:
            why = "no effect: insecureSkipVerify is true, so any certificate is taken; leave that out"
            return [Concern("caCertPath", why, fatal=False)]
        return []

    @property
    def interval(self) -> float | None:
        # As in the Go original 0 stands for the collector's own.
        return self.parameters.interval or None

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """How a https server is verified: by this context, by the system's certificates (True) or not at all."""
        return True if self._trust is None else self._trust.context

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
        # one GET, whose time the client bounds itself: a time-out of its own would cost more than the request
        url = URL(self.url(endpoint), encoded=True)
        return lambda: http.get(url, self.tls)

    def url(self, endpoint: Endpoint) -> str:
        """Where the endpoint is asked. Raises ValueError that says why it can't be."""
        host, port = self.address(endpoint)
        scheme, path = self.parameters.scheme, self.parameters.path
        override = next((one for one in self.parameters.overrides if one.applies(endpoint.labels)), None)
        if override is not None:
            scheme, path, port = override.scheme or scheme, override.path or path, override.port or port
        if not host or not 0 < port < 65536:
            raise ValueError(f"{host!r} with port {port} is no address")
        return f"{scheme}://{join_host_port(host, port)}{path}"

    def address(self, endpoint: Endpoint) -> tuple[str, int]:
        """Host and port where an endpoint is asked, overrides aside. Raises ValueError that says why it can't be."""
        return endpoint.address, self.parameters.port or endpoint.port


def check_path(path: str) -> None:
    """Raises ValueError for a path that can't stand in a request as it is."""
    if not path.startswith("/"):
        raise ValueError(f"path: {path!r} doesn't begin with /")
    if not path.isascii() or not path.isprintable() or " " in path or "#" in path:
        raise ValueError(f"path: {path!r} has a blank, # or no ASCII; escape it as %20, %23 or the like")
