"""The messages of the bus: msgspec structs in MessagePack, versioned by their tags.

A reader ignores unknown fields and counts unknown tags, so a newer sender may add fields under the same tag. Numbers
per endpoint travel as packed little-endian columns (`shared.bus.columns`): a tenth of the time and half the size of a
map per endpoint.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Struct

from shared.attributes import MAX_WIRE_NAME
from shared.bus.action_messages import ActionResult, Drain
from shared.bus.columns import unpack_counts
from shared.bus.query_messages import AnswerPiece, Query
from shared.bus.subjects import MAX_ID, id_fault

MAX_FRAME_ENDPOINTS = 1000
"""Endpoints in one frame; a sender with more of them sends several parts."""
MAX_FRAME_ATTRIBUTES = 1024
"""Attributes that one frame names. A configuration has 256 plugins, most of which make none."""
MAX_FRAME_VALUES = 20_000
"""Names in the lists of one frame, as `shared.attributes.extent` counts them, and bytes of its other values that aren't
numbers: how long a frame takes to read follows from them. One value is half of it at most
(`shared.attributes.MAX_NAMES`), or 16 KiB."""
MAX_FRAME_PLACES = 100_000
"""Positions in a frame of endpoints that are known not to have an attribute, and places of values that aren't numbers,
also empty ones: each a hundred attributes of all endpoints."""
MAX_FLOWS = 2_000
"""Rows of a queue table."""
MAX_BANDS = 100
"""In a queue table."""
QUEUE_COUNTS = ("requests", "tokens", "ages", "running", "dispatched", "served")
"""Columns of a queue table that are counts."""
MAX_FITNESS = 16
"""Numbers that say how well a candidate is placed."""
MAX_BLOCKS = 2048
"""Blocks in one message of prefix placements, and its rows: a millisecond or two to apply, 32 KiB in a dump."""
MAX_HASHING = 256
"""Characters of what a picker's hashes of blocks depend on."""
MAX_ORIGINS = 64
"""Pickers whose announcements a dump distinguishes."""
MAX_BATCHES = 1024
"""Batches that one answer repeats."""


class FactEnvelope(Struct, frozen=True, kw_only=True, tag="fact/1"):
    """One fact of the endpoints bucket. `(epoch, sequence)` orders all that was ever written about its key."""

    epoch: int
    """Term of the owner that wrote it; the next owner's is higher."""
    sequence: int
    """Counts the owner's changes within its epoch."""
    fact: msgspec.Raw
    """MessagePack of a member of `shared.model.Fact`."""


class Synced(Struct, frozen=True, kw_only=True, tag="synced/1"):
    """Closes each burst of facts of a pool, and is repeated: what a complete copy of the pool looks like."""

    epoch: int
    sequence: int
    """The last change that the owner made before it wrote this."""
    count: int
    """Facts of the pool."""
    digest: int
    """Sum over the pool's facts of xxh3_64(key, fact without epoch and sequence), modulo 2^64."""
    age: float = 0.0
    """Seconds since that which the facts come from last confirmed them; 0 while it does."""
    pool: str = ""
    """The pool's token: copied to another pool's key, this is refused. Empty from owners of an earlier version."""

    def fault(self) -> str | None:
        """Why it is implausible, or None."""
        return None if isfinite(self.age) and self.age >= 0 else f"its facts were confirmed {self.age} s ago"


class Epoch(Struct, frozen=True, kw_only=True, tag="epoch/1"):
    """Who owns the endpoints bucket. Every write of the owner is fenced by the revision of this key."""

    epoch: int
    """max(unix milliseconds, highest epoch seen + 1) when the owner took over."""
    owner: str


