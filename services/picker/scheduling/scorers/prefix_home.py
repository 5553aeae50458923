"""`prefix-home-scorer`: gives each prompt that no endpoint has cached a home, the same at every picker and every time.

Endpoints are ranked by a hash of endpoint and prompt (rendezvous hashing), among those that are about as busy as the
least busy one. So a prefix that caches have lost returns to where it was instead of displacing others elsewhere, and
pickers that see it for the first time at the same moment agree.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import in_flight_load
from services.picker.scheduling.producers.approx_prefix import PROMPT_BLOCKS
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

SHIFT = np.uint64(32)
FACTOR = np.uint64(0x9E3779B97F4A7C15)


class PrefixHomeParameters(Struct, frozen=True, rename="camel"):
    """How much busier than the least busy endpoint a home may be."""

    load_slack_tokens: Annotated[int, Meta(ge=0)] = 2048
    affinity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """The share of a prompt from which on an endpoint has it."""
    in_flight_load_producer_name: str = ""
    prefix_match_info_producer_name: str = ""


class PrefixHomeScorer(Scorer):
    """0.5 to 1 by rank for endpoints whose tokens in flight exceed the least by no more than the slack, else below 0.5,
    the less loaded the better; 1 for all where every candidate has the prompt."""

    TYPE = "prefix-home-scorer"
    BOUNDED = True
    Parameters = PrefixHomeParameters
    parameters: PrefixHomeParameters

    @classmethod
    def consumes(cls, parameters: PrefixHomeParameters) -> tuple[Input, ...]:
        producer = parameters.prefix_match_info_producer_name
        return (
            Input(PREFIX_MATCH, parameter="prefixMatchInfoProducerName", producer=producer),
            in_flight_load(parameters.in_flight_load_producer_name),
        )

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        wanted, size = self.parameters, len(rows)
        match, blocks = cycle.get(PREFIX_MATCH), cycle.get(PROMPT_BLOCKS)
        if match is None or not blocks or size < 2:
            return np.ones(size)
        matched = match.matched.take(rows)
        if matched[matched.argmin()] >= wanted.affinity_threshold * match.total:
            return np.ones(size)
        known = int(match.matched[match.matched.argmax()])
        load = cycle.view.in_flight.expected_tokens(rows) + cycle.uncached_tokens(rows)
        cycle.note("InFlightTokens", rows, load)
        over = load - (load[load.argmin()] + wanted.load_slack_tokens)
        scores: Floats = 0.5 + 0.5 * self._ranks(cycle, rows, blocks[min(known, len(blocks) - 1)])
        busy = over > 0
        scores[busy] = 0.5 / (1.0 + over[busy] / (wanted.load_slack_tokens + 1.0))
        return scores

    def _ranks(self, cycle: Cycle, rows: Rows, block: int) -> Floats:
        mixed = (cycle.layout.hashes.take(rows) ^ np.uint64(block)) * FACTOR
        mixed ^= mixed >> SHIFT
        mixed *= FACTOR
        ranks: Floats = (mixed >> np.uint64(11)) / float(2**53)
        return ranks
