"""The addresses of host names. Envoy's override can't resolve names, so endpoints must not have any. Pure.

An entry of the endpoints file is one server. Of a name with several addresses, the first is used, IPv4 before IPv6 and
then in numeric order, so that all watchers agree. A name that stops resolving keeps its address while an endpoint uses
it: an outage of DNS is no reason to drop servers that work. A name that has never resolved has the address that another
watcher publishes. Without one, it has no endpoint, and is retried sooner.

Names wait for their look-up in groups, which take turns: names that hang, or those of one file, don't delay others.

A change of one endpoint costs the same beside any number of others.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from ipaddress import ip_address
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from services.watcher.endpoints_file import address_problem
from shared.model import Endpoint

FIRST_RETRY = 0.5
"""Seconds until a name that has never resolved is retried; doubled up to the interval."""
MAX_ADDRESSES = 20
"""Addresses of a name that are kept; the first one counts, the others are for people."""


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
    """The last answer, the preferred address first; before the first one, what another watcher published, if any."""
    adopted: bool = False
    """Whether another watcher published the address, and no look-up has succeeded here."""
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
        self._stated: dict[str, tuple[str, str]] = {}
        """By endpoint: its name, and the origin that states it."""
        self._origins: dict[str, Counter[str]] = {}
        """By name: how many endpoints of each origin have it."""
        self._endpoints: dict[str, dict[str, None]] = {}
        """By name: the ids of its endpoints."""
        self._sizes: Counter[str] = Counter()
        """How many names each origin has."""
        self._unused: dict[str, None] = {}
        """Names that no endpoint has any more."""
        self._due_at: dict[str, float] = {}
        """When each name is due that isn't."""
        self._later: list[tuple[float, str]] = []
        """A heap of these, and of entries that don't count any more."""
        self._due: dict[Group, OrderedDict[str, None]] = {}
        """The group whose turn it is comes first."""
        self._queued: dict[str, Group] = {}
        """The group in which a name is due."""

    def set(self, endpoint_id: str, host: str = "", origin: str = "") -> None:
        """An endpoint has this name, as this origin states it; empty: none. A name of several origins counts for the
        one with the fewest."""
        stated = (host, origin) if host else ("", "")
        former = self._stated.get(endpoint_id, ("", ""))
        if stated == former:
            return
        if host:
            self._stated[endpoint_id] = stated
            origins = self._origins.setdefault(host, Counter())
            self._sizes[origin] += not origins[origin]
            origins[origin] += 1
            self._endpoints.setdefault(host, {})[endpoint_id] = None
            self._unused.pop(host, None)
        else:
            del self._stated[endpoint_id]
        if former[0]:
            self._drop(*former)
            if former[0] != host:
                del self._endpoints[former[0]][endpoint_id]
        for name in {host, former[0]} & self._origins.keys():
            if name not in self.names:
                self.names[name] = Name(name)
                self._queue(name)
            elif name in self._queued:
                self._queue(name)

    def _drop(self, host: str, origin: str) -> None:
        origins = self._origins[host]
        origins[origin] -= 1
        if origins[origin]:
            return
        del origins[origin]
        self._sizes[origin] -= 1
        if not self._sizes[origin]:
            del self._sizes[origin]
        if not origins:
            del self._origins[host]
            self._unused[host] = None

    def forget(self) -> Iterator[str]:
        """Forget the names that no endpoint has any more, one at a time."""
        while self._unused:
            host, _ = self._unused.popitem()
            self.names.pop(host, None)
            self._endpoints.pop(host, None)
            self._due_at.pop(host, None)
            self._unqueue(host)
            yield host

    def adopt(self, endpoints: Iterable[Endpoint]) -> list[str]:
        """Use addresses that another watcher has published, for names that have never resolved here; the last one
        counts. Returns the names whose address has changed."""
        adopted: list[str] = []
        for endpoint in endpoints:
            name = self.names.get(endpoint.host)
            if name is None or endpoint.address in ("", name.address):
                continue
            if name.adopted or not name.addresses:
                self.names[name.host] = replace(name, addresses=(endpoint.address,), adopted=True)
                adopted.append(name.host)
        return adopted

    def endpoints_of(self, hosts: Iterable[str]) -> list[str]:
        """The ids of the endpoints with these names."""
        return [id for host in hosts for id in self._endpoints.get(host, ())]

    def take(self, now: float, may: Callable[[Group], bool] = lambda group: True) -> tuple[str, Group] | None:
        """A name to look up, of a group that may begin a look-up; None if there is none. Of new names, those that were
        stated last come first."""
        while (at := self.next_due()) is not None and at <= now:
            _, host = heappop(self._later)
            del self._due_at[host]
            self._queue(host)
        group = next(filter(may, self._due), None)
        if group is None:
            return None
        hosts = self._due.pop(group)
        host, _ = hosts.popitem(last=group.kind == "new")
        del self._queued[host]
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
        while self._later and self._due_at.get(self._later[0][1]) != self._later[0][0]:
            heappop(self._later)
        return self._later[0][0] if self._later else None

    def _wait(self, host: str, until: float) -> None:
        """The name is due at a time."""
        self._due_at[host] = until
        if len(self._later) > 2 * len(self._due_at):
            self._later = [(at, host) for host, at in self._due_at.items()]
            heapify(self._later)
        else:
            heappush(self._later, (until, host))

    def _queue(self, host: str) -> None:
        """The name is due."""
        name = self.names[host]
        origins = self._origins.get(host, ("",))  # none of one that is about to be forgotten
        kind: Literal["new", "known", "slow"] = "slow" if name.slow else "known" if name.looked_up else "new"
        group = Group(min(origins, key=lambda origin: (self._sizes[origin], origin)), kind)
        if self._queued.get(host) != group:
            self._unqueue(host)
            self._queued[host] = group
            self._due.setdefault(group, OrderedDict())[host] = None

    def _unqueue(self, host: str) -> None:
        group = self._queued.pop(host, None)
        if group is not None:
            del self._due[group][host]
            if not self._due[group]:
                del self._due[group]

    def answered(self, host: str, addresses: Iterable[str], now: float) -> bool:
        """Record an answer. Returns whether the name's address has changed."""
        name = self.names.get(host)
        if name is None:
            return False  # it was forgotten during the look-up
        ordered = order(addresses)
        if not ordered:
            return self.failed(host, "no address that a server could have", now)
        self.names[host] = Name(host, ordered, looked_up=True, slow=name.slow)
        self._wait(host, now + self._interval)
        return name.address != ordered[0]

    def failed(self, host: str, reason: str, now: float) -> bool:
        """Record a failure, which never changes an address."""
        name = self.names.get(host)
        if name is not None:
            wait = self._interval if name.addresses else min(FIRST_RETRY * 2**name.failures, self._interval)
            failures = min(name.failures + 1, 30)
            self.names[host] = replace(name, error=reason, failures=failures)
            self._wait(host, now + wait)
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
        return sorted(name.host for name in self.names.values() if not name.addresses)

    def __repr__(self) -> str:
        return f"<Names {len(self.names)}, {len(self.unresolved)} unresolved>"


def order(addresses: Iterable[str]) -> tuple[str, ...]:
    """Distinct addresses, IPv4 first, then by number. Addresses that are valid on one machine only are left out."""
    found = {ip_address(address) for address in addresses if "%" not in address}
    usable = [ip for ip in found if not (address_problem(ip) or (ip.version == 6 and ip.is_link_local))]
    return tuple(str(ip) for ip in sorted(usable, key=lambda ip: (ip.version, int(ip))))
