"""What is known of the running system at one moment: rows for model servers, pickers and collectors.

Read from what the processes say of themselves; None is what nobody knows.
"""

from typing import Any

from msgspec import Struct

from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE

_RETRIES = {"servers": "cluster.model-servers.upstream_rq_retry", "pickers": "cluster.pickers.upstream_rq_retry"}
ENVOY_STATS = "|".join(f"^{name}$".replace(".", r"\.") for name in _RETRIES.values())
"""The `filter` of Envoy's `/stats` for what `retries` reads."""


class EndpointRow(Struct, frozen=True, kw_only=True):
    """A model server, as the pickers see it. None: nobody knows."""

    name: str
    engine: str
    condition: str
    queue: int | None = None
    running: int | None = None
    kv: float | None = None
    """Share of its KV cache, 0 to 1."""
    age: float | None = None
    """Seconds since the oldest of these three was measured."""
    in_flight: int = 0
    """Requests that all pickers together have there."""
    picks: int = 0
    """How often it was the first choice."""


class PickerRow(Struct, frozen=True, kw_only=True):
    """A picker."""

    name: str
    condition: str
    rate: float = 0.0
    """Decisions a second, lately."""
    p50: float | None = None
    p99: float | None = None
    """Seconds for a decision, lately."""
    in_flight: int = 0
    """Requests under way that it has routed."""
    peers: int = 0
    decisions: int = 0
    fallbacks: int = 0
    """Of its requests, those that another server than its first choice took."""


class CollectorRow(Struct, frozen=True, kw_only=True):
    """A collector."""

    name: str
    condition: str
    endpoints: tuple[str, ...] = ()
    """Whom it scrapes."""
    frames: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything at one moment."""

    at: float
    endpoints: tuple[EndpointRow, ...] = ()
    pickers: tuple[PickerRow, ...] = ()
    collectors: tuple[CollectorRow, ...] = ()
    server_retries: int = 0
    """Requests that Envoy has sent to another server."""
    picker_retries: int = 0
    """Streams that Envoy has begun again at another picker."""


def endpoint_row(name: str, engine: str, condition: str, endpoint: Any, picks: int) -> EndpointRow:
    """A model server's row from its entry in a picker's `/debug/state`; None when no picker knows it."""
    if endpoint is None:
        return EndpointRow(name=name, engine=engine, condition=condition, picks=picks)
    keys = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
    queue, running, kv = (endpoint["attributes"].get(key.wire) for key in keys)
    ages = [one["age"] for one in (queue, running, kv) if one is not None]
    return EndpointRow(
        name=name,
        engine=engine,
        condition=condition,
        queue=None if queue is None else int(queue["value"]),
        running=None if running is None else int(running["value"]),
        kv=None if kv is None else float(kv["value"]),
        age=max(ages, default=None),
        in_flight=endpoint["inflight"]["requests"],
        picks=picks,
    )


def assigned(state: Any) -> tuple[str, ...]:
    """Names of the endpoints that a collector scrapes, from its `/debug/state`; none when it didn't answer."""
    return tuple(id.rpartition("/")[2] for id in state["endpoints"]["assigned"]) if state else ()


def retries(text: str) -> dict[str, int]:
    """Envoy's retries towards model servers and pickers, from its `/stats`: lines of `name: value`."""
    found = dict(line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
    return {key: int(found.get(name, 0)) for key, name in _RETRIES.items()}
