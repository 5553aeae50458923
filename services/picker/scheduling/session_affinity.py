"""`session-affinity-filter` and `session-affinity-scorer`: a session goes to the endpoint that it has.

`encoded_endpoint_header` keeps nothing: clients get the endpoint as a token in a response header, and send it back.
`session_id` keeps the endpoint of each session in this picker; pickers don't share it.
"""

from base64 import b64decode, b64encode
from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.request import Headers
from services.picker.scheduling.checks import HeaderName, check_headers
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, PreRequest, ResponseHeaderProcessor, Scorer
from services.picker.scheduling.record import Exchange
from services.picker.state.layout import Floats, Rows
from shared.attributes import AttributeKey
from shared.plugin import Input, Role

TOKEN_HEADER = "x-session-token"
SESSION_HEADER = "x-session-id"
MAX_TOKEN = 1024
"""Characters; longer ones name no endpoint."""
MAX_SESSIONS = 131_072
"""Clients choose their ids: beyond so many, the least recently used are forgotten."""
MAX_EXPIRED = 100
"""Sessions that a request forgets: all at once take 70 ms."""


class EncodedEndpointHeaderConfig(Struct, frozen=True, rename="camel"):
    """The header of requests and responses with the token."""

    header: HeaderName = TOKEN_HEADER

    def __post_init__(self) -> None:
        check_headers({self.header.lower(): ""})


class SessionSource(Struct, frozen=True, rename="camel"):
    """Where a session's id is: a request header, or an attribute of the request."""

    header: HeaderName | None = None
    attribute: str = ""
    producer: str = ""
    """Of the attribute; empty takes any."""

    def __post_init__(self) -> None:
        if (self.header is None) is not bool(self.attribute):
            raise ValueError("one of header and attribute is required")


class SessionIdConfig(Struct, frozen=True, rename="camel"):
    """Where ids are, the first that is there counts, and how long an unused binding is kept."""

    sources: Annotated[tuple[SessionSource, ...], Meta(min_length=1)] = (SessionSource(header=SESSION_HEADER),)
    eviction_ttl_seconds: Annotated[float, Meta(gt=0)] = 300.0
    eviction_sweep_seconds: Annotated[float, Meta(gt=0)] = 10.0
    """Read so that documents load that set it: bindings end on time."""


class SessionAffinityParameters(Struct, frozen=True, rename="camel"):
    """How sessions are recognized."""

    strategy: Literal["encoded_endpoint_header", "session_id"] = "encoded_endpoint_header"
    profile_name: str = ""
    """The profile whose pick is remembered; empty: the destination."""
    encoded_endpoint_header_config: EncodedEndpointHeaderConfig | None = None
    session_id_config: SessionIdConfig | None = None


