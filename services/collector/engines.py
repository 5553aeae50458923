"""Model server engines: under which names each publishes what schedulers need.

The names are those of the Gateway API Inference Extension's model server protocol and of the Go original's table. An
engine that a configuration defines under a built-in's name replaces it completely.
"""

from collections.abc import Sequence

from msgspec import Struct

from services.collector.spec import MetricSpec, SpecError, parse_spec

Specs = tuple[MetricSpec, ...]
"""One quantity's specifications in order of preference; empty where the engine doesn't publish it."""

DEFAULT_BLOCK_SIZE_LABEL = "block_size"
DEFAULT_NUM_BLOCKS_LABEL = "num_gpu_blocks"
RESERVED = "default"
"""No engine's name: it would read as the default engine's."""


class Engine(Struct, frozen=True, kw_only=True):
    """Where an engine's pages have which quantity."""

    name: str
    queued: Specs = ()
    """Requests that wait."""
    running: Specs = ()
    """Requests in the batch."""
    kv_usage: Specs = ()
    """Share of the KV cache in use, 0 to 1."""
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


class EngineConfig(Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry of `engineConfigs`. An empty specification switches its metric off.

    Raises ValueError on creation, with every specification that isn't one.
    """

    name: str
    queued_requests_spec: str = ""
    running_requests_spec: str = ""
    kv_usage_spec: str = ""
    lora_spec: str = ""
    cache_info_spec: str = ""
    cache_block_size_label_name: str = ""
    cache_num_blocks_label_name: str = ""
    cache_block_size_spec: str = ""
    cache_num_blocks_spec: str = ""

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if not self.name:
            wrong.append("name: an engine needs one")
        elif self.name == RESERVED:
            wrong.append(f"name: {RESERVED!r} is reserved, name the engine in defaultEngine instead")
        for field, written in zip(self.__struct_fields__, self.__struct_encode_fields__, strict=True):
            if field.endswith("_spec"):
                try:
                    parse_spec(getattr(self, field))
                except SpecError as error:
                    wrong.append(f"{written}: {error}")
        if wrong:
            raise ValueError("; ".join(wrong))

    def engine(self) -> Engine:
        return Engine(
            name=self.name,
            queued=specs(self.queued_requests_spec),
            running=specs(self.running_requests_spec),
            kv_usage=specs(self.kv_usage_spec),
            lora=specs(self.lora_spec),
            cache_info=specs(self.cache_info_spec),
            cache_block_size_label=self.cache_block_size_label_name or DEFAULT_BLOCK_SIZE_LABEL,
            cache_num_blocks_label=self.cache_num_blocks_label_name or DEFAULT_NUM_BLOCKS_LABEL,
            cache_block_size=specs(self.cache_block_size_spec),
            cache_num_blocks=specs(self.cache_num_blocks_spec),
        )


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
)
SGLANG = Engine(
    name="sglang",
    queued=specs("sglang:num_queue_reqs"),
    running=specs("sglang:num_running_reqs"),
    kv_usage=specs("sglang:token_usage"),
    cache_info=specs("sglang:cache_config_info"),
    cache_block_size_label="page_size",
    cache_num_blocks_label="num_pages",
)
TRTLLM_SERVE = Engine(
    name="trtllm-serve",
    queued=specs("trtllm_num_requests_waiting"),
    running=specs("trtllm_num_requests_running"),
    kv_usage=specs("trtllm_kv_cache_utilization"),
    cache_block_size=specs("trtllm_kv_cache_tokens_per_block"),
    cache_num_blocks=specs("trtllm_kv_cache_max_blocks"),
)
TRITON_TENSORRT_LLM = Engine(
    name="triton-tensorrt-llm",
    queued=specs("nv_trt_llm_request_metrics{request_type=waiting}"),
    running=specs("nv_trt_llm_request_metrics{request_type=scheduled}"),
    kv_usage=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}"),
    cache_block_size=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}"),
    cache_num_blocks=specs("nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"),
)
TRITON = Engine(
    name="triton",
    queued=specs("nv_inference_pending_request_count"),
    running=specs("nv_inference_exec_count"),
)

BUILT_IN: tuple[Engine, ...] = (VLLM, SGLANG, TRTLLM_SERVE, TRITON_TENSORRT_LLM, TRITON)


def table(own: Sequence[Engine] = ()) -> dict[str, Engine]:
    """Engines by name: the built-ins, and those of a configuration, which go before."""
    return {engine.name: engine for engine in (*BUILT_IN, *own)}