class Frame(Struct, frozen=True, kw_only=True, tag="frame/1"):
    """Attributes of up to 1 000 endpoints, as their collector sees them now."""

    sender: str
    """The collector's id."""
    sent: float
    """Seconds of the sender's monotonic clock."""
    sequence: int
    """Counts the frames of this sender since it started, over all its parts."""
    run: int = 0
    """Drawn when the sender started: what it sends has one clock and one order only within a run."""
    ids: tuple[str, ...]
    """Endpoint ids: row i of every column is about ids[i]."""
    columns: dict[str, bytes] = {}
    """Wire attribute name -> packed float64, one per id; NaN where the endpoint doesn't have the attribute."""
    ages: dict[str, bytes] = {}
    """Wire name -> packed float32 seconds, one per id: how old the value was when sent. Keys as columns + objects."""
    objects: dict[str, list[Any]] = {}
    """Wire name -> one value or None per id, for attributes that are no numbers (names of LoRA adapters)."""
    absent: dict[str, list[int]] = {}
    """Wire name -> positions in `ids` of endpoints known not to have it. Other endpoints without a value are
    unknown."""

    def fault(self) -> str | None:
        """Why it is inconsistent, or None. `decode` has seen that no list is too long."""
        if problem := _sender_fault(self.sender, self.sent):
            return problem
        rows = len(self.ids)
        names = len(self.columns) + len(self.objects) + len(self.absent)
        if names > MAX_FRAME_ATTRIBUTES:
            return f"{names} attributes in a frame, at most {MAX_FRAME_ATTRIBUTES} are allowed"
        for named in (self.columns, self.objects, self.absent):
            if (length := max(map(len, named), default=0)) > MAX_WIRE_NAME:
                return f"an attribute's name of {length} characters, at most {MAX_WIRE_NAME} are allowed"
        for name, column in self.columns.items():
            if len(column) != 8 * rows:
                return f"column {name!r} has {len(column)} bytes, {8 * rows} are needed for {rows} endpoints"
        for name, values in self.objects.items():
            if len(values) != rows:
                return f"objects {name!r} has {len(values)} values for {rows} endpoints"
        for name, ages in self.ages.items():
            if len(ages) != 4 * rows:
                return f"ages {name!r} has {len(ages)} bytes, {4 * rows} are needed for {rows} endpoints"
        if self.ages.keys() != self.columns.keys() | self.objects.keys():
            odd = sorted(self.ages.keys() ^ (self.columns.keys() | self.objects.keys()))
            return f"ages and attributes don't match: {', '.join(map(repr, odd))} is in only one of them"
        for name, positions in self.absent.items():
            wrong = [position for position in positions if not 0 <= position < rows]
            if wrong or len(positions) > rows:
                return f"absent {name!r} has position {wrong[0] if wrong else rows}, there are {rows} endpoints"
        return None


def _counts_fault(ids: str, hashes: bytes, columns: Mapping[str, bytes]) -> str | None:
    """What doesn't fit together of a column of 64 bits a row, and others of 32; None if it does."""
    rows, rest = divmod(len(hashes), 8)
    if rest:
        return f"{ids} has {len(hashes)} bytes, which is no multiple of 8"
    for name, column in columns.items():
        if len(column) != 4 * rows:
            return f"{name} has {len(column)} bytes, {4 * rows} are needed for {rows} {ids}"
    return None


def _sender_fault(sender: str, sent: float) -> str | None:
    if not isfinite(sent):
        return f"it was sent at {sent}"
    return id_fault(sender)