class SessionAffinity(PreRequest, ResponseHeaderProcessor):
    """What the filter and the scorer share. An endpoint that seems to be down is no session's endpoint."""

    Parameters = SessionAffinityParameters
    parameters: SessionAffinityParameters

    def __init__(self, name: str, parameters: SessionAffinityParameters | None = None) -> None:
        super().__init__(name, parameters)
        encoded = self.parameters.encoded_endpoint_header_config or EncodedEndpointHeaderConfig()
        self._header = encoded.header.lower()
        self._sources = _sessions(self.parameters)
        self._bindings: Bindings | None = None
        if self.parameters.strategy == "session_id":
            self._bindings = Bindings((self.parameters.session_id_config or SessionIdConfig()).eviction_ttl_seconds)

    @classmethod
    def consumes(cls, parameters: SessionAffinityParameters) -> tuple[Input, ...]:
        return tuple(
            Input(parameter=_path(at), name=source.attribute, producer=source.producer, kind=str)
            for at, source in enumerate(_sessions(parameters))
            if source.attribute
        )

    def bound(self, cycle: Cycle, rows: Rows) -> int | None:
        """The row of the session's endpoint, if it is among these and seems to be up; None for no preference."""
        id = self._endpoint_of(cycle)
        row = None if id is None else cycle.layout.index.get(id)
        if row is None or row in cycle.view.health.unhealthy or not np.any(rows == row):
            return None
        cycle.remember(self, row)
        return row

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str]:
        """Binds a session that has no endpoint, or whose endpoint was no candidate."""
        if self._bindings is None or not (session := self._session(cycle)):
            return {}
        row = cycle.remembered.get(self)
        if row is None:
            name = self.parameters.profile_name
            run = cycle.runs.get(name)
            chosen = picked if not name else () if run is None else run.picked
            if not chosen:
                return {}
            row = chosen[0]
        self._bindings.bind(session, cycle.layout.endpoints[row].id, cycle.now)
        return {}

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        """The token of the endpoint that serves."""
        if self._bindings is not None:
            return {}
        name = self.parameters.profile_name
        id = exchange.endpoint or exchange.picked[0].id
        if name:
            picked = exchange.profiles.get(name)
            id = picked[0].id if picked else ""
        return {self._header: b64encode(id.encode()).decode()} if "/" in id else {}

    def _endpoint_of(self, cycle: Cycle) -> str | None:
        if self._bindings is not None:
            session = self._session(cycle)
            return self._bindings.endpoint(session, cycle.now) if session else None
        token = cycle.request.headers.get(self._header)
        if not token or len(token) > MAX_TOKEN:
            return None
        try:
            return b64decode(token, validate=True).decode()
        except ValueError:  # not ASCII, not base64, not UTF-8
            return None

    def _session(self, cycle: Cycle) -> str:
        for at, source in enumerate(self._sources):
            if source.header is not None:
                session = cycle.request.headers.get(source.header.lower())
            else:
                key: AttributeKey[Any] | None = self.inputs.get(_path(at))
                session = (cycle.get(key) if key is not None else None) or ""
            if session:
                return session
        return ""


class SessionAffinityFilter(SessionAffinity, Filter):
    """The session's endpoint if it is a candidate, else all."""

    TYPE = "session-affinity-filter"
    BOUNDED = True
    PREFERS = True
    ROLES = frozenset({Role.FILTER, Role.PRE_REQUEST, Role.RESPONSE_HEADERS})

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        row = self.bound(cycle, rows)
        kept: Rows = rows if row is None else rows[rows == row]
        return kept


class SessionAffinityScorer(SessionAffinity, Scorer):
    """1 for the session's endpoint, 0 for the others."""

    TYPE = "session-affinity-scorer"
    ROLES = frozenset({Role.SCORER, Role.PRE_REQUEST, Role.RESPONSE_HEADERS})
    BOUNDED = True

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        row = self.bound(cycle, rows)
        return np.zeros(len(rows)) if row is None else (rows == row).astype(np.float64)


class Bindings:
    """The endpoint of each session, those first that were used least recently."""

    def __init__(self, ttl: float, limit: int = MAX_SESSIONS) -> None:
        self._ttl, self._limit = ttl, limit
        self._endpoints: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """By a digest of the session's id: the endpoint's id, and when it was last used."""

    def endpoint(self, session: str, now: float) -> str | None:
        """The id of the session's endpoint; None without one."""
        self._expire(now)
        found = self._endpoints.get(_digest(session))
        return None if found is None or now - found[1] > self._ttl else found[0]

    def bind(self, session: str, endpoint: str, now: float) -> None:
        """The session goes to this endpoint from now on, and is in use."""
        self._expire(now)
        key = _digest(session)
        self._endpoints[key] = endpoint, now
        self._endpoints.move_to_end(key)
        if len(self._endpoints) > self._limit:
            self._endpoints.popitem(last=False)

    def _expire(self, now: float) -> None:
        """Forget some sessions whose time is over."""
        for _ in range(min(MAX_EXPIRED, len(self._endpoints))):
            key, (_, used) = next(iter(self._endpoints.items()))
            if now - used <= self._ttl:
                return
            del self._endpoints[key]

    def __len__(self) -> int:
        return len(self._endpoints)

    def __repr__(self) -> str:
        return f"<Bindings of {len(self)} sessions>"


def _sessions(parameters: SessionAffinityParameters) -> tuple[SessionSource, ...]:
    if parameters.strategy != "session_id":
        return ()
    return (parameters.session_id_config or SessionIdConfig()).sources


def _path(at: int) -> str:
    return f"sessionIdConfig.sources[{at}].attribute"


def _digest(session: str) -> bytes:
    return blake2b(session.encode(errors="replace"), digest_size=16).digest()
