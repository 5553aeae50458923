"""`inflight-load-producer`: what a request weighs in the load in flight while it is under way.

The table itself is the view's, because every request is counted whatever is configured; this plugin says how many
tokens a request is charged with.
"""

from typing import Annotated, Any

from msgspec import Meta, Struct

from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, TOKENIZED_PROMPT, Cycle
from services.picker.scheduling.interfaces import Producer
from services.picker.scheduling.named_attribute import prefix_match
from services.picker.state.inflight import MAX_TOKENS
from shared.plugin import Input


class InFlightLoadParameters(Struct, frozen=True, rename="camel"):
    """Whether the tokens that the request will generate are charged too, and how they are estimated."""

    add_estimated_output_tokens: bool = False
    output_ratio: Annotated[float, Meta(ge=0)] = 1.5
    """Output tokens per prompt token."""
    max_estimated_output_tokens: Annotated[int, Meta(ge=0)] = 0
    """0 means no limit."""
    prefix_match_info_producer_name: str = ""
    sync_cross_replica_state: Any = None
    """Pickers always share their load; read so that documents that set it load."""


class InFlightLoadProducer(Producer):
    """Charges the prompt tokens that the endpoint has to compute, and on request an estimate of the output."""

    TYPE = "inflight-load-producer"
    Parameters = InFlightLoadParameters
    PRODUCES = (IN_FLIGHT_LOAD,)
    parameters: InFlightLoadParameters

    @classmethod
    def consumes(cls, parameters: InFlightLoadParameters) -> tuple[Input, ...]:
        """Cached tokens weigh nothing."""
        match = prefix_match(parameters.prefix_match_info_producer_name, optional=True)
        return match, Input(TOKENIZED_PROMPT, optional=True)

    @property
    def until_end(self) -> bool:
        """Whether the tokens count until the end of the response; else until it begins to come."""
        return self.parameters.add_estimated_output_tokens

    def tokens(self, cycle: Cycle, row: int) -> int:
        """What the request is charged with on this endpoint."""
        charged = cycle.uncached_tokens_at(row)
        if self.parameters.add_estimated_output_tokens:
            estimate = round(min(cycle.prompt_tokens * self.parameters.output_ratio, MAX_TOKENS))
            if cycle.request.content.output_limit is not None:
                estimate = min(estimate, cycle.request.content.output_limit)
            estimate *= cycle.request.content.parallel
            if self.parameters.max_estimated_output_tokens:
                estimate = min(estimate, self.parameters.max_estimated_output_tokens)
            charged += estimate
        return min(charged, MAX_TOKENS)
