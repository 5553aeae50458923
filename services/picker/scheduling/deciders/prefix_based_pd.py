"""`prefix-based-pd-decider`: prompts of which the decode endpoint has too little are prefilled elsewhere."""

from typing import Annotated

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import PREFIX_MATCH, TOKENIZED_PROMPT, Cycle
from services.picker.scheduling.interfaces import Decider
from shared.plugin import Input


class PrefixBasedPdParameters(Struct, frozen=True, rename="camel"):
    """From how many tokens on it is worth it."""

    non_cached_tokens: Annotated[int, Meta(ge=0)] = 0
    """That aren't cached; 0: never."""
    prompt_tokens: Annotated[int, Meta(ge=0)] = 0
    """Of the whole prompt."""


class PrefixBasedPdDecider(Decider):
    """`tokens ≥ promptTokens` and `tokens − cached ≥ nonCachedTokens`."""

    TYPE = "prefix-based-pd-decider"
    CONSUMES = (PREFIX_MATCH, Input(TOKENIZED_PROMPT, optional=True))
    Parameters = PrefixBasedPdParameters
    parameters: PrefixBasedPdParameters

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        least = self.parameters.non_cached_tokens
        if not least or row is None or cycle.get(PREFIX_MATCH) is None:
            return False
        return cycle.prompt_tokens >= self.parameters.prompt_tokens and cycle.uncached_tokens_at(row) >= least
