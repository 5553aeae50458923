"""Model server engines: the metrics from which each gives the standard attributes.

The names are those of the Gateway API Inference Extension's model server protocol and of the Go EPP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from services.collector.page.query import MetricQuery
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
"""The alternative names of a metric in order of preference; empty if the engine doesn't have it."""

DEFAULT_BLOCK_SIZE_LABEL = "block_size"
DEFAULT_NUM_BLOCKS_LABEL = "num_gpu_blocks"


class CustomMetric(Struct, frozen=True):
    """A user-defined attribute and its query."""

    key: AttributeKey[float]
    query: MetricQuery


class Engine(Struct, frozen=True, kw_only=True):
    """The metrics of an engine."""

    name: str
    queued_requests: Specs = ()
    """Waiting requests."""
    running_requests: Specs = ()
    """Running requests."""
    all_requests: Specs = ()
    """Waiting and running requests."""
    kv_usage: Specs = ()
    """Share of the KV cache in use, 0 to 1."""
    used_kv_blocks: Specs = ()
    """KV cache blocks in use."""
    max_kv_blocks: Specs = ()
    """KV cache blocks in total; `cache_num_blocks` or the label in `cache_info` stand in for it."""
    used_kv_tokens: Specs = ()
    """Tokens in the KV cache."""
    max_kv_tokens: Specs = ()
    """Tokens that fit into the KV cache."""
    lora: Specs = ()
    """A series per set of adapters, with the adapters in its labels and a timestamp as its value."""
    cache_info: Specs = ()
    """A series with the KV cache's dimensions in its labels."""
    cache_block_size_label: str = DEFAULT_BLOCK_SIZE_LABEL
    cache_num_blocks_label: str = DEFAULT_NUM_BLOCKS_LABEL
    cache_block_size: Specs = ()
    """Tokens per block, as a gauge."""
    cache_num_blocks: Specs = ()
    """Blocks, as a gauge."""
    custom: tuple[CustomMetric, ...] = ()
    prefixes: tuple[str, ...] = ()
    """Prefixes of the engine's metric names."""

    def provides(self, key: AttributeKey[Any]) -> bool:
        """Whether the engine's metrics give the attribute, directly or derived."""
        if key in DERIVATIONS:
            return any(all(getattr(self, field) for field in fields) for fields in DERIVATIONS[key])
        return any(metric.key == key for metric in self.custom)


DERIVATIONS: Mapping[AttributeKey[Any], tuple[tuple[str, ...], ...]] = {
    WAITING_QUEUE_SIZE: (("queued_requests",), ("all_requests", "running_requests")),
    RUNNING_REQUESTS_SIZE: (("running_requests",),),
    KV_CACHE_USAGE: (
        ("kv_usage",),
        ("used_kv_blocks", "max_kv_blocks"),
        ("used_kv_blocks", "cache_num_blocks"),
        ("used_kv_blocks", "cache_info"),
        ("used_kv_tokens", "max_kv_tokens"),
    ),
    CACHE_BLOCK_SIZE: (("cache_block_size",), ("cache_info",)),
    CACHE_NUM_BLOCKS: (("cache_num_blocks",), ("cache_info",)),
    ACTIVE_MODELS: (("lora",),),
    WAITING_MODELS: (("lora",),),
    MAX_ACTIVE_MODELS: (("lora",),),
}
"""By attribute: the combinations of engine fields that give it, the direct one first."""


def specs(*texts: str) -> Specs:
    """Parses specifications and drops empty ones. Raises `SpecError`."""
    return tuple(spec for text in texts if (spec := parse_spec(text)) is not None)


VLLM = Engine(
    name="vllm",
    queued_requests=specs("vllm:num_requests_waiting"),
    running_requests=specs("vllm:num_requests_running"),
    # The second is the name before vLLM 0.10.
    kv_usage=specs("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    lora=specs("vllm:lora_requests_info"),
    cache_info=specs("vllm:cache_config_info"),
    prefixes=("vllm:",),
)
SGLANG = Engine(
    name="sglang",
    queued_requests=specs("sglang:num_queue_reqs"),
    running_requests=specs("sglang:num_running_reqs"),
    kv_usage=specs("sglang:token_usage"),
    cache_info=specs("sglang:cache_config_info"),
    cache_block_size_label="page_size",
    cache_num_blocks_label="num_pages",
    prefixes=("sglang:",),
)
TRTLLM_SERVE = Engine(
    name="trtllm-serve",
    queued_requests=specs("trtllm_num_requests_waiting"),
    running_requests=specs("trtllm_num_requests_running"),
    kv_usage=specs("trtllm_kv_cache_utilization"),
    cache_block_size=specs("trtllm_kv_cache_tokens_per_block"),
    cache_num_blocks=specs("trtllm_kv_cache_max_blocks"),
    prefixes=("trtllm_",),
)
TRITON_TENSORRT_LLM = Engine(
    name="triton-tensorrt-llm",
    queued_requests=specs("nv_trt_llm_request_metrics{request_type=waiting}"),
    running_requests=specs("nv_trt_llm_request_metrics{request_type=scheduled}"),
    kv_usage=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
    cache_block_size=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    cache_num_blocks=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
    prefixes=("nv_trt_llm_",),
)
TRITON = Engine(
    name="triton",
    # There is no gauge of running requests: nv_inference_exec_count counts executions since the start.
    queued_requests=specs("nv_inference_pending_request_count"),
    prefixes=("nv_inference_",),
)

BUILT_IN: tuple[Engine, ...] = (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON)
"""In the order in which the core extractor tries them on an unknown page."""


def built_in(name: str) -> Engine | None:
    return next((engine for engine in BUILT_IN if engine.name == name), None)


def engines_by_name(configured: Sequence[Engine] = ()) -> dict[str, Engine]:
    """The configured engines in their order, then the built-in ones with other names."""
    engines = {engine.name: engine for engine in configured}
    return engines | {engine.name: engine for engine in BUILT_IN if engine.name not in engines}
