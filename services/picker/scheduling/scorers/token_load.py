"""`token-load-scorer`: the fewer tokens are in flight at an endpoint, this request's included, the better."""

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import PREFIX_MATCH, TOKENIZED_PROMPT, Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.named_attribute import in_flight_load
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

DEFAULT_THRESHOLD = 4_194_304
"""128 requests of 32 768 tokens, the reference's default."""


class TokenLoadParameters(Struct, frozen=True, rename="camel"):
    """From how many tokens on an endpoint scores 0; zero or less means the default."""

    queue_threshold_tokens: int = DEFAULT_THRESHOLD
    in_flight_load_producer_name: str = ""


class TokenLoadScorer(Scorer):
    """`1 − min(t, T) / T`, t being the tokens in flight and those that this request would add."""

    TYPE = "token-load-scorer"
    BOUNDED = True
    Parameters = TokenLoadParameters
    parameters: TokenLoadParameters

    @classmethod
    def consumes(cls, parameters: TokenLoadParameters) -> tuple[Input, ...]:
        load = in_flight_load(parameters.in_flight_load_producer_name)
        return load, Input(PREFIX_MATCH, optional=True), Input(TOKENIZED_PROMPT, optional=True)

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        threshold = float(self.parameters.queue_threshold_tokens)
        if threshold <= 0:
            threshold = float(DEFAULT_THRESHOLD)
        tokens = cycle.view.in_flight.expected_tokens(rows) + cycle.uncached_tokens(rows)
        cycle.note("InFlightTokens", rows, tokens)
        scores: Floats = np.minimum(tokens, threshold)
        scores /= -threshold
        scores += 1.0
        return scores
