"""What a member of any tier reports about itself when it is queried over the bus (`StatusQuery`).

Ages and other durations are seconds; null stands for never. Digests are hexadecimal: JavaScript has no 64-bit integers.
Readers ignore members that they don't know, and take the default of those that an older version doesn't have.
"""

from collections.abc import Mapping
from math import isfinite

from msgspec import Struct

from shared.bus.connection import Bus
from shared.bus.replica import Replica
from shared.service.configured import Configured


class BusStatus(Struct, frozen=True, kw_only=True):
    """The connection to NATS."""

    connections: int = 0
    """How often it was opened since the start."""
    connected_for: float | None = None
    dropped: int = 0
    """Messages that weren't sent because there was no connection."""
    malformed: int = 0
    implausible: int = 0
    slow_consumer: int = 0
    """How often messages were lost because they came faster than they were handled."""
    handler_errors: int = 0

    @classmethod
    def of(cls, bus: Bus, now: float) -> "BusStatus":
        return cls(
            connections=bus.connections,
            connected_for=seconds(now - bus.since) if bus.connected else None,
            dropped=bus.dropped,
            malformed=bus.malformed.total,
            implausible=bus.malformed.implausible.total,
            slow_consumer=bus.slow_consumers,
            handler_errors=bus.handler_errors,
        )


class FactsStatus(Struct, frozen=True, kw_only=True):
    """The member's copy of the facts of its pool."""

    synced: bool = False
    """Whether it has ever been complete."""
    age: float | None = None
    """Seconds since the leading watcher last confirmed that the copy is complete."""
    source_age: float | None = None
    """Seconds since the source of the facts, such as Kubernetes, last confirmed them."""
    epoch: int = 0
    sequence: int = 0
    count: int = 0
    digest: str = ""
    announced_sequence: int = 0
    announced_count: int = 0
    announced_digest: str = ""
    """What a complete copy has, as the leading watcher last announced it."""
    differs_for: float = 0.0
    """Seconds for which the copy has differed from that; 0 while it agrees."""
    resets: int = 0
    gaps: int = 0

    @classmethod
    def of(cls, replica: Replica) -> "FactsStatus":
        view, announced = replica.extent()
        return cls(
            synced=replica.synced,
            age=seconds(replica.age()),
            source_age=seconds(replica.source_age()),
            epoch=replica.epoch,
            sequence=view.sequence,
            count=view.count,
            digest=hexadecimal(view.digest),
            announced_sequence=announced.sequence if announced is not None else 0,
            announced_count=announced.count if announced is not None else 0,
            announced_digest=hexadecimal(announced.digest) if announced is not None else "",
            differs_for=seconds(replica.differs_for()) or 0.0,
            resets=replica.counters.resets,
            gaps=replica.counters.gaps,
        )


class PeerLoad(Struct, frozen=True, kw_only=True):
    """Another picker's load in flight, as this one knows it."""

    id: str
    age: float | None = None
    run: str = ""
    sequence: int = 0
    digest: str = ""
    """Of the last table: the same as the peer's own at that sequence."""
    requests: int = 0
    tokens: int = 0


class LoadStatus(Struct, frozen=True, kw_only=True):
    """A picker's load in flight."""

    run: str = ""
    sequence: int = 0
    digest: str = ""
    """Of the last table that was published."""
    requests: int = 0
    tokens: int = 0
    peers: tuple[PeerLoad, ...] = ()


class PrefixOriginStatus(Struct, frozen=True, kw_only=True):
    """What a picker has applied of another picker's prefix placements."""

    id: str
    run: str = ""
    age: float | None = None
    """Since its last message."""
    applied: int = 0
    """The number of the last batch that is applied."""
    latest: int = 0
    """The number of its last known batch."""
    digest: str = ""
    """Of all batches up to the one that is applied; the same as the origin's own at that number."""
    differs_for: float = 0.0


class PrefixStatus(Struct, frozen=True, kw_only=True):
    """A picker's prefix placements."""

    hashing: str = ""
    """What the hashes depend on; empty if placements aren't shared. Only pickers with equal texts share placements."""
    complete: bool = True
    """Whether it has what was placed before it started."""
    run: str = ""
    sequence: int = 0
    digest: str = ""
    """Of its own batches."""
    blocks: int = 0
    """Of all endpoints."""
    origins: tuple[PrefixOriginStatus, ...] = ()


