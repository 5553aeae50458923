"""`concurrency-detector`: saturation from requests and tokens in flight; as a filter, keeps the endpoints with room.

What is in flight is known without asking the servers, and at once. It includes what all pickers have sent.
"""

from math import ceil
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, SaturationDetector
from services.picker.scheduling.named_attribute import in_flight_load
from services.picker.state.layout import Floats, Mask, Rows
from shared.plugin import Input, Role

_ROUNDING = 1e-9


class ConcurrencyParameters(Struct, frozen=True, rename="camel"):
    """What fills an endpoint."""

    concurrency_mode: Literal["requests", "tokens", "hybrid"] = "requests"
    """`hybrid` judges an endpoint by the fuller of the two."""
    max_concurrency: Annotated[int, Meta(gt=0)] = 100
    max_token_concurrency: Annotated[int, Meta(gt=0)] = 1_000_000
    headroom: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """How far beyond the limits the filter lets an endpoint go, as a share of them."""
    in_flight_load_producer_name: str = ""


class ConcurrencyDetector(SaturationDetector, Filter):
    """What is in flight, divided by what may be."""

    TYPE = "concurrency-detector"
    ROLES = frozenset({Role.SATURATION_DETECTOR, Role.FILTER})
    PROMPT = True
    Parameters = ConcurrencyParameters
    parameters: ConcurrencyParameters

    @classmethod
    def consumes(cls, parameters: ConcurrencyParameters) -> tuple[Input, ...]:
        return (in_flight_load(parameters.in_flight_load_producer_name),)

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        if not len(rows):
            return 1.0
        limits, mode = self.parameters, self.parameters.concurrency_mode
        if mode == "requests":
            return float(np.add.reduce(self._requests(cycle, rows))) / (limits.max_concurrency * len(rows))
        filled = self._tokens(cycle, rows) / limits.max_token_concurrency
        if mode == "hybrid":
            filled = np.maximum(filled, self._requests(cycle, rows) / limits.max_concurrency)
        return float(np.add.reduce(filled)) / len(rows)

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        """The endpoints below their limits, with the headroom; none when no endpoint is."""
        limits, mode = self.parameters, self.parameters.concurrency_mode
        passes: Mask = np.ones(len(rows), np.bool_)
        if mode != "tokens":
            passes &= self._requests(cycle, rows) < int(limits.max_concurrency * (1.0 + limits.headroom))
        if mode != "requests":
            passes &= self._tokens(cycle, rows) < int(limits.max_token_concurrency * (1.0 + limits.headroom))
        kept: Rows = rows[passes]
        return kept

    def room(self, cycle: Cycle, rows: Rows, ceiling: float, tokens: float) -> float:
        """Requests of so many tokens each that fit until the saturation reaches the ceiling: the last of them may
        exceed it, so there is room for one as long as the saturation is below."""
        left = ceiling - self.saturation(cycle, rows)
        if left <= 0 or not len(rows):
            return 0.0
        return float(max(1, ceil(left * len(rows) / max(self._filled(1.0, tokens), _ROUNDING) - _ROUNDING)))

    def places(self, requests: float, tokens: float, average: float) -> float:
        """As the mode counts them."""
        if self.parameters.concurrency_mode == "requests":
            return requests
        return self._filled(requests, tokens) / max(self._filled(1.0, average), _ROUNDING)

    @property
    def each_one_place(self) -> bool:
        return self.parameters.concurrency_mode == "requests" and type(self).places is ConcurrencyDetector.places

    def _filled(self, requests: float, tokens: float) -> float:
        """The part of an endpoint that these fill."""
        limits, mode = self.parameters, self.parameters.concurrency_mode
        if mode == "requests":
            return requests / limits.max_concurrency
        filled = tokens / limits.max_token_concurrency
        return filled if mode == "tokens" else max(filled, requests / limits.max_concurrency)

    def _requests(self, cycle: Cycle, rows: Rows) -> Floats:
        requests: Floats = cycle.view.in_flight.requests.take(rows)
        cycle.note("InFlightRequests", rows, requests)
        return requests

    def _tokens(self, cycle: Cycle, rows: Rows) -> Floats:
        tokens: Floats = cycle.view.in_flight.tokens.take(rows)
        cycle.note("InFlightTokens", rows, tokens)
        return tokens
