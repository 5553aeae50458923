"""The addresses of host names. Envoy's override can't resolve names, so endpoints must not have any. Pure.

An entry of the endpoints file is one server. Of a name with several addresses, the first is used, IPv4 before IPv6 and
then in numeric order, so that all watchers agree. A name that stops resolving keeps its address while an endpoint uses
it: an outage of DNS is no reason to drop servers that work. A name that has never resolved has no endpoint, and is
retried sooner.

Names wait for their look-up in groups, which take turns: names that hang, or those of one file, don't delay others.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from ipaddress import ip_address
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from shared.model import Endpoint

FIRST_RETRY = 0.5
"""Seconds until a name that has never resolved is retried; doubled up to the interval."""


class Group(NamedTuple):
    """Names that share their part of the look-ups."""

    origin: str
    """What states the names' endpoints."""
    kind: Literal["new", "known", "slow"]
    """New names haven't been looked up yet; the last look-up of slow names hung."""


class Name(Struct, frozen=True):
    """What is known of a host name."""

    host: str
    addresses: tuple[str, ...] = ()
    """The last answer, the preferred address first; empty before the first one."""
    error: str = ""
    """Why the last look-up failed; empty if it didn't."""
    failures: int = 0
    """Consecutive failures."""
    looked_up: bool = False
    slow: bool = False
    """Whether the last look-up took too long."""

    @property
    def address(self) -> str:
        return self.addresses[0] if self.addresses else ""


class Names:
    """The host names of the endpoints: which to look up, and what they resolve to.

    A name waits until it is due, then for its turn (`take`), then for its answer (`answered`, `failed`).
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self.names: dict[str, Name] = {}
        self._origins: dict[str, str] = {}
        self._later: list[tuple[float, str]] = []
        """A heap of the names that aren't due, each with the time at which it is."""
        self._due: dict[Group, deque[str]] = {}
        """The group whose turn it is comes first."""

    def follow(
        self, endpoints: Iterable[Endpoint], origin_of: Callable[[Endpoint], str] = lambda endpoint: ""
    ) -> list[str]:
        """Follow the names of these endpoints, and forget the others, which are returned. A name of several origins
        counts for the one with the fewest."""
        stated = {(endpoint.host, origin_of(endpoint)) for endpoint in endpoints if endpoint.host}
        self._origins = dict(stated)
        if len(self._origins) < len(stated):
            sizes = Counter(origin for _, origin in stated)
            self._origins = dict(sorted(stated, key=lambda pair: (-sizes[pair[1]], pair)))
        before, self.names = self.names, {host: self.names.get(host) or Name(host) for host in sorted(self._origins)}
        self._later = [entry for entry in self._later if entry[1] in self.names]
        heapify(self._later)
        due, self._due = self._due, {}
        moved = [host for host in reversed(self.names) if host not in before]
        for group, hosts in due.items():
            moved += [host for host in hosts if host in self.names and self._origins[host] != group.origin]
            if kept := [host for host in hosts if self._origins.get(host) == group.origin]:
                self._due[group] = deque(kept)
        for host in moved:
            self._queue(host)
        return [host for host in before if host not in self.names]

    def adopt(self, endpoints: Iterable[Endpoint]) -> bool:
        """Use addresses that another watcher has published, for names without one. Returns whether there were any."""
        adopted = False
        for endpoint in endpoints:
            name = self.names.get(endpoint.host)
            if name is not None and not name.addresses and endpoint.address:
                self.names[name.host] = replace(name, addresses=(endpoint.address,))
                adopted = True
        return adopted

    def take(self, now: float, may: Callable[[Group], bool] = lambda group: True) -> tuple[str, Group] | None:
        """A name to look up, of a group that may begin a look-up; None if there is none. Of new names, those that were
        stated last come first."""
        while self._later and self._later[0][0] <= now:
            self._queue(heappop(self._later)[1])
        group = next(filter(may, self._due), None)
        if group is None:
            return None
        hosts = self._due.pop(group)
        host = hosts.pop() if group.kind == "new" else hosts.popleft()
        if hosts:
            self._due[group] = hosts
        self.names[host] = replace(self.names[host], looked_up=True, slow=False)
        return host, group

    @property
    def waiting(self) -> bool:
        """Whether names are due that haven't been taken."""
        return bool(self._due)

    def next_due(self) -> float | None:
        """When the next name becomes due; None if there is none."""
        return self._later[0][0] if self._later else None

    def _queue(self, host: str) -> None:
        name = self.names[host]
        kind: Literal["new", "known", "slow"] = "slow" if name.slow else "known" if name.looked_up else "new"
        self._due.setdefault(Group(self._origins[host], kind), deque()).append(host)

    def answered(self, host: str, addresses: Iterable[str], now: float) -> bool:
        """Record an answer. Returns whether the name's address has changed."""
        name = self.names.get(host)
        if name is None:
            return False  # it was forgotten during the look-up
        ordered = order(addresses)
        if not ordered:
            return self.failed(host, "no address that a server could have", now)
        self.names[host] = Name(host, ordered, looked_up=True, slow=name.slow)
        heappush(self._later, (now + self._interval, host))
        return name.address != ordered[0]

    def failed(self, host: str, reason: str, now: float) -> bool:
        """Record a failure, which never changes an address."""
        name = self.names.get(host)
        if name is not None:
            wait = self._interval if name.addresses else min(FIRST_RETRY * 2**name.failures, self._interval)
            failures = min(name.failures + 1, 30)
            self.names[host] = replace(name, error=reason, failures=failures)
            heappush(self._later, (now + wait, host))
        return False

    def hangs(self, host: str, reason: str) -> None:
        """Record that a look-up takes too long. Its answer still counts."""
        name = self.names.get(host)
        if name is not None:
            self.names[host] = replace(name, error=reason, slow=True)

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
