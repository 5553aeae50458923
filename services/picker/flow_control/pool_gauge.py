"""How full the pool is and how many more requests fit: the saturation detector's reading, and what was dispatched
since.

The gauge reads the detector again after each event that can make room, and at least every `AGE` seconds. Between two
readings, a charged request takes its place and a released one gives it back; the detector determines the size of a
place.
"""

from math import inf, isnan

import numpy as np
from msgspec import Struct

from services.picker.flow_control.stages import FullestStage, Stages
from services.picker.request import Headers, Request
from services.picker.scheduling.cycle import Cycle, OnPluginFailure
from services.picker.scheduling.interfaces import SaturationDetector
from services.picker.state.inflight import MAX_TOKENS, Charge
from services.picker.state.layout import Layout
from services.picker.state.view import View
from shared.config.schema import StaleMetrics

AGE = 0.05
"""Seconds that a reading is used for."""
SETTLING = 0.5
"""Seconds for which a pool that was empty counts as empty still: proxies learn of its endpoints by another way, and
refuse requests until they know of any."""
_NO_REQUEST = Request(id="", headers=Headers())
_SMOOTHING = 1 / 64
"""The weight of a request's tokens in the mean."""
_ROUNDING = 1e-9


class _Room(Struct, frozen=True):
    """What was read."""

    room: float
    """Average requests that fit."""
    average: float
    """Tokens of such a request."""
    requests: float
    """In flight at the time."""
    tokens: float
    full_at: float
    """Requests in flight that leave no room."""


class PoolGauge:
    """The pool of a view, as one configuration's detector sees it."""

    def __init__(
        self,
        view: View,
        detector: SaturationDetector,
        stale: StaleMetrics,
        random: np.random.Generator,
        failed: OnPluginFailure = lambda *_: None,
    ) -> None:
        self.pending = 0
        """Requests that were let go, and aren't charged yet."""
        self.pending_tokens = 0
        self.stages: dict[str, float] = {}
        """The saturation of each stage, as last read."""
        self._view, self._detector, self._stale, self._random, self._failed = view, detector, stale, random, failed
        self._each_one_place = detector.each_one_place
        self._layout: Layout | None = None
        self._partition = Stages.of(Layout())
        self._cycle: Cycle | None = None
        self._good_until = -inf
        """When the last reading is too old."""
        self.saturation = 0.0
        """0 is idle, 1 and more is full. An empty pool is full."""
        self._rooms: dict[float, _Room] = {}
        """By ceiling."""
        self._tokens: float | None = None
        self.empty = False
        """Whether it has no endpoints that proxies know of."""
        self.settled_at = inf
        """When a pool that was empty counts as filled; infinite if nothing is waited for."""

    def at(self, now: float) -> "PoolGauge":
        """The gauge with a reading that is good for `now`."""
        layout = self._view.layout
        if not len(layout.candidates):
            self.empty, self.settled_at = True, inf
        elif self.empty:
            if self.settled_at == inf:
                self.settled_at = now + SETTLING
            if now >= self.settled_at:
                self.empty, self.settled_at, self._good_until = False, inf, -inf
        if layout is not self._layout:
            self._layout, self._partition = layout, Stages.of(layout)
            self._good_until = -inf
        if now >= self._good_until:
            self._read(now, layout)
        return self

    def invalidate(self) -> None:
        """Read the detector again at the next call."""
        self._good_until = -inf

    def expect(self, tokens: int, now: float) -> "PoolGauge":
        """A request of so many tokens has come: they count in the mean. The gauge `at` this time."""
        known, tokens = self._tokens, min(tokens, MAX_TOKENS)
        self._tokens = float(tokens) if known is None else known + (tokens - known) * _SMOOTHING
        return self if now < self._good_until and self._view.settled is self._layout else self.at(now)

    def room(self, ceiling: float) -> float:
        """Average requests that fit until the saturation reaches the ceiling."""
        in_flight = self._view.in_flight
        found = self._rooms.get(ceiling) or self._room(ceiling)
        if self._each_one_place:
            return found.full_at - in_flight.count - self.pending
        requests = in_flight.count - found.requests + self.pending
        tokens = in_flight.token_count - found.tokens + self.pending_tokens
        try:
            # what is taken of a place leaves it: the last request may exceed the room
            return found.room - int(self._detector.places(requests, tokens, found.average) + _ROUNDING)
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and each takes one place
            self._fail(error)
            return found.room - requests

    def fullest(self) -> FullestStage:
        """The fullest stage of the last reading."""
        layout = self._layout
        assert layout is not None
        name, rows = max(self._partition.judged, key=lambda stage: self.stages.get(stage[0], 0.0))
        there = np.zeros(len(layout), np.bool_)
        there[rows] = True
        in_flight = float(np.add.reduce(self._view.in_flight.requests.take(rows)))

        def holds(charge: Charge) -> bool:
            held = ((part, layout.index.get(part.endpoint_id)) for part in charge.held())
            return any(row is not None and there[row] and self._takes_room(part) for part, row in held)

        return FullestStage(name, layout, self.saturation, in_flight, holds)

    def _takes_room(self, charge: Charge) -> bool:
        """Whether the detector counts what is left of a charge."""
        if self._each_one_place:
            return True
        try:
            return not self._detector.places(1.0, charge.tokens, 1.0) <= 0  # NaN is a failure, too
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            return True

    def _read(self, now: float, layout: Layout) -> None:
        self._rooms.clear()
        self._cycle = cycle = Cycle(
            _NO_REQUEST, self._view, now, self._random, self._stale, model="", candidates=layout.candidates, tokens=1
        )
        if self.empty:
            self.stages, self.saturation = {}, 1.0
            return
        self._good_until = now + AGE
        try:
            self.stages = self._partition.saturations(self._detector, cycle)
            self.saturation = max(self.stages.values())
            if isnan(sum(self.stages.values())):
                raise ValueError("the saturation is NaN")
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and keeps no request waiting
            self._fail(error)
            self.stages, self.saturation = {}, 0.0

    def _room(self, ceiling: float) -> _Room:
        assert self._cycle is not None
        average = 1.0 if self._tokens is None else max(self._tokens, 1.0)
        in_flight = self._view.in_flight
        try:
            room = self._partition.room(self._detector, self._cycle, ceiling, average)
            if room != room:
                raise ValueError("the room is NaN")
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(error)
            room = inf
        requests = in_flight.count
        found = self._rooms[ceiling] = _Room(room, average, requests, in_flight.token_count, room + requests)
        return found

    def _fail(self, error: Exception) -> None:
        self._failed(self._detector.name, error, "")

    def __repr__(self) -> str:
        return f"<PoolGauge {self.saturation:.2f} full, {self.pending} pending>"