class QueueTable(Struct, frozen=True, kw_only=True):
    """What waits and runs at one picker under flow control: a row for each flow of a band.

    A band with more flows than fit has one more row, of flow 0, for the sum of the rest. The counters `dispatched` and
    `served` only grow, modulo 2^32, so a lost table loses nothing; one that is smaller than before belongs to a flow
    that its sender had forgotten, and counts from 0. Empty columns say that nothing waits or runs.
    """

    priorities: bytes = b""
    """Packed int32."""
    flows: bytes = b""
    """Packed uint64: a hash of each flow's id, or 0."""
    requests: bytes = b""
    """Packed uint32, as all that follow: requests that wait."""
    tokens: bytes = b""
    """Of the requests that wait."""
    ages: bytes = b""
    """Milliseconds that the flow's first request has waited."""
    running: bytes = b""
    """Requests that were dispatched and aren't finished."""
    dispatched: bytes = b""
    """Requests dispatched so far."""
    served: bytes = b""
    """Tokens of finished requests so far, completion tokens counted twice."""

    def fault(self) -> str | None:
        """Why it is inconsistent, or None."""
        if (rows := len(self.flows) // 8) > MAX_FLOWS:
            return f"{rows} flows in a queue table, at most {MAX_FLOWS} are allowed"
        counts = {name: getattr(self, name) for name in ("priorities", *QUEUE_COUNTS)}
        if problem := _counts_fault("flows", self.flows, counts):
            return problem
        bands = len(set(memoryview(self.priorities).cast("I")))
        return f"{bands} bands in a queue table, at most {MAX_BANDS} are allowed" if bands > MAX_BANDS else None


class Load(Struct, frozen=True, kw_only=True, tag="load/1"):
    """The whole in-flight table of one picker, and its heartbeat. An empty table is a table without load."""

    sender: str
    sent: float
    """Seconds of the sender's monotonic clock."""
    sequence: int
    run: int = 0
    """As a frame's."""
    ids: bytes
    """Packed uint64: `shared.bus.columns.endpoint_hash` of each endpoint's id."""
    requests: bytes
    """Packed uint32: requests in flight."""
    tokens: bytes
    """Packed uint32: their tokens."""
    queue: QueueTable | None = None
    """What waits there; None without flow control."""
    leaving: bool = False
    """The picker stops: its row is withdrawn at once."""

    def fault(self) -> str | None:
        """Why it is inconsistent, or None."""
        if problem := _sender_fault(self.sender, self.sent):
            return problem
        if problem := _counts_fault("ids", self.ids, {"requests": self.requests, "tokens": self.tokens}):
            return problem
        return None if self.queue is None else self.queue.fault()


def _blocks_fault(servers: bytes, counts: bytes, blocks: bytes) -> str | None:
    """What doesn't fit together of the blocks of some servers, or None."""
    if problem := _counts_fault("servers", servers, {"counts": counts}):
        return problem
    for name, column in (("servers", servers), ("blocks", blocks)):
        if len(column) > 8 * MAX_BLOCKS or len(column) % 8:
            return f"{name} has {len(column)} bytes; a multiple of 8 up to {8 * MAX_BLOCKS} is needed"
    numbers = unpack_counts(counts)
    if (total := int(numbers.sum(dtype="u8"))) != len(blocks) // 8:
        return f"counts of {total} blocks, and {len(blocks) // 8} blocks"
    return None if numbers.all() else "a row without blocks"


Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class PrefixBatch(Struct, frozen=True, kw_only=True, tag="prefix/1"):
    """What one picker has placed since its last batch, and taken back; one without blocks is a heartbeat, and has the
    last one's number. A row for each request, or less.

    The rows of a picker's batches, in their order, determine which blocks it stands behind.
    """

    sender: str
    run: Number
    """As a frame's."""
    sequence: Number
    """Counts the sender's batches that have blocks, from 1."""
    hashing: Annotated[str, Meta(max_length=MAX_HASHING)]
    """What the hashes depend on: pickers share placements if it is the same text."""
    complete: bool = True
    """Whether the sender has what other pickers had placed before it started."""
    digest: Number | None = None
    """Sum of `shared.bus.codec.batch_digest` of the run's batches up to this number, modulo 2^63; None: not known."""
    servers: bytes = b""
    """Packed uint64: `shared.bus.columns.server_hash` of each row's endpoint."""
    withdrawn: bytes = b""
    """A byte a row: 1 where the server doesn't hold the blocks after all."""
    counts: bytes = b""
    """Packed uint32: blocks of each row."""
    blocks: bytes = b""
    """Packed uint64: the blocks of all rows, one row after the other, each the least recently used first."""

    def fault(self) -> str | None:
        """Why it is inconsistent, or None."""
        if problem := id_fault(self.sender):
            return problem
        if 8 * len(self.withdrawn) != len(self.servers):
            return f"withdrawn has {len(self.withdrawn)} bytes for {len(self.servers) // 8} servers"
        return _blocks_fault(self.servers, self.counts, self.blocks)


class PrefixRequest(Struct, frozen=True, kw_only=True, tag="prefix-request/1"):
    """Asks a picker for placements that the sender has missed. The answer is a `PrefixPiece`, and if that isn't the
    last one, the next request names its session. To all pickers: who is there? The answer is a `PrefixBatch`."""

    sender: str
    session: Number = 0
    """The session to go on with; 0 begins."""
    run: Number = 0
    """The batches of this run are missing, 0 meaning all that anybody has ever placed …"""
    after: Number = 0
    """… from the one after this number."""

    def fault(self) -> str | None:
        """Why it is implausible, or None."""
        return id_fault(self.sender)


class PrefixOrigin(Struct, frozen=True, kw_only=True):
    """A picker's run, and how far its batches are in a dump."""

    id: Annotated[str, Meta(max_length=MAX_ID)]
    run: Number
    sequence: Number
    digest: Number | None = None
    """As a batch's, up to that number."""


class PrefixPiece(Struct, frozen=True, kw_only=True, tag="prefix-piece/1"):
    """Either repeated batches, or a piece of a dump: what servers hold, according to which picker."""

    run: Number
    """The sender's."""
    sequence: Number
    """Of the sender's last batch."""
    more: bool = False
    """There is another piece."""
    busy: bool = False
    """The sender can't begin another dump at this moment; ask again."""
    session: Number = 0
    batches: Annotated[list[bytes], Meta(max_length=MAX_BATCHES)] = []
    """Encoded `PrefixBatch`es of the run."""
    origins: Annotated[list[PrefixOrigin], Meta(max_length=MAX_ORIGINS)] = []
    """Bit i of a mark is origins[i]. The numbers are those from before the first piece: what came later is only partly
    in the dump, and to be applied again. Empty if the piece is no dump."""
    servers: bytes = b""
    """As a batch's."""
    counts: bytes = b""
    blocks: bytes = b""
    marks: bytes = b""
    """Packed uint64: on whose word each block stands."""

    def fault(self) -> str | None:
        """Why it is inconsistent, or None."""
        if len(self.marks) != len(self.blocks):
            return f"marks has {len(self.marks)} bytes for {len(self.blocks) // 8} blocks"
        return _blocks_fault(self.servers, self.counts, self.blocks)


class Member(Struct, frozen=True, kw_only=True, tag="member/1"):
    """A heartbeat of a collector or a watcher."""

    id: str
    tier: str
    sent: float
    """Seconds of the sender's monotonic clock."""
    leaving: bool = False
    """A clean stop: others take over without waiting for the expiry."""

    def fault(self) -> str | None:
        """Why it is implausible, or None."""
        return id_fault(self.id)


class Candidate(Struct, frozen=True, kw_only=True, tag="candidate/1"):
    """A candidate for a lease, and its fitness."""

    owner: str
    fitness: tuple[int, ...]
    """Compared as tuples are; the greatest is to lead."""
    leaving: bool = False
    """A clean stop."""

    def fault(self) -> str | None:
        """Why it is implausible, or None."""
        if problem := id_fault(self.owner):
            return problem
        return None if len(self.fitness) <= MAX_FITNESS else f"a fitness of {len(self.fitness)} numbers"


class Holder(Struct, frozen=True, kw_only=True, tag="lease/1"):
    """Who holds a lease."""

    owner: str


Message: TypeAlias = (
    FactEnvelope
    | Synced
    | Epoch
    | Frame
    | Load
    | PrefixBatch
    | PrefixRequest
    | PrefixPiece
    | Member
    | Candidate
    | Holder
    | Query
    | AnswerPiece
    | Drain
    | ActionResult
)
