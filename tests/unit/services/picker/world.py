"""A small pool for tests of the picker: endpoints, what they report, requests, and cycles on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.picker.request import Content, Headers, Request
from services.picker.scheduling.cycle import Cycle
from services.picker.state.layout import Rows
from services.picker.state.view import View
from shared.attributes import AttributeKey
from shared.bus.columns import endpoint_hash, pack_ages, pack_counts, pack_floats, pack_hashes
from shared.bus.messages import Frame, Load
from shared.config.schema import StaleMetrics
from shared.model import Endpoint, Fact

NOW = 1_000.0


def endpoint(name: str, address: str = "", port: int = 8000, **labels: str) -> Endpoint:
    """An endpoint whose id is its name; the address is made from the name's digits unless given."""
    digits = "".join(filter(str.isdigit, name)) or "0"
    return Endpoint(id=name, name=name, address=address or f"10.0.0.{digits}", port=port, labels=labels)


def facts(*endpoints: Endpoint) -> dict[str, Fact]:
    return {f"pool.endpoint.{member.id}": member for member in endpoints}


def pool(*endpoints: Endpoint | str) -> View:
    """A view of these endpoints."""
    view = View()
    view.reset(facts(*(endpoint(member) if isinstance(member, str) else member for member in endpoints)))
    return view


def frame(
    ids: Sequence[str],
    values: Mapping[AttributeKey[Any], Sequence[Any]],
    ages: float | Sequence[float] = 0.0,
    sender: str = "collector",
) -> Frame:
    """What a collector reports: for each attribute a value an endpoint; None where it has none."""
    age = np.broadcast_to(np.asarray(ages, np.float64), (len(ids),))
    columns, objects = {}, {}
    for key, column in values.items():
        if key.kind is float:
            columns[key.wire] = pack_floats([np.nan if value is None else value for value in column])
        else:
            objects[key.wire] = list(column)
    return Frame(
        sender=sender,
        sent=0.0,
        sequence=1,
        ids=tuple(ids),
        columns=columns,
        objects=objects,
        ages={key.wire: pack_ages(age) for key in values},
    )


def report(
    view: View, values: Mapping[AttributeKey[Any], Sequence[Any]], ages: float | Sequence[float] = 0.0, now: float = NOW
) -> None:
    """Have all endpoints, in the layout's order, report these values of these ages."""
    view.apply_frame(frame([endpoint.id for endpoint in view.layout.endpoints], values, ages), now, 0.0)


def load(
    sender: str, table: Mapping[str, tuple[int, int]], *, sent: float = 0.0, run: int = 1, leaving: bool = False
) -> Load:
    """A peer's table: `{endpoint id: (requests, tokens)}`."""
    return Load(
        sender=sender,
        sent=sent,
        sequence=1,
        run=run,
        ids=pack_hashes([endpoint_hash(id) for id in table]),
        requests=pack_counts([requests for requests, _ in table.values()]),
        tokens=pack_counts([tokens for _, tokens in table.values()]),
        leaving=leaving,
    )


def request(
    prompt: bytes = b"",
    *,
    id: str = "request-1",
    model: str = "model",
    headers: Sequence[tuple[str, str]] = (),
    subset: tuple[str, ...] | None = None,
    body_size: int | None = None,
    **content: Any,
) -> Request:
    return Request(
        id=id,
        headers=Headers(headers),
        path="/v1/chat/completions",
        content=Content(api="chat", model=model, prompt=prompt, **content),
        body_size=len(prompt) if body_size is None else body_size,
        subset=subset,
    )


def cycle(
    view: View,
    asked: Request | None = None,
    *,
    policy: Any = "saturated",
    after: float = 2.0,
    model: str = "model",
    now: float = NOW,
    seed: int = 1,
    rows: Rows | None = None,
    priority: int = 0,
) -> Cycle:
    return Cycle(
        asked or request(),
        view,
        now,
        np.random.default_rng(seed),
        StaleMetrics(after=after, policy=policy),
        model=model,
        priority=priority,
        candidates=view.layout.all_rows if rows is None else rows,
    )
