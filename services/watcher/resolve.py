"""The addresses of host names. Envoy's override can't resolve names, so endpoints must not have any. Pure.

An entry of the endpoints file is one server. Of a name with several addresses, the first is used, IPv4 before IPv6 and
then in numeric order, so that all watchers agree. A name that stops resolving keeps its address while an endpoint uses
it: an outage of DNS is no reason to drop servers that work. A name that has never resolved has no endpoint, and is
retried sooner.
"""

from collections.abc import Collection, Iterable
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from shared.model import Endpoint

FIRST_RETRY = 0.5
"""Seconds until a name that has never resolved is retried; doubled up to the interval."""


class Name(Struct, frozen=True):
    """What is known of a host name."""

    host: str
    addresses: tuple[str, ...] = ()
    """The last answer, the preferred address first; empty before the first one."""
    error: str = ""
    """Why the last look-up failed; empty if it didn't."""
    failures: int = 0
    """Consecutive failures."""
    next_try: float = 0.0

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


class Names:
    """The host names of the endpoints: which to look up, and what they resolve to."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.names: dict[str, Name] = {}

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Follow the names of these endpoints, and forget the others."""
        hosts = sorted({endpoint.host for endpoint in endpoints} - {""})
        self.names = {host: self.names.get(host, Name(host)) for host in hosts}

    def adopt(self, endpoints: Iterable[Endpoint]) -> bool:
        """Use addresses that another watcher has published, for names without one. Returns whether there were any."""
        adopted = False
        for endpoint in endpoints:
            name = self.names.get(endpoint.host)
            if name is not None and not name.addresses and endpoint.address:
                self.names[name.host] = replace(name, addresses=(endpoint.address,))
                adopted = True
        return adopted

    def due(self, now: float, under_way: Collection[str] = ()) -> list[str]:
        """Names to look up, except those under way; those with the fewest failures first."""
        due = [name for name in self.names.values() if name.next_try <= now and name.host not in under_way]
        return [name.host for name in sorted(due, key=lambda name: name.failures)]

    def next_due(self, under_way: Collection[str] = ()) -> float | None:
        """When the next name is due, except those under way; None if there is none."""
        tries = (name.next_try for name in self.names.values() if name.host not in under_way)
        return min(tries, default=None)

    def answered(self, host: str, addresses: Iterable[str], now: float) -> bool:
        """Record an answer. Returns whether the name's address has changed."""
        name = self.names.get(host)
        if name is None:
            return False  # it was forgotten during the look-up
        ordered = order(addresses)
        if not ordered:
            return self.failed(host, "no address that a server could have", now)
        self.names[host] = Name(host, ordered, next_try=now + self._interval)
        return name.address != ordered[0]

    def failed(self, host: str, reason: str, now: float) -> bool:
        """Record a failure, which never changes an address."""
        name = self.names.get(host)
        if name is not None:
            wait = self._interval if name.addresses else min(FIRST_RETRY * 2**name.failures, self._interval)
            self.names[host] = replace(name, error=reason, failures=min(name.failures + 1, 30), next_try=now + wait)
        return False

    def resolve(self, endpoint: Endpoint) -> Endpoint | None:
        """The endpoint with its address; None while its host name has none."""
        if not endpoint.host:
            return endpoint
        name = self.names.get(endpoint.host)
        return replace(endpoint, address=name.address) if name is not None and name.addresses else None

    @property
    def unresolved(self) -> list[str]:
        """Names without an address. Their endpoints aren't published."""
        return [name.host for name in self.names.values() if not name.addresses]

    def __repr__(self) -> str:
        return f"<Names {len(self.names)}, {len(self.unresolved)} unresolved>"


def order(addresses: Iterable[str]) -> tuple[str, ...]:
    """Distinct addresses, IPv4 first, then by number. Addresses that are valid on one machine only are left out."""
    found = {ip_address(address) for address in addresses if "%" not in address}
    usable = [
        ip for ip in found if not (ip.is_unspecified or ip.is_multicast or (ip.version == 6 and ip.is_link_local))
    ]
    return tuple(str(ip) for ip in sorted(usable, key=lambda ip: (ip.version, int(ip))))
