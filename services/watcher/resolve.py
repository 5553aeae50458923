"""Host names to addresses, again and again: Envoy's override can't resolve names, so endpoints must not have any.

An entry of the endpoints file is one server. Of a name with several addresses the first is taken, IPv4 before IPv6
and then in numeric order, so that all watchers agree whatever order the resolver answers in. A name that stops
resolving keeps its address, for as long as an endpoint has it: DNS being out is no reason to drop servers that work. A
name that never resolved has no endpoint, and is tried again sooner.
"""

from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from shared.model import Endpoint

FIRST_RETRY = 0.5
"""Seconds until a name that never resolved is tried again; doubled up to the interval."""


class Name(Struct, frozen=True):
    """What is known of a host name."""

    host: str
    addresses: tuple[str, ...] = ()
    """The last answer, best first; empty when there never was one."""
    resolved_at: float | None = None
    error: str = ""
    """Why the last try failed; empty when it didn't."""
    failures: int = 0
    """Tries that failed since the last answer."""
    next_try: float = 0.0

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


class Names:
    """The host names of the endpoints. Pure: says which to look up, and is told what came out."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._names: dict[str, Name] = {}

    def follow(self, endpoints: Iterable[Endpoint]) -> None:
        """Know the names that these endpoints have, and forget the others."""
        self._names = {
            host: self._names.get(host, Name(host)) for host in sorted({one.host for one in endpoints} - {""})
        }

    def adopt(self, endpoints: Iterable[Endpoint]) -> bool:
        """Take over addresses that another watcher found, for names that have none yet; whether there was one."""
        adopted = False
        for endpoint in endpoints:
            name = self._names.get(endpoint.host)
            if name is not None and not name.addresses and endpoint.address:
                self._names[name.host] = replace(name, addresses=(endpoint.address,))
                adopted = True
        return adopted

    def due(self, now: float) -> list[str]:
        """Those to be looked up, first those of which least tries have failed."""
        due = [name for name in self._names.values() if name.next_try <= now]
        return [name.host for name in sorted(due, key=lambda name: name.failures)]

    def next_due(self, under_way: Collection[str] = ()) -> float | None:
        """When the next name is to be looked up, those under way aside; None when there is none."""
        tries = (name.next_try for name in self._names.values() if name.host not in under_way)
        return min(tries, default=None)

    def answered(self, host: str, addresses: Iterable[str], now: float) -> bool:
        """Note an answer; whether the name's address is another one now."""
        name = self._names.get(host)
        if name is None:
            return False  # forgotten while the question was under way
        ordered = order(addresses)
        if not ordered:
            return self.failed(host, "no address that a server could have", now)
        self._names[host] = Name(host, ordered, resolved_at=now, next_try=now + self._interval)
        return name.address != ordered[0]

    def failed(self, host: str, reason: str, now: float) -> bool:
        """Note a failure. Never changes an address."""
        name = self._names.get(host)
        if name is not None:
            wait = self._interval if name.addresses else min(FIRST_RETRY * 2**name.failures, self._interval)
            self._names[host] = replace(name, error=reason, failures=min(name.failures + 1, 30), next_try=now + wait)
        return False

    def apply(self, endpoints: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
        """The endpoints that have an address, those with a host name with the name's."""
        resolved: list[Endpoint] = []
        for endpoint in endpoints:
            if not endpoint.host:
                resolved.append(endpoint)
            elif address := self._names.get(endpoint.host, Name(endpoint.host)).address:
                resolved.append(replace(endpoint, address=address))
        return tuple(resolved)

    @property
    def names(self) -> Mapping[str, Name]:
        return self._names

    @property
    def unresolved(self) -> list[str]:
        """Names without an address: their endpoints aren't published."""
        return [name.host for name in self._names.values() if not name.addresses]

    def __repr__(self) -> str:
        return f"<Names {len(self._names)}, {len(self.unresolved)} unresolved>"


def order(addresses: Iterable[str]) -> tuple[str, ...]:
    """Distinct addresses, IPv4 first, then by number; those that mean something on one machine only are left out."""
    found = {ip_address(one) for one in addresses if "%" not in one}
    usable = [
        one for one in found if not (one.is_unspecified or one.is_multicast or (one.version == 6 and one.is_link_local))
    ]
    return tuple(str(one) for one in sorted(usable, key=lambda one: (one.version, int(one))))
