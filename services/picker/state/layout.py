"""Maps endpoints to positions in the view's arrays.

A layout never changes. When an endpoint comes, goes or changes, a new layout replaces it, and all arrays are moved. A
decision keeps its layout, so it can be explained later.
"""

import weakref
from collections.abc import Iterable
from ipaddress import ip_address
from itertools import repeat
from operator import attrgetter, is_

import numpy as np
import numpy.typing as npt

from shared.bus.columns import endpoint_hash
from shared.model import Endpoint, split_host_port

Rows = npt.NDArray[np.intp]
"""Positions in a layout, in no particular order unless said."""
Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

REMEMBERED_ENTRIES = 65_536
"""Entries of all subset hints whose endpoints a layout remembers: a gateway sends the same few with every request."""
REMEMBERED_TEXT = 128
"""Characters of an entry beyond which its hint isn't remembered: an address and a port have fewer."""

MAX_UNUSUAL = 500
"""Entries of a hint that are read though they are no address as endpoints spell it: IPv6 in another form, or none."""
_FEW_PORTS = 16
"""Endpoints at one address that are compared one by one: an address may have a thousand, and a hint name each."""


class Layout:
    """Endpoints by position, id, authority and address.

    With the `former` layout of the same endpoints, it is made in a third of the time if few have changed.
    """

    def __init__(self, endpoints: Iterable[Endpoint] = (), generation: int = 0, former: "Layout | None" = None) -> None:
        self.endpoints = tuple(sorted(endpoints, key=attrgetter("id")))
        self.generation = generation
        size = len(self.endpoints)
        ids = [endpoint.id for endpoint in self.endpoints]
        self.index = dict(zip(ids, range(size), strict=True))
        self.all_rows: Rows = np.arange(size, dtype=np.intp)
        self.all_rows.flags.writeable = False
        self.draining: Mask = np.fromiter((endpoint.draining for endpoint in self.endpoints), np.bool_, size)
        self.candidates: Rows = self.all_rows
        """The endpoints that get new requests: all but those that are draining."""
        if np.logical_or.reduce(self.draining):
            self.candidates = np.flatnonzero(~self.draining)
            self.candidates.flags.writeable = False
        self.authorities: tuple[str, ...]
        self.hashes: Hashes
        self._former: tuple[weakref.ref[Layout], Rows, Mask] | None = None
        """Another layout, the rows there of the endpoints here (-1: none), and which are the same server."""
        if former is None or not len(former):
            self.authorities = tuple(endpoint.authority for endpoint in self.endpoints)
            self.hashes = np.array([endpoint_hash(id) for id in ids], dtype=np.uint64)
        else:
            self._adopt(former)
        self._order = np.argsort(self.hashes)
        self._by_authority: dict[str, int] | None = None
        self._by_address: dict[str, list[int]] | None = None
        """Both are made when they are needed."""
        self._by_port: dict[str, dict[int, list[int]]] = {}
        """Of addresses with many endpoints, once a hint has named one with a port."""
        self._unusual = 0
        """Of such entries, how many may still be read of the hint at hand."""
        self._subsets: dict[tuple[str, ...], Rows] = {}
        self._remembered = 0

    def _adopt(self, former: "Layout") -> None:
        """Take over what the former layout has found out about endpoints that are in it."""
        there = list(map(former.index.get, self.index, repeat(-1)))
        rows: Rows = np.array(there, np.intp)
        unchanged = list(map(is_, self.endpoints, map(former.endpoints.__getitem__, there)))
        authorities = list(map(former.authorities.__getitem__, there))
        self.hashes = former.hashes[rows]
        same: Mask = np.array(unchanged, np.bool_)
        for row in np.flatnonzero(~same).tolist():
            endpoint, authority = self.endpoints[row], self.endpoints[row].authority
            if there[row] < 0:
                self.hashes[row] = endpoint_hash(endpoint.id)
            else:
                same[row] = former.endpoints[there[row]].uid == endpoint.uid and authorities[row] == authority
            authorities[row] = authority
        self.authorities = tuple(authorities)
        self._former = weakref.ref(former), rows, same

    def __len__(self) -> int:
        return len(self.endpoints)

    def row_of_authority(self, authority: str) -> int | None:
        """The position of the endpoint at `address:port`, or None."""
        if self._by_authority is None:
            last = len(self) - 1
            self._by_authority = dict(zip(reversed(self.authorities), range(last, -1, -1), strict=True))
        return self._by_authority.get(authority)

    def rows_of(self, hashes: Hashes) -> tuple[Rows, Mask]:
        """(positions of the endpoints with these hashes, which of the hashes are known)."""
        if not len(self):
            return self.all_rows, np.zeros(len(hashes), dtype=np.bool_)
        places = np.searchsorted(self.hashes, hashes, sorter=self._order)
        rows = self._order[np.minimum(places, len(self) - 1)]
        known = self.hashes[rows] == hashes
        return rows[known], known

    def subset(self, hint: tuple[str, ...]) -> Rows:
        """The candidates that a gateway's subset hint names: `address:port`, or an address for all of its ports.

        IPv6 with or without brackets. Entries that name nothing are no error (endpoint picker protocol); of those in
        another form than endpoints', the first `MAX_UNUSUAL` are read. Ascending, each endpoint once, read-only.
        """
        rows = self._subsets.get(hint)
        if rows is None:
            self._unusual = MAX_UNUSUAL
            named = [self._named(entry) for entry in dict.fromkeys(hint)]
            different = {id(rows): rows for rows in named}.values()  # an address may be spelled in many ways
            rows = np.array(sorted({row for rows in different for row in rows}), dtype=np.intp)
            if self.candidates is not self.all_rows:
                rows = rows[~self.draining[rows]]
            rows.flags.writeable = False
            if len(hint) <= REMEMBERED_ENTRIES and max(map(len, hint), default=0) <= REMEMBERED_TEXT:
                self._remembered += max(len(hint), 1)
                if self._remembered > REMEMBERED_ENTRIES:
                    self._subsets.clear()
                    self._remembered = max(len(hint), 1)
                self._subsets[hint] = rows
        return rows

    def _named(self, entry: str) -> list[int]:
        if self._by_address is None:
            self._by_address = {}
            for row, endpoint in enumerate(self.endpoints):
                for name in {endpoint.address, endpoint.host, self.authorities[row]} - {""}:
                    self._by_address.setdefault(name, []).append(row)
        if (rows := self._by_address.get(entry)) is not None:
            return rows
        if self._unusual <= 0:
            return []
        try:
            host, port = split_host_port(entry.strip())
            if ":" in host:
                self._unusual -= 1
                host = str(ip_address(host))
        except ValueError:
            self._unusual -= 1
            return []
        rows = self._by_address.get(host, [])
        if port is None:
            return rows
        if len(rows) <= _FEW_PORTS:
            return [row for row in rows if self.endpoints[row].port == port]
        ports = self._by_port.get(host)
        if ports is None:
            ports = self._by_port[host] = {}
            for row in rows:
                ports.setdefault(self.endpoints[row].port, []).append(row)
        return ports.get(port, [])

    def moved_from(self, old: "Layout") -> tuple[Rows, Rows]:
        """(rows here, rows there) of the endpoints that both layouts have and that are the same server.

        An endpoint whose address, port or UID changed is another server: what was known of it no longer holds.
        """
        rows, same = self._compared_with(old)
        here: Rows = np.flatnonzero(same)
        return here, rows[here]

    def rows_in(self, old: "Layout") -> Rows:
        """Where each endpoint is in another layout, by its id; -1 for those that aren't in it."""
        return self._compared_with(old)[0]

    def _compared_with(self, old: "Layout") -> tuple[Rows, Mask]:
        if self._former is None or self._former[0]() is not old:
            rows = np.fromiter(map(old.index.get, self.index, repeat(-1)), np.intp, len(self))
            same: Mask = np.zeros(len(self), np.bool_)
            for row in np.flatnonzero(rows >= 0).tolist():
                other = rows.item(row)
                known = old.authorities[other] == self.authorities[row]
                same[row] = known and old.endpoints[other].uid == self.endpoints[row].uid
            self._former = weakref.ref(old), rows, same
        return self._former[1:]

    def __repr__(self) -> str:
        return f"<Layout {self.generation}: {len(self)} endpoints>"
