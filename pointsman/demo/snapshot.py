"""The running system at one moment: rows for model servers, pickers and collectors; None is an unknown value."""

from typing import Any

from msgspec import Struct

from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE

_RETRIES = {"servers": "cluster.model-servers.upstream_rq_retry", "pickers": "cluster.pickers.upstream_rq_retry"}
ENVOY_STATS = "|".join(f"^{name}$".replace(".", r"\.") for name in _RETRIES.values())
"""The `filter` of Envoy's `/stats` for `retries`."""


class EndpointRow(Struct, frozen=True, kw_only=True):
    """A model server as the pickers see it."""

    name: str
    engine: str
    condition: str
    queue: int | None = None
    running: int | None = None
    kv: float | None = None
    """KV cache usage, 0 to 1."""
    age: float | None = None
    """Age of the oldest of these three metrics, in seconds."""
    in_flight: int = 0
    """Requests of all pickers."""
    picks: int = 0
    """Decisions with this server as the first choice."""


class PickerRow(Struct, frozen=True, kw_only=True):
    """A picker; the rate and the times, in seconds, of its recent decisions."""

    name: str
    condition: str
    rate: float = 0.0
    p50: float | None = None
    p99: float | None = None
    in_flight: int = 0
    peers: int = 0
    decisions: int = 0
    fallbacks: int = 0
    """Requests that a server other than the first choice served."""


class CollectorRow(Struct, frozen=True, kw_only=True):
    """A collector and the endpoints that it scrapes."""

    name: str
    condition: str
    endpoints: tuple[str, ...] = ()
    frames: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything at one moment."""

    endpoints: tuple[EndpointRow, ...] = ()
    pickers: tuple[PickerRow, ...] = ()
    collectors: tuple[CollectorRow, ...] = ()
    server_retries: int = 0
    """Requests that Envoy has sent to another server."""
    picker_retries: int = 0
    """Streams that Envoy has opened again at another picker."""


def endpoint_row(name: str, engine: str, condition: str, endpoint: Any, picks: int) -> EndpointRow:
    """The row of a model server from its entry in a picker's `/debug/state`, None if no picker has one."""
    if endpoint is None:
        return EndpointRow(name=name, engine=engine, condition=condition, picks=picks)
    keys = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
    queue, running, kv = (endpoint["attributes"].get(key.wire) for key in keys)
    ages = [metric["age"] for metric in (queue, running, kv) if metric is not None]
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
    """Names of the endpoints that a collector scrapes, from its `/debug/state`; none if it didn't respond."""
    return tuple(id.rpartition("/")[2] for id in state["endpoints"]["assigned"]) if state else ()


def retries(text: str) -> dict[str, int]:
    """Envoy's retries to model servers and to pickers, from its `/stats`: lines of `name: value`."""
    stats = dict(line.rsplit(": ", 1) for line in text.splitlines() if ": " in line)
    return {key: int(stats.get(name, 0)) for key, name in _RETRIES.items()}
