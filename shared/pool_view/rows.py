"""What is shown of a pool. None is an unknown value, never zero; ages are seconds."""

from msgspec import Struct


class EndpointRow(Struct, frozen=True, kw_only=True):
    """A model server, as the pickers know it from the bus."""

    id: str
    name: str
    authority: str
    """`address:port`."""
    labels: dict[str, str] = {}
    role: str = ""
    """Its part in disaggregated serving."""
    draining: bool = False
    reachable: bool | None = None
    queue: int | None = None
    """Requests that wait at the server."""
    running: int | None = None
    kv: float | None = None
    """KV cache usage, 0 to 1."""
    age: float | None = None
    """Of the oldest of these three."""
    in_flight: int = 0
    """Requests of all pickers."""
    tokens: int = 0
    """Of the requests in flight."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters that are loaded."""
    models: tuple[str, ...] = ()
    """Models that the server says it serves."""
    collector: str = ""
    """Who scraped it last."""


class MemberRow(Struct, frozen=True, kw_only=True):
    """A live process of a tier."""

    tier: str
    id: str
    age: float
    """Since its last heartbeat."""
    leader: bool = False
    """Of watchers: whether this one publishes."""
    endpoints: int | None = None
    """Of a collector: those that it scraped last."""
    in_flight: int | None = None
    """Of a picker: its requests in flight."""
    waiting: int | None = None
    """Of a picker with flow control: requests that wait there."""


class FlowRow(Struct, frozen=True, kw_only=True):
    """What waits and runs of one flow of a band, at all pickers."""

    flow: str
    """The hash of its id, 16 hexadecimal digits; empty for the sum of those that their picker doesn't distinguish."""
    requests: int
    tokens: int
    """Of the requests that wait."""
    oldest: float
    """How long its first request has waited."""
    running: int


class BandRow(Struct, frozen=True, kw_only=True):
    """The requests of one priority, at all pickers."""

    priority: int
    requests: int
    """Those that wait."""
    tokens: int
    oldest: float
    running: int
    rate: float
    """Dispatched a second, over the last ten."""
    flow_count: int
    flows: tuple[FlowRow, ...]
    """Those with the most waiting requests first, and of many only these."""


class AttributeValue(Struct, frozen=True):
    """One attribute of an endpoint."""

    value: float | tuple[str, ...]
    age: float


class PoolState(Struct, frozen=True, kw_only=True):
    """How good the copy of the pool is."""

    connected: bool
    synced: bool
    """Whether a complete set of facts has been read."""
    facts_age: float | None
    """Since a watcher last said that they are complete."""
    source_age: float | None
    """Since the watcher's source last confirmed them."""
    frames_age: float | None
    """Since the last message of a collector."""
    reason: str = ""
    """Why there is nothing to show."""
