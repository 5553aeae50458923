"""`program-aware-fairness`: the program (flow) that has got the least service, or has waited the longest, is next.

Service is counted in tokens of finished requests, those of peers too, and fades with a half-life. All services fade
alike and only their places between the least and the greatest matter, so none is ever recomputed: what comes later is
counted for more instead.
"""

from collections import OrderedDict
from math import inf, log2
from typing import Annotated, Any, Literal
from weakref import ref

import numpy as np
from msgspec import Meta, Struct

from services.picker.flow_control.flow import Flow
from services.picker.flow_control.interfaces import FairnessPolicy, FlowOrder
from services.picker.state.layout import Floats

MAX_PROGRAMS = 10_000
"""Programs whose service is remembered; of more, those that were served last."""
PEERS = 10.0
"""Service of a program at peers, for that of all programs here, that counts at most."""
LEAD = 100_000
"""Tokens of a program at peers that count in any case."""
_MAX_COUNT = 2.0**512
"""Growth of what is counted, at which all services are scaled down."""
_MIN_SPAN = 1e-290
"""Differences up to this count as none: a weight, at most 1e9, divided by them may be infinite."""

_NO_SERVICE = 0.0, 0.0, 0.0
_NotNegative = Annotated[float, Meta(ge=0, le=1e9)]


class ProgramAwareParameters(Struct, frozen=True, rename="camel"):
    """How service and waiting weigh, and how long service is remembered."""

    strategy: Literal["las", ""] = "las"
    """Least attained service."""
    eviction_ttl_seconds: _NotNegative = 3600.0
    """After so long without service a program's is forgotten; 0 is never."""
    eviction_sweep_seconds: Annotated[float, Meta(gt=0, le=1e9)] = 300.0
    """How often that is looked at."""
    las_weight_service: _NotNegative = 0.8
    las_weight_head_wait: _NotNegative = 0.2
    las_half_life_seconds: _NotNegative = 60.0
    """0 lets service never fade."""


class _Service:
    """What programs have got, in units that grow with time."""

    def __init__(self, parameters: ProgramAwareParameters) -> None:
        self._ttl, self._sweep = parameters.eviction_ttl_seconds, parameters.eviction_sweep_seconds
        self._half_life = parameters.las_half_life_seconds
        self._by_program: OrderedDict[int, tuple[float, float, float]] = OrderedDict()
        """Service here and at peers, and time of the last, in the order of the latter."""
        self._here = 0.0
        """Service here of all programs, also of those that are forgotten."""
        self._since: float | None = None
        """When a token counted for one unit."""
        self._swept = 0.0

    def of(self, program: int) -> float:
        here, elsewhere, _ = self._by_program.get(program, _NO_SERVICE)
        return here + elsewhere

    def add(self, program: int, tokens: int, now: float, *, elsewhere: bool = False) -> tuple[float, float]:
        """(the program's service, what all others have to be multiplied by). What peers say counts up to a limit:
        whoever speaks for one could shut a program out."""
        if self._since is None:
            self._since = self._swept = now
        scale, growth = 1.0, 1.0
        if self._half_life:
            exponent = max(now - self._since, 0.0) / self._half_life
            if exponent >= log2(_MAX_COUNT):  # so much that what was before counts for nothing, or next to it
                scale, self._since = 2.0 ** -min(exponent, 1000.0), now
                for known, (own, others, at) in self._by_program.items():
                    self._by_program[known] = own * scale, others * scale, at
                self._here *= scale
            else:
                growth = 2.0**exponent
        if elsewhere and len(self._by_program) >= MAX_PROGRAMS and program not in self._by_program:
            self._forget(now)
            return 0.0, scale  # peers' programs don't displace others
        own, others, _ = self._by_program.get(program, _NO_SERVICE)
        if elsewhere:
            others = max(others, min(others + tokens * growth, PEERS * self._here + LEAD * growth))
        else:
            own += tokens * growth
            self._here += tokens * growth
        self._by_program[program] = own, others, now
        self._by_program.move_to_end(program)
        self._forget(now)
        return own + others, scale

    def _forget(self, now: float) -> None:
        if len(self._by_program) > MAX_PROGRAMS:
            self._by_program.popitem(last=False)
        if self._ttl and now - self._swept >= self._sweep:
            self._swept = now
            while self._by_program and now - next(iter(self._by_program.values()))[2] > self._ttl:
                self._by_program.popitem(last=False)

    def __len__(self) -> int:
        return len(self._by_program)


