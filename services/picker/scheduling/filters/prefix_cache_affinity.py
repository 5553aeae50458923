"""`prefix-cache-affinity-filter`: keeps the endpoints that have the prompt in their caches, until they are saturated.

They are saturated when the prompts that wait to be computed there take longer than those elsewhere, by more than the
penalty that affinity is worth. In-flight tokens and the peak prefill throughput say how long that is. They are also
saturated when they have too many more requests in flight: where most of each prompt is cached, nothing waits to be
computed. Then one request moves, and the others follow when the prompt is computed there. An endpoint that seems to be
down doesn't count.
"""

from typing import Annotated, Literal

import numpy as np
from msgspec import Meta, Struct, field

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle
from services.picker.scheduling.interfaces import Filter
from services.picker.scheduling.named_attribute import in_flight_load, prefix_match
from services.picker.state.layout import Mask, Rows
from shared.plugin import Input


class PrefixCacheAffinityParameters(Struct, frozen=True, rename="camel"):
    """What counts as a cached prompt, and how much longer it may take there."""

    affinity_threshold: Annotated[float, Meta(le=1)] = 0.8
    """The matching share of a prompt; zero and less means that everything passes."""
    exploration_probability: Annotated[float, Meta(ge=0, le=1)] = 0.0
    max_ttft_penalty_ms: Annotated[float, Meta(ge=0)] = field(default=18_000.0, name="maxTTFTPenaltyMs")
    """Milliseconds; 0: the load doesn't matter."""
    peak_prefill_throughput: Annotated[float, Meta(gt=0)] = 15_928.0
    """Tokens a second that one endpoint computes."""
    max_request_gap: Annotated[int, Meta(ge=0)] = 0
    """Requests in flight beyond the least busy endpoint's; 0: they don't matter."""
    ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput"
    prefix_match_info_producer_name: str = ""
    in_flight_load_producer_name: str = ""
    latency_prediction_info_producer_name: str = ""
    """Read so that documents load that set it."""


class PrefixCacheAffinityFilter(Filter):
    """Narrows to `matched / total ≥ affinityThreshold`, unless the least in-flight time there exceeds the least
    elsewhere by more than the penalty, or the requests in flight exceed the least by more than their gap."""

    TYPE = "prefix-cache-affinity-filter"
    BOUNDED = True
    PREFERS = True
    Parameters = PrefixCacheAffinityParameters
    parameters: PrefixCacheAffinityParameters

    @classmethod
    def consumes(cls, parameters: PrefixCacheAffinityParameters) -> tuple[Input, ...]:
        match = prefix_match(parameters.prefix_match_info_producer_name)
        return match, in_flight_load(parameters.in_flight_load_producer_name)

    @classmethod
    def deprecations(cls, parameters: PrefixCacheAffinityParameters) -> list[str]:
        if parameters.ttft_source == "prefillThroughput":
            return []
        return ["ttftSource: latencies aren't predicted here; peakPrefillThroughput counts"]

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        wanted = self.parameters
        if len(rows) <= 1 or wanted.affinity_threshold <= 0:
            return rows
        if wanted.exploration_probability and cycle.random.random() < wanted.exploration_probability:
            return rows
        match = cycle.get(PREFIX_MATCH)
        if match is None or not match.total:
            return rows
        matched = match.matched.take(rows)
        cycle.note(PREFIX_MATCH.wire, rows, matched)
        sticky = matched / match.total >= wanted.affinity_threshold
        if not sticky[sticky.argmax()]:
            return rows
        others = ~sticky
        if unhealthy := cycle.view.health.unhealthy:
            up = ~np.isin(rows, list(unhealthy))
            sticky, others = sticky & up, others & up
        among = int(np.count_nonzero(sticky))
        if among and wanted.max_request_gap:
            requests = cycle.view.in_flight.expected_requests(rows)
            if requests[requests.argmax()] - requests[requests.argmin()] > wanted.max_request_gap:
                cycle.note("InFlightRequests", rows, requests)
                least = np.minimum.reduce(requests, where=sticky | others, initial=np.inf)
                free = requests <= least + wanted.max_request_gap
                if not (sticky & free).any():
                    spread: Rows = rows[free]
                    return spread
                if self._computed(cycle, rows, sticky, free):
                    sticky, others = sticky & free, others & free
                    among = int(np.count_nonzero(sticky))
        if among in (0, len(rows)):
            return rows
        if wanted.max_ttft_penalty_ms and others.any():
            tokens = cycle.view.in_flight.expected_tokens(rows)
            cycle.note("InFlightTokens", rows, tokens)
            gap = float(np.minimum.reduce(tokens[sticky]) - np.minimum.reduce(tokens[others]))
            if gap / wanted.peak_prefill_throughput * 1000.0 > wanted.max_ttft_penalty_ms:
                return rows
        kept: Rows = rows[sticky]
        return kept

    def _computed(self, cycle: Cycle, rows: Rows, sticky: Mask, free: Mask) -> bool:
        """Whether the free ones of the sticky endpoints have computed the prompt, rather than that they still do."""
        tokens = cycle.view.in_flight.expected_tokens(rows)
        cycle.note("InFlightTokens", rows, tokens)
        there, elsewhere = tokens[sticky & free], tokens[sticky & ~free]
        return not len(elsewhere) or bool(np.minimum.reduce(there) <= np.minimum.reduce(elsewhere))
