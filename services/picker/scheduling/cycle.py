"""One decision under way: the request, the view it is made on, and what plugins have found out so far.

Plugins read attributes through the cycle, which notes what was read: the explanation of a decision shows the very
numbers that it was made with.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.requests.request import Request
from services.picker.state.layout import Floats, Layout, Mask, Rows
from services.picker.state.view import View
from shared.attributes import AttributeKey
from shared.config.schema import StaleMetrics

BYTES_PER_TOKEN = 4
"""The reference's estimate where nobody tokenizes: four bytes of text are a token."""


class PrefixMatch(Struct, frozen=True):
    """How much of the prompt each endpoint probably has in its KV cache."""

    matched: Floats
    """Leading blocks held, by the layout's positions."""
    total: int
    """Blocks of the prompt."""
    block_tokens: int


PREFIX_MATCH = AttributeKey("PrefixCacheMatchInfo", "approx-prefix-cache-producer", PrefixMatch)
"""Made for each request by `approx-prefix-cache-producer`."""
IN_FLIGHT_LOAD = AttributeKey("InFlightLoad", "inflight-load-producer", float)
"""Requests and tokens in flight, of all pickers; kept by the view, weighed by `inflight-load-producer`."""


class Reading(Struct, frozen=True):
    """An attribute as a plugin read it, for some rows: values, sample times, and which are known and not stale."""

    rows: Rows
    values: Floats
    at: Floats
    fresh: Mask


class Cycle:
    """What plugins see of one decision."""

    __slots__ = (
        "attributes",
        "candidates",
        "layout",
        "model",
        "now",
        "priority",
        "random",
        "readings",
        "request",
        "stale",
        "view",
    )

    def __init__(
        self,
        request: Request,
        view: View,
        now: float,
        random: np.random.Generator,
        stale: StaleMetrics,
        *,
        model: str,
        priority: int = 0,
        candidates: Rows,
    ) -> None:
        self.request = request
        self.view = view
        self.layout: Layout = view.layout
        self.now = now
        self.random = random
        self.stale = stale
        self.model = model
        """The model that the request is really for, after rewriting."""
        self.priority = priority
        self.candidates = candidates
        self.attributes: dict[AttributeKey[Any], Any] = {}
        """What producers made for this request."""
        self.readings: dict[str, Reading] = {}
        """What was read, by wire name; the last reading of an attribute stands."""

    def read(self, key: AttributeKey[float], rows: Rows) -> Reading:
        """The attribute's values for the rows. Under `lastKnown` a stale value counts as fresh."""
        column = self.view.columns.numbers(key.wire)
        at = column.at[rows]
        oldest = -np.inf if self.stale.policy == "lastKnown" else self.now - self.stale.after
        reading = Reading(rows, column.values[rows], at, (at >= oldest) & (at > -np.inf))
        self.readings[key.wire] = reading
        return reading

    def note(self, name: str, rows: Rows, values: Floats) -> None:
        """Have the explanation show a number that isn't a scraped attribute: load in flight, matched blocks."""
        self.readings[name] = Reading(rows, values, np.full(len(rows), self.now), np.ones(len(rows), np.bool_))

    def score_by(self, key: AttributeKey[float], rows: Rows, formula: Callable[[Floats], Floats]) -> Floats:
        """Scores by an attribute: the formula over the fresh values, the configured policy for the others."""
        reading = self.read(key, rows)
        if reading.fresh.all():
            return formula(reading.values)
        return self.fill(reading.fresh, formula(reading.values[reading.fresh]))

    def fill(self, fresh: Mask, scores: Floats) -> Floats:
        """Scores of the fresh rows, spread over all rows: the others get 0, or under `ignore` the mean."""
        rest = float(scores.mean()) if self.stale.policy == "ignore" and len(scores) else 0.0
        filled = np.full(len(fresh), rest)
        filled[fresh] = scores
        return filled

    def prompt_tokens(self) -> int:
        """The request's prompt in tokens, by the reference's estimate; at least 1."""
        size = len(self.request.content.prompt) or self.request.body_size
        return max(size // BYTES_PER_TOKEN, 1)

    def uncached_tokens(self, rows: Rows) -> Floats:
        """Prompt tokens that each endpoint would have to compute. Shape: (rows,)."""
        tokens = float(self.prompt_tokens())
        match: PrefixMatch | None = self.attributes.get(PREFIX_MATCH)
        if match is None or not match.total:
            return np.full(len(rows), tokens)
        return np.maximum(tokens - match.matched[rows] * match.block_tokens, 0.0)

    def __repr__(self) -> str:
        return f"<Cycle {self.request.id!r}: {len(self.candidates)} candidates>"