class _LeastAttained(FlowOrder):
    """Wait, service and last turn of the active flows, as arrays. Of equal flows, the one whose last turn is the
    longest ago is next."""

    def __init__(self, service: _Service, parameters: ProgramAwareParameters) -> None:
        self._known = service
        self._weights = parameters.las_weight_service, parameters.las_weight_head_wait
        self._flows: list[Flow] = []
        self._rows: dict[Flow, int] = {}
        self._by_hash: dict[int, Flow] = {}
        """Of active flows whose ids have the same hash, the first."""
        self._columns: Floats = np.zeros((3, 8))
        self._since, self._service, self._turn = self._columns
        self._turns = 0
        """So far; the coming of a flow is one."""

    def activated(self, flow: Flow) -> None:
        row = len(self._flows)
        if row == len(self._since):
            self._columns = np.concatenate([self._columns, np.zeros((3, row))], axis=1)
            self._since, self._service, self._turn = self._columns
        self._flows.append(flow)
        self._rows[flow] = row
        self._by_hash.setdefault(flow.hash, flow)
        self._service[row] = self._known.of(flow.hash) / flow.weight
        self.dispatched(flow)

    def deactivated(self, flow: Flow) -> None:
        row, last = self._rows.pop(flow), self._flows.pop()
        if self._by_hash.get(flow.hash) is flow:
            del self._by_hash[flow.hash]
        if last is not flow:
            self._flows[row] = last
            self._rows[last] = row
            self._columns[:, row] = self._columns[:, len(self._flows)]

    def head_changed(self, flow: Flow) -> None:
        since = flow.head_since()
        if since is not None:
            self._since[self._rows[flow]] = since

    def dispatched(self, flow: Flow) -> None:
        self._turns += 1
        self._turn[self._rows[flow]] = self._turns
        self.head_changed(flow)

    def served(self, program: int, service: float, scale: float) -> None:
        if scale != 1.0:
            self._service *= scale
        flow = self._by_hash.get(program)
        if flow is not None:
            self._service[self._rows[flow]] = service / flow.weight

    def pick(self, now: float) -> Flow | None:
        flows = self._flows
        if len(flows) < 2:
            return flows[0] if flows else None
        by_service, by_wait = self._weights
        since, service = self._columns[:2, : len(flows)]
        # what is the same for all flows is left out
        cost = since * (by_wait / _span(since)) + service * (by_service / _span(service))
        rows = (cost == cost[cost.argmin()]).nonzero()[0]
        if len(rows) == 1:
            return flows[int(rows[0])]
        waits = since[rows]
        rows = rows[waits == waits.min()]
        return flows[int(rows[self._turn[rows].argmin()])]


def _span(values: Floats) -> float:
    """The greatest less the least; infinite if all are equal, or nearly, which then weigh nothing."""
    # maximum.reduce costs three times argmax
    span = values.item(values.argmax()) - values.item(values.argmin())
    return span if span > _MIN_SPAN else inf


class ProgramAwareFairness(FairnessPolicy):
    """The highest of `weight · (1 − norm(service)) + weight · norm(wait of the first request)`."""

    TYPE = "program-aware-fairness"
    Parameters = ProgramAwareParameters
    parameters: ProgramAwareParameters

    def __init__(self, name: str, parameters: ProgramAwareParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._service = _Service(self.parameters)
        self._orders: list[ref[_LeastAttained]] = []

    def flow_order(self) -> FlowOrder:
        order = _LeastAttained(self._service, self.parameters)
        self._orders = [known for known in self._orders if known() is not None]
        self._orders.append(ref(order))
        return order

    def served(self, flow: int, tokens: int, now: float) -> None:
        self._tell(flow, *self._service.add(flow, tokens, now))

    def served_elsewhere(self, flow: int, tokens: int, now: float) -> None:
        self._tell(flow, *self._service.add(flow, tokens, now, elsewhere=True))

    def _tell(self, flow: int, service: float, scale: float) -> None:
        for known in self._orders:
            order = known()
            if order is not None:
                order.served(flow, service, scale)

    def state(self) -> dict[str, Any]:
        """What `/debug/state` shows of it: no ids, which clients choose."""
        return {"programs": len(self._service)}
