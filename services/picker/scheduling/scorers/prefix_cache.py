"""`prefix-cache-scorer`: the more of the prompt an endpoint probably has in its KV cache, the better."""

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, to_builtins

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle
from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixParameters, former_size
from services.picker.state.layout import Floats, Rows
from shared.plugin import Input

PRODUCER = "approx-prefix-cache-producer"
FORMER = tuple(name for name in ApproxPrefixParameters.__struct_encode_fields__ if name != "capacityFactor")
"""The index's own parameters, which stood here while the scorer owned the index (GIE 0.5 to 1.4)."""
IN_BYTES = ("blockSize", "hashBlockSize")
TRACKING = "cache_tracking"


class PrefixCacheParameters(Struct, frozen=True, rename="camel"):
    """Weighs the share of the prompt that matches against its length."""

    match_length_weight: Annotated[float, Meta(ge=0, le=1)] = 0.0
    match_length_scale_tokens: Annotated[int, Meta(gt=0)] = 8192
    prefix_match_info_producer_name: str = ""
    auto_tune: bool | None = None
    block_size_tokens: Annotated[int, Meta(ge=0)] | None = None
    block_size: Annotated[int, Meta(ge=0)] | None = None
    hash_block_size: Annotated[int, Meta(ge=0)] | None = None
    max_prefix_blocks_to_match: Annotated[int, Meta(ge=0)] | None = None
    max_prefix_tokens_to_match: Annotated[int, Meta(ge=0)] | None = None
    lru_capacity_per_server: Annotated[int, Meta(gt=0)] | None = None
    mode: Literal["estimate", "cache_tracking"] | None = None
    """llm-d 0.2's; `estimate` is what the scorer does."""
    indexer_config: dict[str, Any] | None = None
    kv_events_config: dict[str, Any] | None = None
    kv_cache_redis_addr: str = ""

    def __post_init__(self) -> None:
        tracking = {
            "indexerConfig": self.indexer_config,
            "kvEventsConfig": self.kv_events_config,
            "kvCacheRedisAddr": self.kv_cache_redis_addr,
        }
        given = [name for name, value in tracking.items() if value]
        if self.mode == TRACKING:
            raise ValueError(
                f"mode: {TRACKING!r} of llm-d 0.2 to 0.5 scored by the KV-cache blocks that model servers reported. "
                "llm-d replaced it by the plugin type precise-prefix-cache-producer, which isn't available here. "
                f"Leave out {', '.join(['mode', *given])}: the scorer then goes by where earlier prompts were sent"
            )
        if given:
            raise ValueError(f"{' and '.join(given)}: of mode {TRACKING!r}, which isn't available here; leave it out")

    def former(self) -> dict[str, Any]:
        """The index's parameters that were given here."""
        given: dict[str, Any] = to_builtins(self)
        return {name: given[name] for name in FORMER if given[name] is not None}


class PrefixCacheScorer(Scorer):
    """`w · min(1, matched tokens / scale)² + (1 − w) · matched / total blocks`."""

    TYPE = "prefix-cache-scorer"
    BOUNDED = True
    Parameters = PrefixCacheParameters
    parameters: PrefixCacheParameters

    @classmethod
    def deprecations(cls, parameters: PrefixCacheParameters) -> list[str]:
        mode = ["mode is deprecated, and has no effect; leave it out"] if parameters.mode else []
        return mode + [
            former_size(name, value, parameters.block_size_tokens, f" on {PRODUCER}")
            if name in IN_BYTES
            else f"{name} is deprecated here; write it on {PRODUCER}"
            for name, value in parameters.former().items()
        ]

    @classmethod
    def consumes(cls, parameters: PrefixCacheParameters) -> tuple[Input, ...]:
        return (
            Input(
                PREFIX_MATCH,
                parameter="prefixMatchInfoProducerName",
                producer=parameters.prefix_match_info_producer_name,
                producer_parameters=parameters.former(),
            ),
        )

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        match = cycle.get(PREFIX_MATCH)
        if match is None or not match.total:
            return np.zeros(len(rows))
        matched = match.matched if rows is cycle.layout.all_rows else match.matched.take(rows)
        cycle.note(PREFIX_MATCH.wire, rows, matched)
        share: Floats = matched / match.total
        weight = self.parameters.match_length_weight
        if weight:
            length = np.minimum(matched * match.block_tokens / self.parameters.match_length_scale_tokens, 1.0) ** 2
            share = weight * length + (1.0 - weight) * share
        return share
