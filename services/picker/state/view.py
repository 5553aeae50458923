"""The picker's view of its pool: everything that a decision reads, in local memory.

Facts arrive as `Reset | Upsert | Delete` from the endpoints bucket, attributes as frames, and the load of peers as
tables. A burst of endpoint changes makes one new layout, when it is next read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS, ViewLimits
from services.picker.state.columns import Columns, OnOutOfRange
from services.picker.state.health import EXPIRY, Health
from services.picker.state.inflight import InFlight
from services.picker.state.layout import Layout
from services.picker.state.lru_prefix_index import LruPrefixIndex
from services.picker.state.prefix_hits import PrefixHits
from services.picker.state.rewrites import Rewrites
from services.picker.state.slow_start import SlowStart
from shared.attributes import KV_CACHE_USAGE, REACHABLE, WAITING_QUEUE_SIZE, AttributeMap
from shared.bus.messages import Frame, Load
from shared.model import Configuration, Endpoint, Fact, Model, ModelRewrite, Objective, Pool


class View:
    """Endpoints with their attributes, load and prefixes, and the resources that steer the pool's traffic."""

    def __init__(
        self,
        unhealthy_expiry: float = EXPIRY,
        on_out_of_range: OnOutOfRange = lambda *_: None,
        limits: ViewLimits = DEFAULT_VIEW_LIMITS,
        slow_start: float = 0.0,
    ) -> None:
        """`slow_start` is how many seconds new endpoints take to get their full share."""
        self._limits = limits
        self.columns = Columns(on_out_of_range, limits)
        self.health = Health(self.columns, unhealthy_expiry)
        self.in_flight = InFlight(limits)
        self.prefixes = LruPrefixIndex(limits.prefix_blocks)
        self.prefix_hits = PrefixHits()
        self.slow_start = SlowStart(slow_start)
        self.pool: Pool | None = None
        self.objectives: dict[str, Objective] = {}
        """By name, as requests give it."""
        self._facts: dict[str, Fact] = {}
        self._layout = Layout()
        self.settled: Layout | None = self._layout
        """The layout; None while changes wait for the next look at it."""
        self._endpoints_changed = False
        self._made: dict[str, AttributeMap] = {}
        """Attributes from endpoint extractors, by endpoint id."""
        self._made_changed: set[str] = set()
        """Ids of endpoints whose made attributes the columns don't have."""
        self._owned: set[str] = set()
        """Ids of endpoints of which the columns have some."""
        self._rewrites: Rewrites | None = Rewrites()
        self._priorities: frozenset[int] | None = None

    @property
    def layout(self) -> Layout:
        """The endpoints as they are now; every array of the view is in its order."""
        if self.settled is not None:
            return self.settled
        if self._endpoints_changed:
            self._endpoints_changed = False
            layout = Layout(self.endpoints.values(), self._layout.generation + 1, former=self._layout)
            for part in (self.columns, self.in_flight, self.prefixes, self.health, self.slow_start):
                part.relayout(layout)
            former, self._layout = self._layout, layout
            if self._made:
                for this, other in ((layout, former), (former, layout)):  # other servers, and those that are gone
                    changed = np.ones(len(this), np.bool_)
                    changed[this.moved_from(other)[0]] = False
                    self._made_changed |= {this.endpoints[row].id for row in np.flatnonzero(changed).tolist()}
        if self._made_changed:
            ids, self._made_changed = self._made_changed, set()
            own: dict[str, AttributeMap | None] = {}
            for id in ids:
                attributes = self._made.get(id)
                if attributes is not None and id in self._layout.index and _has_state(attributes):
                    own[id] = attributes
                else:
                    self._made.pop(id, None)
                    if id in self._owned:
                        own[id] = None
            self._owned = (self._owned - ids) | {id for id, attributes in own.items() if attributes is not None}
            self.columns.own(own)
        self.settled = self._layout
        return self._layout

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """All endpoints by id."""
        return {fact.id: fact for fact in self._facts.values() if isinstance(fact, Endpoint)}

    def made(self, id: str) -> AttributeMap:
        """What endpoint extractors made of an endpoint, to be changed by them. It is in the columns with the next
        layout that is read."""
        self._made_changed.add(id)
        self.settled = None
        made = self._made.get(id)
        if made is None:
            made = self._made[id] = AttributeMap()
        return made

    @property
    def rewrites(self) -> Rewrites:
        """The rules by which models are rewritten, as they are now."""
        if self._rewrites is None:
            facts = self._facts.values()
            self._rewrites = Rewrites(
                [fact for fact in facts if isinstance(fact, ModelRewrite)],
                [fact for fact in facts if isinstance(fact, Model)],
                self._limits.model_names,
            )
        return self._rewrites

    @property
    def priorities(self) -> frozenset[int]:
        """Those that requests of the pool may have, by the objectives and models that are there. The same object as
        long as they are the same."""
        if self._priorities is None:
            self._priorities = frozenset(
                {*(objective.priority for objective in self.objectives.values()), *self.rewrites.priorities}
            )
        return self._priorities

    def reset(self, facts: dict[str, Fact]) -> None:
        """These facts, by key, and no others."""
        for key in self._facts.keys() - facts.keys():
            self.delete(key)
        for key, fact in facts.items():
            self.upsert(key, fact)

    def differs(self, facts: Mapping[str, Fact]) -> list[str]:
        """The keys of facts that aren't here as they are given, sorted. The configuration is no part of the view."""
        keys = self._facts.keys() | facts.keys()
        return sorted(
            key
            for key in keys
            if (ours := self._facts.get(key)) is not (theirs := facts.get(key))
            and ours != theirs
            and not isinstance(ours if theirs is None else theirs, Configuration)
        )

    def upsert(self, key: str, fact: Fact) -> None:
        """A fact is new, or has changed."""
        before = self._facts.get(key)
        if before == fact:
            return
        if before is not None:
            self.delete(key)
        self._facts[key] = fact
        if isinstance(fact, Pool):
            self.pool = fact
        elif isinstance(fact, Objective):
            self.objectives[fact.name] = fact
        self._changed(fact)

    def delete(self, key: str) -> None:
        """A fact is gone, whether it was known or not."""
        fact = self._facts.pop(key, None)
        if isinstance(fact, Pool):
            self.pool = None
        elif isinstance(fact, Objective):
            self.objectives.pop(fact.name, None)
        self._changed(fact)

    def _changed(self, fact: Fact | None) -> None:
        if isinstance(fact, Endpoint):
            self._endpoints_changed, self.settled = True, None
        if isinstance(fact, ModelRewrite | Model):
            self._rewrites = None
        if isinstance(fact, Objective | Model):
            self._priorities = None

    def apply_frame(self, frame: Frame, now: float, extra_age: float) -> None:
        """Attributes from a collector, which were `extra_age` seconds longer under way than usual."""
        _ = self.layout  # changed endpoints first
        self.columns.apply(frame, now, extra_age)
        if WAITING_QUEUE_SIZE.wire in frame.columns or KV_CACHE_USAGE.wire in frame.columns:
            queue, usage = self.columns.numbers(WAITING_QUEUE_SIZE.wire), self.columns.numbers(KV_CACHE_USAGE.wire)
            self.in_flight.note_samples(np.maximum(queue.at, usage.at))
        if REACHABLE.wire in frame.columns or REACHABLE.wire in frame.absent:
            self.health.refresh(now)

    def apply_load(self, load: Load, now: float) -> bool:
        """A peer's load in flight, which arrived at `now`; whether it can have been sent when it says."""
        _ = self.layout
        return self.in_flight.apply(load, now)

    def state(self, now: float) -> Iterator[dict[str, Any]]:
        """Every endpoint with what is known of it, for `/debug/state`. Endpoints may change before the last one is
        made."""
        layout = Layout()
        for id in tuple(self.layout.index):
            if self.layout is not layout:
                layout, weights, own = self.layout, self.slow_start.weights(now), self.in_flight.own()
            row = layout.index.get(id)
            if row is None:
                continue
            endpoint = layout.endpoints[row]
            yield {
                "id": endpoint.id,
                "authority": endpoint.authority,
                "labels": endpoint.labels,
                "unhealthy": self.health.unhealthy.get(row),
                "draining": endpoint.draining,
                "slow_start_weight": round(float(weights[row]), 3),
                "attributes": self.columns.of(row, now),
                "inflight": {
                    "requests": int(self.in_flight.requests[row]),
                    "tokens": int(self.in_flight.tokens[row]),
                    "own_requests": own.get(endpoint.id, (0, 0))[0],
                    "own_tokens": own.get(endpoint.id, (0, 0))[1],
                },
                "prefix_blocks": self.prefixes.blocks_of(endpoint.id),
            }

    def __repr__(self) -> str:
        endpoints = sum(isinstance(fact, Endpoint) for fact in self._facts.values())
        return f"<View {endpoints} endpoints, {self.in_flight!r}, {self.prefixes!r}>"


def _has_state(attributes: AttributeMap) -> bool:
    """Whether the endpoint has any attribute."""
    return any(sample.value is not None for _, sample in attributes.items())
