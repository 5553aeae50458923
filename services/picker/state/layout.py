"""Maps endpoints to positions in the view's arrays.

A layout never changes. When an endpoint comes, goes or changes, a new layout replaces it, and all arrays are moved. A
decision keeps its layout, so it can be explained later.
"""

from collections.abc import Iterable
from ipaddress import ip_address

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


class Layout:
    """Endpoints by position, id, authority and address."""

    def __init__(self, endpoints: Iterable[Endpoint] = (), generation: int = 0) -> None:
        self.endpoints = tuple(sorted(endpoints, key=lambda endpoint: endpoint.id))
        self.generation = generation
        self.index = {endpoint.id: row for row, endpoint in enumerate(self.endpoints)}
        self.authorities = tuple(endpoint.authority for endpoint in self.endpoints)
        self.all_rows: Rows = np.arange(len(self.endpoints), dtype=np.intp)
        self.all_rows.flags.writeable = False
        self.hashes: Hashes = np.array([endpoint_hash(endpoint.id) for endpoint in self.endpoints], dtype=np.uint64)
        self._order = np.argsort(self.hashes)
        self._by_address: dict[str, list[int]] = {}
        for row, endpoint in enumerate(self.endpoints):
            for name in {endpoint.address, endpoint.host, endpoint.authority} - {""}:
                self._by_address.setdefault(name, []).append(row)
        self._subsets: dict[tuple[str, ...], Rows] = {}
        self._remembered = 0

    def __len__(self) -> int:
        return len(self.endpoints)

    def row_of_authority(self, authority: str) -> int | None:
        """The position of the endpoint at `address:port`, or None."""
        rows = self._by_address.get(authority)
        return rows[0] if rows else None

    def rows_of(self, hashes: Hashes) -> tuple[Rows, Mask]:
        """(positions of the endpoints with these hashes, which of the hashes are known)."""
        if not len(self):
            return self.all_rows, np.zeros(len(hashes), dtype=np.bool_)
        places = np.searchsorted(self.hashes, hashes, sorter=self._order)
        rows = self._order[np.minimum(places, len(self) - 1)]
        known = self.hashes[rows] == hashes
        return rows[known], known

    def subset(self, hint: tuple[str, ...]) -> Rows:
        """The endpoints that a gateway's subset hint names: `address:port`, or an address for all of its ports.

        IPv6 with or without brackets. Entries that name nothing are no error (endpoint picker protocol). Ascending,
        each endpoint once, read-only.
        """
        rows = self._subsets.get(hint)
        if rows is None:
            named = {row for entry in hint for row in self._named(entry)}
            rows = np.array(sorted(named), dtype=np.intp)
            rows.flags.writeable = False
            if len(hint) <= REMEMBERED_ENTRIES and max(map(len, hint), default=0) <= REMEMBERED_TEXT:
                self._remembered += max(len(hint), 1)
                if self._remembered > REMEMBERED_ENTRIES:
                    self._subsets.clear()
                    self._remembered = max(len(hint), 1)
                self._subsets[hint] = rows
        return rows

    def _named(self, entry: str) -> list[int]:
        try:
            host, port = split_host_port(entry.strip())
        except ValueError:
            return []
        if ":" in host:
            try:
                host = str(ip_address(host))
            except ValueError:
                return []
        rows = self._by_address.get(host, [])
        return rows if port is None else [row for row in rows if self.endpoints[row].port == port]

    def moved_from(self, old: "Layout") -> tuple[Rows, Rows]:
        """(rows here, rows there) of the endpoints that both layouts have and that are the same server.

        An endpoint whose address, port or UID changed is another server: what was known of it no longer holds.
        """
        here: list[int] = []
        there: list[int] = []
        for row, endpoint in enumerate(self.endpoints):
            other = old.index.get(endpoint.id)
            if other is None or old.endpoints[other].uid != endpoint.uid:
                continue
            if old.authorities[other] == self.authorities[row]:
                here.append(row)
                there.append(other)
        return np.array(here, dtype=np.intp), np.array(there, dtype=np.intp)

    def __repr__(self) -> str:
        return f"<Layout {self.generation}: {len(self)} endpoints>"
