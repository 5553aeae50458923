"""`cold-prefix-scorer`: gives a prompt that isn't cached to the endpoint that has recently computed the least.

The endpoint is one of those that are about as busy as the least busy one. So caches are replaced evenly, and of two
such prompts that come one after the other, the second doesn't wait for the first.
"""

from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from services.picker.scheduling.cycle import PREFIX_MATCH, TOKENIZED_PROMPT, Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import in_flight_load, prefix_match
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

HALF = 0.5


class ColdPrefixParameters(Struct, frozen=True, rename="camel"):
    """Which endpoints are about as busy as the least busy one, and which prompts are cached."""

    load_slack_tokens: Annotated[int, Meta(ge=0)] = 512
    affinity_threshold: Annotated[float, Meta(ge=0, le=1)] = 0.8
    """The share of a prompt from which on it is cached."""
    in_flight_load_producer_name: str = ""
    prefix_match_info_producer_name: str = ""


class ColdPrefixScorer(Scorer):
    """1 for all if each of them has the prompt. Otherwise, with t the tokens in flight and those that the request would
    add, n the blocks that were new to an endpoint of late, and b those of the prompt: `0.5 + 0.5 / (1 + (n − n_min) /
    b)` where t exceeds the least by no more than the slack, n_min being the least of these; else `0.5 · t_min / t`."""

    TYPE = "cold-prefix-scorer"
    BOUNDED = True
    Parameters = ColdPrefixParameters
    parameters: ColdPrefixParameters

    @classmethod
    def consumes(cls, parameters: ColdPrefixParameters) -> tuple[Input, ...]:
        match = prefix_match(parameters.prefix_match_info_producer_name)
        load = in_flight_load(parameters.in_flight_load_producer_name)
        return match, load, Input(TOKENIZED_PROMPT, optional=True)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        wanted, match = self.parameters, cycle.get(PREFIX_MATCH)
        if match is None or not match.total or not len(rows):
            return np.ones(len(rows))
        matched = match.matched.take(rows)
        if matched[matched.argmin()] >= wanted.affinity_threshold * match.total:
            return np.ones(len(rows))
        load = cycle.view.in_flight.expected_tokens(rows) + cycle.uncached_tokens(rows)
        recent = cycle.view.prefixes.recent.take(rows)
        cycle.note("InFlightTokens", rows, load)
        cycle.note("RecentPrefixBlocks", rows, recent)
        least = load[load.argmin()]
        near = load <= least + wanted.load_slack_tokens
        over = recent - np.minimum.reduce(recent, where=near, initial=np.inf)
        scores: Floats = HALF + HALF / (1.0 + np.maximum(over, 0.0) / match.total)
        busy = ~near
        scores[busy] = HALF * least / load[busy]
        return scores
