"""Requests and tokens in flight at each endpoint: this picker's own, and those that its peers report.

The sum is what scorers read. Our own part is a table of charges, each released exactly once; a peer's part is its last
table, dropped when the peer says that it leaves or has been silent for longer than the expiry; the time that a table
spent waiting on its way counts as silence. Counts belong to an endpoint's id and outlive its absence, so an endpoint
that comes back can't get a negative count. An endpoint that is new gets its peers' load with their next tables, at the
latest with the next heartbeat: changed endpoints cost nothing for each row that peers say.

Between two tables, peers see the same endpoints as we do and choose as we do. So scorers count what we have charged
since our last table once more for each peer (`expected_requests`, `expected_tokens`): pickers that know of one idle
endpoint then fill it together, and not each of them alone.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS, ViewLimits
from services.picker.state.layout import Floats, Layout, Rows
from services.picker.state.past_load import MAX_CHANGES, PastLoad
from shared.bus.codec import load_digest
from shared.bus.columns import endpoint_hash, pack_counts, pack_hashes, unpack_counts, unpack_hashes
from shared.bus.messages import Load
from shared.bus.queueing_delay import QueueingDelays

EXPIRY = 1.5
"""Seconds without news after which a peer's row no longer counts: three heartbeats."""
MAX_TOKENS = 1_000_000
"""The maximum tokens of a charge: about the longest context window that models have. Clients influence the number (`n`,
headers about videos, sizes of pictures), and a saturation by tokens is a mean over endpoints, so without this limit one
request could make a large pool look full."""
MIN_ROWS = 1000
"""Rows that a peer's table counts as at least."""
FORGOTTEN = 300.0
"""Seconds without news after which nothing at all is remembered of a peer."""
SAME_SAMPLE = 1e-3
"""Seconds by which sample times may differ that are one: frames repeat samples, with ages in 32-bit floats."""


class Charge:
    """The load of one request on an endpoint. Released once; further releases do nothing."""

    __slots__ = ("_table", "endpoint_id", "tokens")

    def __init__(self, table: "InFlight", endpoint_id: str, tokens: int) -> None:
        self._table: InFlight | None = table
        self.endpoint_id = endpoint_id
        self.tokens = tokens

    @property
    def released(self) -> bool:
        return self._table is None

    def held(self) -> "Iterator[Charge]":
        """Those of its parts that aren't released, each on one endpoint."""
        if self._table is not None:
            yield self

    def move(self, endpoint_id: str) -> None:
        """The request turned out to be served by another endpoint."""
        if self._table is not None and endpoint_id != self.endpoint_id:
            self._table.add(self.endpoint_id, -1, -self.tokens)
            self._table.add(endpoint_id, 1, self.tokens)
            self.endpoint_id = endpoint_id

    def response_began(self) -> None:
        """The response's headers have come."""

    def release_tokens(self) -> None:
        """The prompt has been read: only the request itself is still under way."""
        if self._table is not None and self.tokens:
            self._table.add(self.endpoint_id, 0, -self.tokens)
            self.tokens = 0

    def release(self) -> None:
        """The request is over."""
        if self._table is not None:
            self._table.add(self.endpoint_id, -1, -self.tokens)
            self._table = None

    def __repr__(self) -> str:
        state = "released" if self.released else f"{self.tokens} tokens"
        return f"<Charge {self.endpoint_id}: {state}>"


class Charges(Charge):
    """The load of one request on several endpoints: the one that serves it, and others that work on it. They are
    released together, each once."""

    __slots__ = ("_others",)

    def __init__(self, table: "InFlight", endpoint_id: str, tokens: int, others: Iterable[tuple[Charge, bool]]) -> None:
        """`others` are the charges of other endpoints; True has one released when the response begins."""
        super().__init__(table, endpoint_id, tokens)
        self._others = tuple(others)

    def held(self) -> Iterator[Charge]:
        yield from super().held()
        for charge, _ in self._others:
            yield from charge.held()

    def response_began(self) -> None:
        for charge, until_response in self._others:
            if until_response:
                charge.release()

    def release(self) -> None:
        for charge, _ in self._others:
            charge.release()
        super().release()


class _Placement:
    """Where the endpoints of a layout are by now; -1 for those that were gone since."""

    __slots__ = ("now",)

    def __init__(self, layout: Layout) -> None:
        self.now = layout.all_rows


