"""A picker's parts, and reports about them: `/debug/state`, and the answer to `StatusQuery`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.admin.decisions import DecisionRing
from services.picker.bus.load_publisher import LoadPublisher
from services.picker.bus.prefix_sharing import PrefixSharing
from services.picker.flow_control.admission import FlowAdmission
from services.picker.request_handler import RequestHandler
from services.picker.state.layout import Floats
from services.picker.state.view import View
from shared.bus.frame_reader import FrameReader
from shared.bus.replica import Replica
from shared.service.answers import SHOWN
from shared.service.status import (
    BandStatus,
    LoadStatus,
    PeerLoad,
    PickerStatus,
    PrefixOriginStatus,
    PrefixStatus,
    hexadecimal,
    seconds,
)

MAX_AGE = 1e9
"""Seconds that stand for never."""


class Parts(Struct, frozen=True, kw_only=True):
    """The parts of one picker."""

    replica: Replica
    frames: FrameReader
    view: View
    handler: RequestHandler
    ring: DecisionRing
    flow: FlowAdmission
    load: LoadPublisher
    prefixes: PrefixSharing


def state(parts: Parts, picks: Mapping[str, int], now: float) -> dict[str, Any]:
    """What `/debug/state` shows of them; `picks` are the requests that each endpoint got, by id."""
    replica, view = parts.replica, parts.view
    age = replica.age()
    known = age < MAX_AGE
    return {
        "view": {
            "synced": replica.synced,
            "age": round(age, 3) if known else None,
            "source_age": round(replica.source_age(), 3) if known else None,
            "epoch": replica.epoch,
            "frames": view.columns.frames,
        },
        "open_exchanges": parts.handler.open,
        "own_inflight": {
            name: {"requests": requests, "tokens": tokens} for name, (requests, tokens) in view.in_flight.own().items()
        },
        "peers": sorted(view.in_flight.peers()),
        "endpoints": ({**endpoint, "picks": picks.get(endpoint["id"], 0)} for endpoint in view.state(now)),
        "flow_control": parts.flow.state(),
        "prefixes": parts.prefixes.state(),
    }


def picker_status(parts: Parts, now: float) -> PickerStatus:
    """The part of the status that only pickers have."""
    view = parts.view
    layout, unhealthy = view.layout, view.health.unhealthy
    ages = metric_ages(parts, now)
    stale = [] if ages is None else np.flatnonzero(~(ages <= stale_after(parts))).tolist()
    flow = parts.flow.state() or {"saturation": None, "bands": []}
    return PickerStatus(
        endpoints=len(layout),
        unhealthy={layout.endpoints[row].id: why for row, why in sorted(unhealthy.items())[:SHOWN]},
        unhealthy_count=len(unhealthy),
        stale=tuple(layout.endpoints[row].id for row in stale[:SHOWN]),
        stale_count=len(stale),
        metrics_age=None if ages is None or not len(ages) else seconds(float(ages.max())),
        frames=parts.frames.frames,
        frames_age=seconds(parts.frames.age()),
        open_requests=parts.handler.open,
        decisions=parts.ring.total,
        saturation=flow["saturation"],
        bands=tuple(BandStatus(**band) for band in flow["bands"]),
        load=_load(parts, now),
        prefixes=_prefixes(parts, now),
    )


def stale_after(parts: Parts) -> float:
    """Seconds after which metrics are stale."""
    return parts.handler.pipeline.config.stale_metrics.after


def metric_ages(parts: Parts, now: float) -> Floats | None:
    """The age of each endpoint's newest metric that some plugin reads; infinite where there never was any. None if no
    plugin reads metrics."""
    keys = [key for key in parts.handler.pipeline.reads if key.kind is float]
    layout = parts.view.layout
    if not keys:
        return None
    newest = np.full(len(layout), -np.inf)
    for key in keys:
        np.maximum(newest, parts.view.columns.numbers(key.wire).at, out=newest)
    ages: Floats = np.maximum(now - newest, 0.0)
    return ages


def _load(parts: Parts, now: float) -> LoadStatus:
    own = parts.view.in_flight.own().values()
    return LoadStatus(
        run=hexadecimal(parts.load.run_id),
        sequence=parts.load.sequence,
        digest=hexadecimal(parts.load.digest),
        requests=sum(requests for requests, _ in own),
        tokens=sum(tokens for _, tokens in own),
        peers=tuple(
            PeerLoad(
                id=peer.id,
                age=seconds(peer.age),
                run=hexadecimal(peer.run),
                sequence=peer.sequence,
                digest=hexadecimal(peer.digest),
                requests=int(peer.requests),
                tokens=int(peer.tokens),
            )
            for peer in parts.view.in_flight.peer_tables(now)
        ),
    )


def _prefixes(parts: Parts, now: float) -> PrefixStatus:
    prefixes = parts.prefixes
    return PrefixStatus(
        hashing=prefixes.hashing,
        complete=not prefixes.peers.joining,
        run=hexadecimal(prefixes.mine.run),
        sequence=prefixes.mine.sequence,
        digest=hexadecimal(prefixes.mine.digest),
        blocks=parts.view.prefixes.held,
        origins=tuple(
            PrefixOriginStatus(
                id=origin.id,
                run=hexadecimal(origin.run),
                age=seconds(max(0.0, now - origin.last_seen)),
                applied=origin.applied,
                latest=origin.latest,
                digest="" if origin.digest is None else hexadecimal(origin.digest),
                differs_for=0.0 if origin.differs_since is None else round(now - origin.differs_since, 3),
            )
            for origin in sorted(prefixes.peers.origins(), key=lambda origin: (origin.id, origin.run))
        ),
    )
