"""The settings of a simulated model server.

The defaults are those of a medium GPU: 16 requests in a batch, 65 536 tokens of KV cache, 5 000 prompt tokens a second,
15 ms a token, and two thirds slower with a full batch. `speed` scales all times of the model.
"""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta, Struct

from shared.quantities import Duration, Size


class EngineType(StrEnum):
    """The engine of the metrics page; the names are those of the collector's built-in engines."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM_SERVE = "trtllm-serve"
    TRITON_TENSORRT_LLM = "triton-tensorrt-llm"
    TRITON = "triton"

    @property
    def metrics_path(self) -> str:
        """The path of the real server's metrics."""
        return "/prometheus/metrics" if self is EngineType.TRTLLM_SERVE else "/metrics"


class SimulatorSettings(Struct, frozen=True, kw_only=True):
    """Simulates a model server: the OpenAI API, a timing model, the metrics of real engines, and faults on request."""

    host: Annotated[str, Meta(min_length=1, description="address that the server listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="port of API and metrics; 0 uses a free one")] = 8000
    name: Annotated[
        str, Meta(description="name in the header x-simulator-endpoint of every response; default: host:port as bound")
    ] = ""
    engine: Annotated[EngineType, Meta(description="the engine whose metrics page is served")] = EngineType.VLLM
    models: Annotated[
        tuple[str, ...], Meta(min_length=1, description="served model names; the first is the base model's own")
    ] = ("simulated",)
    adapters: Annotated[
        tuple[str, ...], Meta(description="LoRA adapters of the base model that requests can name")
    ] = ()
    max_adapters: Annotated[int, Meta(ge=1, description="maximum loaded LoRA adapters (vLLM's --max-loras)")] = 4
    adapter_load_time: Annotated[Duration, Meta(description="time to load an adapter that isn't loaded")] = 0.2
    slots: Annotated[int, Meta(ge=1, description="maximum requests in the batch (vLLM's --max-num-seqs)")] = 16
    max_requests: Annotated[
        int,
        Meta(
            ge=1,
            description="maximum requests waiting and running; further ones get 503 (vLLM's --max-num-queued-reqs)",
        ),
    ] = 4096
    kv_blocks: Annotated[int, Meta(ge=1, description="KV cache blocks")] = 4096
    block_tokens: Annotated[int, Meta(ge=1, description="tokens in a KV cache block")] = 16
    prefix_caching: Annotated[bool, Meta(description="whether requests reuse the blocks of finished requests")] = True
    max_model_len: Annotated[
        int, Meta(ge=0, description="maximum tokens of prompt and output together; 0: as many as the KV cache holds")
    ] = 0
    prefill_time: Annotated[Duration, Meta(description="time for an uncached prompt token")] = 0.0002
    prefill_chunk: Annotated[
        int, Meta(ge=1, description="prompt tokens in one step of the engine (vLLM's --max-num-batched-tokens)")
    ] = 2048
    decode_time: Annotated[Duration, Meta(description="time for an output token of a request that runs alone")] = 0.015
    decode_growth: Annotated[
        float, Meta(ge=0, description="share of decode-time that every further request in the batch adds")
    ] = 0.045
    kv_transfer_time: Annotated[
        Duration, Meta(description="time to fetch the KV values of a prompt token that a prefill server has computed")
    ] = 0.00001
    sidecar: Annotated[
        bool,
        Meta(
            description="simulates llm-d's routing sidecar: x-prefiller-host-port names the server that prefills first"
        ),
    ] = False
    speed: Annotated[
        float, Meta(gt=0, description="factor by which all simulated times are shorter: 10 is ten times as fast")
    ] = 1.0
    output_tokens: Annotated[
        int,
        Meta(
            ge=1,
            description="mean tokens of a response that max_tokens doesn't cut; lengths range from half to one and a"
            " half of it",
        ),
    ] = 128
    stream_interval: Annotated[int, Meta(ge=1, description="tokens in one event of a streamed response")] = 1
    embedding_dimensions: Annotated[int, Meta(ge=1, le=65536, description="length of an embedding vector")] = 256
    page_bytes: Annotated[
        Size, Meta(description="size to which the metrics page is padded with unused families; 0: no padding")
    ] = 0
    max_body: Annotated[Size, Meta(description="request bodies above this get 413; 0 sets no limit")] = 64 * 2**20
    drain_timeout: Annotated[Duration, Meta(description="how long a stopping server waits for running requests")] = 30.0
    seed: Annotated[int, Meta(ge=0, description="seed of responses, their lengths and embeddings")] = 0
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="minimum severity of logged lines")
    ] = "info"
    log_format: Annotated[Literal["json", "console"], Meta(description="one JSON object per line, or text")] = "json"

    def __post_init__(self) -> None:
        """Raises ValueError for values that don't fit together."""
        if self.max_model_len > self.kv_tokens:
            raise ValueError(
                f"--max-model-len: {self.max_model_len} is more than the KV cache holds, "
                f"--kv-blocks * --block-tokens = {self.kv_tokens}"
            )
        if self.context_length < 2:
            raise ValueError(
                f"--max-model-len: {self.context_length} is too short for a prompt token and an output token"
            )
        names = [*self.models, *self.adapters]
        if "" in names:
            raise ValueError("--models and --adapters: a name is empty")
        if doubled := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"--models and --adapters: given more than once: {', '.join(doubled)}")

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens."""
        return self.kv_blocks * self.block_tokens

    @property
    def context_length(self) -> int:
        """Limit of prompt and output tokens together."""
        return self.max_model_len or self.kv_tokens
