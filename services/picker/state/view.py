"""The picker's view of its pool: everything that a decision reads, in local memory.

Facts arrive as `Reset | Upsert | Delete` from the endpoints bucket, attributes as frames, peers' load as tables. A
burst of endpoint changes costs one new layout, made when it is next read.
"""

from typing import Any

from services.picker.state.columns import Columns
from services.picker.state.inflight import InFlight
from services.picker.state.layout import Layout
from services.picker.state.prefix import PrefixIndex
from services.picker.state.rewrites import Rewrites
from shared.bus.messages import Frame, Load
from shared.model import Endpoint, Fact, Model, ModelRewrite, Objective, Pool


class View:
    """Endpoints with their attributes, load and prefixes, and the resources that steer the pool's traffic."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.in_flight = InFlight()
        self.prefixes = PrefixIndex()
        self.pool: Pool | None = None
        self.objectives: dict[str, Objective] = {}
        self.models: dict[str, Model] = {}
        self._rewrites: dict[str, ModelRewrite] = {}
        self.rewrites = Rewrites(())
        self._endpoints: dict[str, Endpoint] = {}
        self._layout = Layout()
        self._dirty = False

    @property
    def layout(self) -> Layout:
        """The endpoints as they are now; every array of the view is in its order."""
        if self._dirty:
            self._dirty = False
            layout = Layout(self._endpoints.values(), self._layout.generation + 1)
            for part in (self.columns, self.in_flight, self.prefixes):
                part.relayout(layout)
            self._layout = layout
        return self._layout

    def reset(self, facts: dict[str, Fact]) -> None:
        """These facts, by key, and no others."""
        self.pool = None
        self.objectives.clear()
        self.models.clear()
        self._rewrites.clear()
        before, self._endpoints = self._endpoints, {}
        for key, fact in facts.items():
            self.upsert(key, fact)
        self._dirty = self._endpoints != before or self._dirty
        self.rewrites = Rewrites(self._rewrites.values())

    def upsert(self, key: str, fact: Fact) -> None:
        """A fact is new, or has changed."""
        match fact:
            case Endpoint():
                self._dirty |= self._endpoints.get(key) != fact
                self._endpoints[key] = fact
            case Pool():
                self.pool = fact
            case Objective():
                self.objectives[fact.name] = fact
            case ModelRewrite():
                self._rewrites[key] = fact
                self.rewrites = Rewrites(self._rewrites.values())
            case Model():
                self.models[key] = fact
            case _:
                pass  # the configuration is the process's business, not the view's

    def delete(self, key: str, name: str) -> None:
        """A fact is gone; `name` is the resource's."""
        if self._endpoints.pop(key, None) is not None:
            self._dirty = True
        elif self._rewrites.pop(key, None) is not None:
            self.rewrites = Rewrites(self._rewrites.values())
        elif self.models.pop(key, None) is None:
            self.objectives.pop(name, None)

    def apply_frame(self, frame: Frame, now: float, extra_age: float) -> None:
        """Attributes from a collector, which were `extra_age` seconds longer under way than usual."""
        _ = self.layout  # changed endpoints first
        self.columns.apply(frame, now, extra_age)

    def apply_load(self, load: Load, now: float) -> None:
        """A peer's load in flight."""
        _ = self.layout
        self.in_flight.apply(load, now)

    def state(self, now: float) -> list[dict[str, Any]]:
        """Every endpoint with what is known of it, for `/debug/state`."""
        layout = self.layout
        own = self.in_flight.own()
        return [
            {
                "id": one.id,
                "authority": one.authority,
                "labels": one.labels,
                "attributes": self.columns.of(row, now),
                "inflight": {
                    "requests": int(self.in_flight.requests[row]),
                    "tokens": int(self.in_flight.tokens[row]),
                    "own_requests": own.get(one.id, (0, 0))[0],
                    "own_tokens": own.get(one.id, (0, 0))[1],
                },
                "prefix_blocks": self.prefixes.blocks_of(one.id),
            }
            for row, one in enumerate(layout.endpoints)
        ]

    def __repr__(self) -> str:
        return f"<View {len(self._endpoints)} endpoints, {self.in_flight!r}, {self.prefixes!r}>"