class Repairs(Struct, frozen=True, kw_only=True):
    """A part of the view that is compared with what its owners announce."""

    differs_for: float = 0.0
    """How long it has differed; 0 while it agrees."""
    found: int = 0
    """Differences that lasted."""
    repaired: int = 0
    """Those that a reset has healed."""


class BandStatus(Struct, frozen=True, kw_only=True):
    """What waits at a picker in one priority band."""

    priority: int
    requests: int = 0
    bytes: int = 0
    tokens: int = 0
    running: int = 0
    flows: int = 0
    requests_at_peers: int = 0


class PickerStatus(Struct, frozen=True, kw_only=True):
    """What only pickers have."""

    endpoints: int = 0
    unhealthy: Mapping[str, str] = {}
    """Endpoints that seem to be down, at most some, with the reason."""
    unhealthy_count: int = 0
    stale: tuple[str, ...] = ()
    """Endpoints whose metrics are stale or never came, at most some."""
    stale_count: int = 0
    metrics_age: float | None = None
    """Of the endpoint whose metrics are the oldest."""
    frames: int = 0
    frames_age: float | None = None
    open_requests: int = 0
    decisions: int = 0
    saturation: float | None = None
    """Of the pool, under flow control."""
    bands: tuple[BandStatus, ...] = ()
    load: LoadStatus = LoadStatus()
    prefixes: PrefixStatus = PrefixStatus()


class CollectorStatus(Struct, frozen=True, kw_only=True):
    """What only collectors have."""

    endpoints: int = 0
    """Of the pool."""
    assigned: int = 0
    """Of them, this collector's."""
    down: tuple[str, ...] = ()
    """Endpoints with a source that fails, at most some."""
    down_count: int = 0
    page_age: float | None = None
    """Of the source whose last page is the oldest, of those that are up."""
    frames: int = 0
    frames_dropped: int = 0
    frames_unacknowledged: int = 0


class WatcherStatus(Struct, frozen=True, kw_only=True):
    """What only watchers have."""

    leads: bool = False
    owner: str = ""
    """Its name as a holder of the lease."""
    acquisitions: int = 0
    fitness: tuple[int, ...] = ()
    epoch: int = 0
    published: bool = False
    source_age: float | None = None
    invalid: int = 0
    """Files or resources with an error, whose last good content is active."""
    unpublishable: int = 0
    unresolved_names: int = 0
    disagreement: str = ""


class MemberStatus(Struct, frozen=True, kw_only=True):
    """A member."""

    id: str
    tier: str
    version: str
    schema: int = 1
    """The version of this document."""
    pools: tuple[str, ...] = ()
    """`namespace/name`, the first one that of its settings."""
    host: str = ""
    pid: int = 0
    uptime: float = 0.0
    at: float = 0.0
    """Unix seconds of its wall clock."""
    phase: str = ""
    """`starting`, `serving` or `stopping`."""
    ready: bool = False
    reasons: Mapping[str, str] = {}
    """Why it should get no work, by name."""
    notes: Mapping[str, str] = {}
    """Problems that don't affect readiness, by name."""
    configurations: tuple[Configured, ...] = ()
    configuration_problem: str = ""
    """Why the last configuration was refused; empty if it was taken."""
    configuration_warnings: tuple[str, ...] = ()
    longest_pause: float = 0.0
    """Of its event loop."""
    bus: BusStatus = BusStatus()
    facts: FactsStatus | None = None
    sees: Mapping[str, tuple[str, ...]] = {}
    """The other members that it knows of, by tier, sorted."""
    convergence: Mapping[str, Repairs] = {}
    """Parts of what it knows, by name: `facts`, `load`, `prefixes`."""
    watcher: WatcherStatus | None = None
    collector: CollectorStatus | None = None
    picker: PickerStatus | None = None


def seconds(value: float) -> float | None:
    """Seconds for a document; None for what isn't finite."""
    return round(value, 3) if isfinite(value) else None


def hexadecimal(digest: int) -> str:
    """64 bits as text."""
    return f"{digest:016x}"
