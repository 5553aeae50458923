"""What the API answers and reads, for `/openapi.json`. Null is an unknown value, never zero; ages and durations are
seconds."""

from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, json
from pydantic import BaseModel

from shared.bus.query_messages import MAX_HEADERS, Text
from shared.bus.subjects import id_fault
from shared.service.settings import MAX_TEXT


class About(BaseModel):
    """The pool, and how good the console's copy of it is."""

    name: str
    namespace: str
    synced: bool
    problem: str
    """Why the console doesn't know the pool; empty if it does."""
    stale_after: float
    """The age from which on the running configuration takes metrics for stale."""
    version: str
    actions: bool
    """Whether endpoints can be drained here."""


class Endpoint(BaseModel):
    """A model server. The numbers are those that pickers read."""

    id: str
    name: str
    address: str
    labels: dict[str, str]
    role: str
    engine: str
    draining: bool
    adapters: list[str]
    models: list[str]
    collector: str
    reachable: bool | None
    queue: int | None
    running: int | None
    kv_cache: float | None
    in_flight: int
    in_flight_tokens: int
    age: float | None


class Member(BaseModel):
    """A live process of a tier. What it says of itself is null until it has answered."""

    tier: str
    id: str
    age: float
    """Since its last heartbeat."""
    leads: bool
    work: str
    ready: bool | None
    version: str
    uptime: float | None
    facts_age: float | None
    digest: str
    """Of its copy of the facts."""
    agrees: bool | None
    """Whether that is the digest that the leading watcher announces."""
    differs_for: float
    longest_pause: float | None
    problems: list[str]


class PoolPage(BaseModel):
    about: About
    endpoints: list[Endpoint]
    members: list[Member]
    problems: list[str]
    """What is wrong with the members together."""


class AttributeInFull(BaseModel):
    value: float | list[str]
    age: float


class EndpointPage(BaseModel):
    """Every attribute of an endpoint that is on the bus, by its wire name."""

    id: str
    attributes: dict[str, AttributeInFull]


class Series(BaseModel):
    """Samples at equal intervals, the oldest first, the last one of now."""

    queue: list[float | None]
    running: list[float | None]
    kv_cache: list[float | None]
    in_flight: list[float | None]


class HistoryPage(BaseModel):
    interval: float
    endpoints: dict[str, Series]


class Flow(BaseModel):
    """One flow of a band, at all pickers. `flow` is a hash of its id; empty for the sum of those that aren't listed
    apart."""

    flow: str
    name: str
    """Its id, if a recent decision has it."""
    priority: int
    requests: int
    tokens: int
    longest_wait: float
    running: int


class Band(BaseModel):
    priority: int
    requests: int
    tokens: int
    longest_wait: float
    running: int
    rate: float
    """Requests that leave the queue, a second."""
    flows: int


class FlowPage(BaseModel):
    """`more_flows` is how many there are beyond those that are listed."""

    pickers: dict[str, int]
    """Requests that wait at each picker with flow control."""
    bands: list[Band]
    flows: list[Flow]
    more_flows: int


class MemberConfiguration(BaseModel):
    tier: str
    id: str
    revision: str
    origin: str
    warnings: list[str]


class Rejected(BaseModel):
    tier: str
    id: str
    reason: str


class CheckPage(BaseModel):
    """A document as the tiers would load it. `errors` is empty if they would."""

    revision: str
    plugins: int
    errors: list[str]
    warnings: list[str]


class FormerConfiguration(BaseModel):
    """The document before the last change that this console has seen."""

    revision: str
    until: str
    """When another one was read."""
    text: str


class ConfigurationPage(CheckPage):
    about: About
    text: str
    origin: str
    before: FormerConfiguration | None
    members: list[MemberConfiguration]
    rejected: list[Rejected]


class ReplayMove(BaseModel):
    """Decisions that would have gone from one endpoint to another. Empty: the filters left none."""

    chosen: str
    instead: str
    decisions: int
    examples: list[str]
    """Some request ids."""


class ReplayGap(BaseModel):
    """An input that plugins read and that decisions don't keep: its `current` value was used, or `nothing`."""

    input: str
    used: str
    decisions: int


class ReplayFidelity(BaseModel):
    """The same replay with the running document: what differs then is the fault of missing inputs."""

    replayed: int
    elsewhere: int


class ReplayPage(BaseModel):
    """Where the last decisions of all pickers would have gone."""

    revision: str
    errors: list[str]
    """Why pickers can't load the document."""
    warnings: list[str]
    decisions: int
    skipped: dict[str, int]
    """How many can't be replayed, by the reason."""
    replayed: int
    elsewhere: int
    by_chance: int
    """Those for which another endpoint was drawn, of several that are equally good."""
    moves: list[ReplayMove]
    more_moves: int
    """Pairs beyond those that are listed."""
    gaps: list[ReplayGap]
    failures: dict[str, int]
    """Plugins that failed, and on how many decisions."""
    fidelity: ReplayFidelity
    pickers: list[str]
    missing: list[str]
    """Pickers that gave no answer, with the reason."""


class Document(Struct):
    """An EndpointPickerConfig."""

    text: str


class DrainRequest(Struct):
    """Which endpoint is to drain, or to take requests again."""

    endpoint: Text
    """Its id."""
    drain: bool = True


_Headers = Annotated[list[tuple[Text, str]], Meta(max_length=MAX_HEADERS)]
MAX_HEADER_BYTES = 256 * 1024
"""Of the JSON of their list; Envoy takes 60 KiB of headers."""


class ExplainRequest(Struct):
    """A request that isn't sent to a model server."""

    picker: Text = ""
    """Who is asked; empty: any."""
    path: Text = "/v1/chat/completions"
    headers: _Headers = []
    body: Annotated[str, Meta(max_length=MAX_TEXT)] = ""


class SentExplainRequest(Struct):
    """The same as it is sent, with the headers undecoded: a list of millions takes long."""

    picker: Text = ""
    path: Text = "/v1/chat/completions"
    headers: Raw = Raw(b"[]")
    body: Annotated[str, Meta(max_length=MAX_TEXT)] = ""

    def whole(self) -> ExplainRequest:
        """Raises msgspec.DecodeError."""
        if fault := id_fault(self.picker):
            raise msgspec.ValidationError(f"{fault} - at `$.picker`")
        if (size := len(self.headers)) > MAX_HEADER_BYTES:
            raise msgspec.ValidationError(f"{size} bytes of headers; {MAX_HEADER_BYTES} are allowed - at `$.headers`")
        headers = json.decode(self.headers, type=_Headers)
        return ExplainRequest(self.picker, self.path, headers, self.body)
