"""Model server engines: under which names each publishes what schedulers need, or what that can be derived from.

The names are those of the Gateway API Inference Extension's model server protocol and of the Go original's table.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from services.collector.page.measure import Measure
from services.collector.page.spec import MetricSpec, parse_spec
from shared.attributes import (
    ACTIVE_MODELS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    MAX_ACTIVE_MODELS,
    RUNNING_REQUESTS_SIZE,
    WAITING_MODELS,
    WAITING_QUEUE_SIZE,
    AttributeKey,
)

Specs = tuple[MetricSpec, ...]
"""One quantity's specifications in order of preference; empty where the engine doesn't publish it."""

DEFAULT_BLOCK_SIZE_LABEL = "block_size"
DEFAULT_NUM_BLOCKS_LABEL = "num_gpu_blocks"


class CustomMetric(Struct, frozen=True):
    """An attribute of the user's own, and what it is made of."""

    key: AttributeKey[float]
    measure: Measure


class Engine(Struct, frozen=True, kw_only=True):
    """Where an engine's pages have which quantity."""

    name: str
    queued: Specs = ()
    """Requests that wait."""
    running: Specs = ()
    """Requests in the batch."""
    all: Specs = ()
    """Requests that wait or run."""
    kv_usage: Specs = ()
    """Share of the KV cache in use, 0 to 1."""
    used_blocks: Specs = ()
    """KV cache blocks in use."""
    max_blocks: Specs = ()
    """KV cache blocks that there are; without it, `cache_num_blocks` or the label in `cache_info`."""
    used_tokens: Specs = ()
    """Tokens in the KV cache."""
    max_tokens: Specs = ()
    """Tokens that the KV cache holds."""
    lora: Specs = ()
    """A series per set of adapters, its value the time at which it was said; adapters are in its labels."""
    cache_info: Specs = ()
    """A series that has the KV cache's dimensions as labels."""
    cache_block_size_label: str = DEFAULT_BLOCK_SIZE_LABEL
    cache_num_blocks_label: str = DEFAULT_NUM_BLOCKS_LABEL
    cache_block_size: Specs = ()
    """Tokens in a block, as a gauge."""
    cache_num_blocks: Specs = ()
    """Blocks, as a gauge."""
    custom: tuple[CustomMetric, ...] = ()
    prefixes: tuple[str, ...] = ()
    """How the names of the engine's metrics begin."""

    def gives(self, key: AttributeKey[Any]) -> bool:
        """Whether the attribute can be had from a page that shows all that this names, directly or derived."""
        if key in WAYS:
            return any(all(getattr(self, field) for field in way) for way in WAYS[key])
        return any(one.key == key for one in self.custom)


WAYS: Mapping[AttributeKey[Any], tuple[tuple[str, ...], ...]] = {
    WAITING_QUEUE_SIZE: (("queued",), ("all", "running")),
    RUNNING_REQUESTS_SIZE: (("running",),),
    KV_CACHE_USAGE: (
        ("kv_usage",),
        ("used_blocks", "max_blocks"),
        ("used_blocks", "cache_num_blocks"),
        ("used_blocks", "cache_info"),
        ("used_tokens", "max_tokens"),
    ),
    CACHE_BLOCK_SIZE: (("cache_block_size",), ("cache_info",)),
    CACHE_NUM_BLOCKS: (("cache_num_blocks",), ("cache_info",)),
    ACTIVE_MODELS: (("lora",),),
    WAITING_MODELS: (("lora",),),
    MAX_ACTIVE_MODELS: (("lora",),),
}
"""The fields of an engine that each attribute can be had from, all of a tuple together; the direct one first."""


def specs(*texts: str) -> Specs:
    """Specifications in order of preference, without empty ones. Raises `SpecError`."""
    return tuple(spec for text in texts if (spec := parse_spec(text)) is not None)


VLLM = Engine(
    name="vllm",
    queued=specs("vllm:num_requests_waiting"),
    running=specs("vllm:num_requests_running"),
    # The second is the name before vLLM 0.10.
    kv_usage=specs("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    lora=specs("vllm:lora_requests_info"),
    cache_info=specs("vllm:cache_config_info"),
    prefixes=("vllm:",),
)
SGLANG = Engine(
    name="sglang",
    queued=specs("sglang:num_queue_reqs"),
    running=specs("sglang:num_running_reqs"),
    kv_usage=specs("sglang:token_usage"),
    cache_info=specs("sglang:cache_config_info"),
    cache_block_size_label="page_size",
    cache_num_blocks_label="num_pages",
    prefixes=("sglang:",),
)
TRTLLM_SERVE = Engine(
    name="trtllm-serve",
    queued=specs("trtllm_num_requests_waiting"),
    running=specs("trtllm_num_requests_running"),
    kv_usage=specs("trtllm_kv_cache_utilization"),
    cache_block_size=specs("trtllm_kv_cache_tokens_per_block"),
    cache_num_blocks=specs("trtllm_kv_cache_max_blocks"),
    prefixes=("trtllm_",),
)
TRITON_TENSORRT_LLM = Engine(
    name="triton-tensorrt-llm",
    queued=specs("nv_trt_llm_request_metrics{request_type=waiting}"),
    running=specs("nv_trt_llm_request_metrics{request_type=scheduled}"),
    kv_usage=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
    cache_block_size=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    cache_num_blocks=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
    prefixes=("nv_trt_llm_",),
)
TRITON = Engine(
    name="triton",
    # No gauge says how many requests run: nv_inference_exec_count counts executions since the server's start.
    queued=specs("nv_inference_pending_request_count"),
    prefixes=("nv_inference_",),
)

BUILT_IN: tuple[Engine, ...] = (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON)
"""In the order in which they are looked for on a page whose engine isn't known."""


def built_in(name: str) -> Engine | None:
    return next((one for one in BUILT_IN if one.name == name), None)


def table(own: Sequence[Engine] = ()) -> dict[str, Engine]:
    """Engines by name: those of a configuration in its order, then the built-ins whose names they leave."""
    known = {engine.name: engine for engine in own}
    return known | {engine.name: engine for engine in BUILT_IN if engine.name not in known}