class _Peer:
    """What a peer's last table says of the endpoints of the layout that it met."""

    __slots__ = ("_sent", "digest", "placement", "requests", "rows", "run", "seen", "sequence", "tokens", "weight")

    def __init__(self, load: Load, layout: Layout, placement: _Placement, seen: float) -> None:
        hashes = unpack_hashes(load.ids)
        self.rows, known = layout.rows_of(hashes)
        self.placement = placement
        """Of that layout."""
        self.requests = unpack_counts(load.requests)[known].astype(np.float64)
        self.tokens = unpack_counts(load.tokens)[known].astype(np.float64)
        self.run, self.sequence, self.digest = load.run, load.sequence, load_digest(load)
        self._sent = load.sent
        self.weight = max(len(hashes), MIN_ROWS)
        self.seen = seen

    def outdates(self, load: Load, seen: float) -> bool:
        """Whether this is a later table than one that was said at `seen`: it came before it all the same."""
        return load.sent < self._sent if load.run == self.run else seen < self.seen


class PeerTable(NamedTuple):
    """What is known of a peer's load."""

    id: str
    age: float
    run: int
    sequence: int
    digest: int
    """Of the table as it came."""
    requests: float
    tokens: float
    """At the endpoints that its table met here."""


class InFlight:
    """The table. `requests` and `tokens` are the sums per endpoint, in the layout's order; `count` and `token_count`
    are the sums of all. A peer whose table exceeds `limits` isn't counted."""

    def __init__(self, limits: ViewLimits = DEFAULT_VIEW_LIMITS) -> None:
        self._max_rows = limits.peer_rows
        self._layout = Layout()
        self._placement = _Placement(self._layout)
        self._own: dict[str, list[int]] = {}
        self._peers: dict[str, _Peer] = {}
        self._weight = 0
        """Of all peers."""
        self._delays = QueueingDelays(limit=limits.runs)
        self.requests: Floats = np.zeros(0)
        self.tokens: Floats = np.zeros(0)
        self._ahead_requests: Floats = np.zeros(0)
        self._ahead_tokens: Floats = np.zeros(0)
        """What peers have probably charged, as far as their tables don't say it yet."""
        self._is_ahead = False
        self._past: tuple[Floats, Floats] | None = None
        """The table that `snapshot` shares; None when anything but `_changes` has changed since."""
        self._changes: list[tuple[int, int, int]] = []
        self.on_charge: Callable[[], None] | None = None
        """Called when peers are to learn of a charge."""
        self.on_release: Callable[[], None] | None = None
        """Called when our own part has become less."""
        self.count = self.token_count = 0.0
        self.at_sample: Floats = np.zeros(0)
        """What `requests` was when the last metrics of each endpoint came: the difference has been dispatched since, or
        is negative, and finished. A peer that comes or goes changes both alike. Another array when it changes."""
        self._sampled: Floats = np.zeros(0)
        self.changed = False
        """Whether our own part changed since it was last published."""

    def charge(self, endpoint_id: str, tokens: int) -> Charge:
        """Count one request, and its tokens up to `MAX_TOKENS`, for the endpoint until the charge is released."""
        tokens = min(tokens, MAX_TOKENS)
        self.add(endpoint_id, 1, tokens)
        if self._peers:
            self._expect(endpoint_id, tokens)
        return Charge(self, endpoint_id, tokens)

    def charge_all(self, endpoint_id: str, tokens: int, others: Iterable[tuple[str, int, bool]]) -> Charge:
        """Count one request for the endpoint that serves it and for `others`: (id, tokens, whether only until the
        response begins)."""
        charges = [(self.charge(other, its_tokens), until) for other, its_tokens, until in others]
        tokens = min(tokens, MAX_TOKENS)
        self.add(endpoint_id, 1, tokens)
        if self._peers:
            self._expect(endpoint_id, tokens)
        return Charges(self, endpoint_id, tokens, charges)

    def _expect(self, endpoint_id: str, tokens: int) -> None:
        """Each peer probably charges the same."""
        row = self._layout.index.get(endpoint_id)
        if row is not None:
            peers = len(self._peers)
            if not self._is_ahead:
                self._is_ahead = True
                if self.on_charge is not None:
                    self.on_charge()
            self._ahead_requests[row] = self._ahead_requests.item(row) + peers
            self._ahead_tokens[row] = self._ahead_tokens.item(row) + peers * tokens
            if self._past is not None:
                self._note_change(row, peers, peers * tokens)

    def expected_requests(self, rows: Rows) -> Floats:
        """Requests in flight at these rows, and those that peers have probably charged. Shape: (rows,)."""
        requests = self.requests.take(rows)
        return requests + self._ahead_requests.take(rows) if self._is_ahead else requests

    def expected_tokens(self, rows: Rows) -> Floats:
        """The same of tokens."""
        tokens = self.tokens.take(rows)
        return tokens + self._ahead_tokens.take(rows) if self._is_ahead else tokens

    def snapshot(self) -> PastLoad:
        """Expected requests and tokens of all rows, to be kept."""
        table = self._past
        if table is None:
            table = self._past = self.requests + self._ahead_requests, self.tokens + self._ahead_tokens
            self._changes = []
        return PastLoad(table, self._changes, len(self._changes))

    def _note_change(self, row: int, requests: int, tokens: int) -> None:
        self._changes.append((row, requests, tokens))
        if len(self._changes) >= MAX_CHANGES:
            self._past = None

    def published(self) -> None:
        """Our own part has been published, and peers publish theirs."""
        self.changed = False
        if self._is_ahead:
            self._is_ahead, self._past = False, None
            self._ahead_requests.fill(0.0)
            self._ahead_tokens.fill(0.0)

    def add(self, endpoint_id: str, requests: int, tokens: int) -> None:
        """Change our own part. Only `Charge` takes away, and only what it added."""
        own = self._own.get(endpoint_id)
        if own is None:
            own = self._own[endpoint_id] = [0, 0]
        own[0] += requests
        own[1] += tokens
        if not (own[0] or own[1]):
            del self._own[endpoint_id]
        row = self._layout.index.get(endpoint_id)
        if row is not None:
            # `item` gives a float of Python's own: numpy's take five times as long to add to
            self.requests[row] = self.requests.item(row) + requests
            self.tokens[row] = self.tokens.item(row) + tokens
            self.count += requests
            self.token_count += tokens
            if self._past is not None:
                self._note_change(row, requests, tokens)
        self.changed = True
        if self.on_release is not None and (requests < 0 or tokens < 0):
            self.on_release()

    def note_samples(self, at: Floats) -> None:
        """Metrics of endpoints were sampled at these times, one a row: those that are new show the requests that are in
        flight by now."""
        new = at > self._sampled + SAME_SAMPLE
        self.at_sample = np.where(new, self.requests, self.at_sample)
        np.copyto(self._sampled, at, where=new)

    def relayout(self, layout: Layout) -> None:
        """Take the counts over to the positions of a new layout. An endpoint that the last one didn't have counts our
        own part."""
        size, there = len(layout), layout.rows_in(self._layout)
        stayed = there >= 0
        there = there[stayed]
        requests, tokens, at_sample = np.zeros(size), np.zeros(size), np.zeros(size)
        requests[stayed], tokens[stayed] = self.requests[there], self.tokens[there]
        at_sample[stayed] = self.at_sample[there]
        for name, own in self._own.items():
            row = layout.index.get(name)
            if row is not None and not stayed[row]:
                requests[row], tokens[row] = own
                at_sample[row] = requests[row]
        sampled = np.full(size, -np.inf)
        sampled[stayed] = self._sampled[there]
        here = np.full(len(self._layout) + 1, -1, np.intp)  # -1 stays -1
        here[there] = np.flatnonzero(stayed)
        for placement in {peer.placement for peer in self._peers.values()}:
            placement.now = here[placement.now]
        self._layout, self._placement, self.requests, self.tokens = layout, _Placement(layout), requests, tokens
        self.at_sample, self._sampled = at_sample, sampled
        self._is_ahead, self._ahead_requests, self._ahead_tokens = False, np.zeros(size), np.zeros(size)
        self._sum()

    def apply(self, load: Load, now: float) -> bool:
        """Apply a peer's valid table that arrived at `now`, unless a later table came before it. False for a table with
        an impossible send time, which is ignored."""
        extra_age = self._delays.observe(load.sender, load.run, load.sent, now)
        if extra_age is None:
            return False
        seen = now - extra_age
        known = self._peers.get(load.sender)
        if known is not None and known.outdates(load, seen):
            return True
        peer = None if load.leaving else _Peer(load, self._layout, self._placement, seen)
        before = known.weight if known is not None else 0
        if peer is not None and self._weight - before + peer.weight > self._max_rows:
            peer = None
        self._forget(load.sender, stays=peer is not None)
        if peer is not None:
            self._peers[load.sender] = peer
            self._weight += peer.weight
            # rows are unique in a table, so indexed addition counts each
            self.requests[peer.rows] += peer.requests
            self.tokens[peer.rows] += peer.tokens
            self._sum()
            if known is None:
                self._change_sample(peer.rows, peer.requests)
        return True

    def expire(self, now: float) -> list[str]:
        """Drop the peers that have been silent too long; their names."""
        gone = [name for name, peer in self._peers.items() if now - peer.seen > EXPIRY]
        if gone:
            self.at_sample = self.at_sample.copy()
            for name in gone:
                rows, requests = self._subtract(self._peers.pop(name))
                self.at_sample[rows] -= requests
            self._sum()
        self._delays.prune(now - FORGOTTEN)
        return gone

    def columns(self) -> tuple[bytes, bytes, bytes]:
        """Our own part as a `Load` message has it: (ids, requests, tokens)."""
        return (
            pack_hashes([endpoint_hash(id) for id in self._own]),
            pack_counts([own[0] for own in self._own.values()]),
            pack_counts([own[1] for own in self._own.values()]),
        )

    def own(self) -> dict[str, tuple[int, int]]:
        """Our own part: `{endpoint id: (requests, tokens)}`, without zeros."""
        return {name: (own[0], own[1]) for name, own in self._own.items()}

    def check(self) -> bool:
        """Whether the sums are those of our own part and of all peers'. If not, they are computed again."""
        requests, tokens = np.zeros(len(self._layout)), np.zeros(len(self._layout))
        for name, own in self._own.items():
            row = self._layout.index.get(name)
            if row is not None:
                requests[row] += own[0]
                tokens[row] += own[1]
        for peer in self._peers.values():
            rows = peer.rows if peer.placement is self._placement else peer.placement.now[peer.rows]
            counted = rows >= 0
            requests[rows[counted]] += peer.requests[counted]
            tokens[rows[counted]] += peer.tokens[counted]
        if np.array_equal(requests, self.requests) and np.array_equal(tokens, self.tokens):
            return True
        self.requests, self.tokens = requests, tokens
        self._sum()
        return False

    def peers(self) -> Iterable[str]:
        """The other pickers whose load is counted."""
        return self._peers.keys()

    def peer_tables(self, now: float) -> list[PeerTable]:
        """What is known of each peer, sorted."""
        return [
            PeerTable(
                id,
                max(0.0, now - peer.seen),
                peer.run,
                peer.sequence,
                peer.digest,
                float(peer.requests.sum()),
                float(peer.tokens.sum()),
            )
            for id, peer in sorted(self._peers.items())
        ]

    def table(self, peer: str | None) -> Iterator[tuple[str, tuple[int, int]]]:
        """A peer's part at the endpoints of the layout, or (None) our own part: (endpoint id, (requests, tokens)),
        sorted, without zeros. A peer's stays as it is now."""
        if peer is None:
            for name in sorted(self._own):
                if (own := self._own.get(name)) is not None:
                    yield name, (own[0], own[1])
        elif (known := self._peers.get(peer)) is not None:
            rows = known.rows if known.placement is self._placement else known.placement.now[known.rows]
            order, endpoints = np.argsort(rows), self._layout.endpoints  # which have the order of their ids
            columns = (column[order].tolist() for column in (rows, known.requests, known.tokens))
            for row, requests, tokens in zip(*columns, strict=True):
                if row >= 0 and (requests or tokens):
                    yield endpoints[row].id, (int(requests), int(tokens))

    def _forget(self, sender: str, stays: bool = False) -> None:
        """A peer's table doesn't count any more; a peer that stays is going to replace it."""
        peer = self._peers.pop(sender, None)
        if peer is not None:
            rows, requests = self._subtract(peer)
            self._sum()
            if not stays:
                self._change_sample(rows, -requests)

    def _subtract(self, peer: _Peer) -> tuple[Rows, Floats]:
        """Take a peer's part out of the sums; `_sum` is to follow. (The rows of its table, requests there)."""
        self._weight -= peer.weight
        rows, requests, tokens = peer.rows, peer.requests, peer.tokens
        if peer.placement is not self._placement:
            rows = peer.placement.now[rows]
            counted = rows >= 0
            rows, requests, tokens = rows[counted], requests[counted], tokens[counted]
        self.requests[rows] -= requests
        self.tokens[rows] -= tokens
        return rows, requests

    def _change_sample(self, rows: Rows, requests: Floats) -> None:
        """A peer has come or gone, with its requests."""
        self.at_sample = self.at_sample.copy()
        self.at_sample[rows] += requests

    def _sum(self) -> None:
        self._past = None
        self.count, self.token_count = float(self.requests.sum()), float(self.tokens.sum())

    def __repr__(self) -> str:
        requests = sum(own[0] for own in self._own.values())
        return f"<InFlight {requests} own requests, {len(self._peers)} peers>"
