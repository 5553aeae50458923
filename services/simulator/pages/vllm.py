"""vLLM's page: every family of a recorded vLLM 0.32 page, with its labels, help texts and buckets.

Series of adapters stay on the page after they have passed, as vLLM's do: the newest is the one with the highest value.
"""

from collections.abc import Callable, Sequence

from services.simulator.counters import FinishReason
from services.simulator.exposition import Family, HistogramFamily, Labels, Part, Text, braces, head, number
from services.simulator.gauges import Moment
from services.simulator.histogram import Histogram

KEPT_ADAPTER_SERIES = 64
"""Adapter combinations on the page; vLLM keeps all that it ever had."""

_Getter = Callable[[Moment], float]


def page(model: str, context_length: int, prefix_caching: bool, started: float) -> list[Part[Moment]]:
    """The page's parts, after those of the process itself. `started` is in Unix seconds, for the `_created` series."""
    builder = _Builder({"engine": "0", "model_name": model}, started)
    _flops(builder)
    _gauges(builder)
    _cache_counters(builder)
    _token_counters(builder)
    _request_counters(builder, model)
    _histograms(builder)
    builder.parts.append(_AdapterSeries())
    builder.parts.append(_CacheConfig(context_length, prefix_caching))
    return builder.parts


class _Builder:
    def __init__(self, labels: Labels, started: float) -> None:
        self.labels = labels
        self.started = number(started)
        self.parts: list[Part[Moment]] = []

    def gauge(self, name: str, help: str, series: Sequence[tuple[Labels, _Getter]]) -> None:
        self.parts.append(Family(f"vllm:{name}", "gauge", help, [({**self.labels, **own}, get) for own, get in series]))

    def counter(
        self, name: str, help: str, series: Sequence[tuple[Labels, _Getter]], labels: Labels | None = None
    ) -> None:
        """A counter and its `_created` gauge; `name` is without `_total`."""
        base = self.labels if labels is None else labels
        full = [({**base, **own}, get) for own, get in series]
        self.parts.append(Family(f"vllm:{name}_total", "counter", help, full))
        self._created(name, help, [one for one, _ in full])

    def histogram(self, name: str, help: str, getter: Callable[[Moment], Histogram]) -> None:
        self.parts.append(HistogramFamily(f"vllm:{name}", help, self.labels, getter))
        self._created(name, help, [self.labels])

    def _created(self, name: str, help: str, series: Sequence[Labels]) -> None:
        name = f"vllm:{name}_created"
        lines = "".join(f"{name}{braces(labels)} {self.started}\n" for labels in series)
        self.parts.append(Text(head(name, "gauge", help) + lines))


def _zero(moment: Moment) -> float:
    return 0


def _flops(add: _Builder) -> None:
    what = {
        "estimated_flops_per_gpu": "Estimated number of floating point operations per GPU "
        "(for Model Flops Utilization calculations).",
        "estimated_read_bytes_per_gpu": "Estimated number of bytes read from memory per GPU "
        "(for Model Flops Utilization calculations).",
        "estimated_write_bytes_per_gpu": "Estimated number of bytes written to memory per GPU "
        "(for Model Flops Utilization calculations).",
    }
    for name, help in what.items():
        add.counter(name, help, [({}, _zero)])


def _gauges(add: _Builder) -> None:
    add.gauge("num_requests_running", "Number of requests in model execution batches.", [({}, lambda now: now.running)])
    add.gauge("num_requests_waiting", "Number of requests waiting to be processed.", [({}, lambda now: now.waiting)])
    add.gauge(
        "num_requests_waiting_by_reason",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; "
        "'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked status). "
        "Sum of all reasons equals vllm:num_requests_waiting.",
        [
            ({"reason": "capacity"}, lambda now: now.waiting - now.deferred),
            ({"reason": "deferred"}, lambda now: now.deferred),
        ],
    )
    add.gauge(
        "engine_sleep_state",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        [
            ({"sleep_state": "awake"}, lambda now: 1),
            ({"sleep_state": "weights_offloaded"}, _zero),
            ({"sleep_state": "discard_all"}, _zero),
        ],
    )
    add.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", [({}, lambda now: now.kv_usage)])


def _cache_counters(add: _Builder) -> None:
    add.counter(
        "prefix_cache_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
        [({}, lambda now: now.counters.prefix_queries)],
    )
    add.counter(
        "prefix_cache_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
        [({}, lambda now: now.counters.prefix_hits)],
    )
    external = (
        "External prefix cache {} from KV connector cross-instance cache sharing, in terms of number of {} tokens."
    )
    add.counter("external_prefix_cache_queries", external.format("queries", "queried"), [({}, _zero)])
    add.counter("external_prefix_cache_hits", external.format("hits", "cached"), [({}, _zero)])
    multimodal = "Multi-modal cache {}, in terms of number of {} items."
    add.counter("mm_cache_queries", multimodal.format("queries", "queried"), [({}, _zero)])
    add.counter("mm_cache_hits", multimodal.format("hits", "cached"), [({}, _zero)])
    add.counter(
        "num_preemptions",
        "Cumulative number of preemption from the engine.",
        [({}, lambda now: now.counters.preemptions)],
    )


def _token_counters(add: _Builder) -> None:
    add.counter("prompt_tokens", "Number of prefill tokens processed.", [({}, lambda now: now.counters.prompt_tokens)])
    add.counter(
        "prompt_tokens_by_source",
        "Number of prompt tokens by source.",
        [
            ({"source": "local_compute"}, lambda now: now.counters.prompt_tokens - now.counters.cached_tokens),
            ({"source": "local_cache_hit"}, lambda now: now.counters.cached_tokens),
            ({"source": "external_kv_transfer"}, _zero),
        ],
    )
    add.counter(
        "prompt_tokens_cached",
        "Number of cached prompt tokens (local + external).",
        [({}, lambda now: now.counters.cached_tokens)],
    )
    add.counter(
        "prompt_tokens_cached_by_source",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host (offloaded to DRAM), "
        "disk, p2p (transferred from another vLLM instance) or external_unspecified. Counted at admission; sums to "
        "vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        [
            ({"source": "device"}, lambda now: now.counters.prefix_hits),
            ({"source": "host"}, _zero),
            ({"source": "p2p"}, _zero),
            ({"source": "disk"}, _zero),
            ({"source": "external_unspecified"}, _zero),
        ],
    )
    add.counter(
        "generation_tokens",
        "Number of generation tokens processed.",
        [({}, lambda now: now.counters.generation_tokens)],
    )


def _request_counters(add: _Builder, model: str) -> None:
    add.counter(
        "request_success",
        "Count of successfully processed requests.",
        [
            ({"finished_reason": "stop"}, lambda now: now.counters.finished[FinishReason.STOP]),
            ({"finished_reason": "length"}, lambda now: now.counters.finished[FinishReason.LENGTH]),
            ({"finished_reason": "abort"}, lambda now: now.counters.finished[FinishReason.ABORT]),
            ({"finished_reason": "error"}, _zero),
            ({"finished_reason": "repetition"}, _zero),
        ],
    )
    add.counter(
        "admission_rejections",
        "Number of admission attempts rejected by a queue limit, by reason.",
        [
            ({"reason": "max_num_queued_reqs"}, lambda now: now.counters.rejections),
            ({"reason": "max_num_queued_tokens"}, _zero),
        ],
        labels={"model_name": model},
    )


def _histograms(add: _Builder) -> None:
    tokens = "Number of {} tokens processed."
    phase = "Histogram of time spent in {} phase for request."
    add.histogram("request_prompt_tokens", tokens.format("prefill"), lambda now: now.counters.request_prompt_tokens)
    add.histogram(
        "request_generation_tokens", tokens.format("generation"), lambda now: now.counters.request_generation_tokens
    )
    add.histogram(
        "iteration_tokens_total",
        "Histogram of number of tokens per engine_step.",
        lambda now: now.counters.step_tokens,
    )
    add.histogram(
        "request_max_num_generation_tokens",
        "Histogram of maximum number of requested generation tokens.",
        lambda now: now.counters.request_max_tokens,
    )
    add.histogram("request_params_n", "Histogram of the n request parameter.", lambda now: now.counters.params_n)
    add.histogram(
        "request_params_max_tokens",
        "Histogram of the max_tokens request parameter.",
        lambda now: now.counters.params_max_tokens,
    )
    add.histogram(
        "time_to_first_token_seconds",
        "Histogram of time to first token in seconds.",
        lambda now: now.counters.first_token,
    )
    add.histogram(
        "inter_token_latency_seconds",
        "Histogram of inter-token latency in seconds.",
        lambda now: now.counters.inter_token,
    )
    add.histogram(
        "request_time_per_output_token_seconds",
        "Histogram of time_per_output_token_seconds per request.",
        lambda now: now.counters.per_token,
    )
    add.histogram(
        "e2e_request_latency_seconds",
        "Histogram of e2e request latency in seconds.",
        lambda now: now.counters.end_to_end,
    )
    add.histogram("request_queue_time_seconds", phase.format("WAITING"), lambda now: now.counters.queue)
    add.histogram("request_inference_time_seconds", phase.format("RUNNING"), lambda now: now.counters.inference)
    add.histogram("request_prefill_time_seconds", phase.format("PREFILL"), lambda now: now.counters.prefill)
    add.histogram("request_decode_time_seconds", phase.format("DECODE"), lambda now: now.counters.decode)
    add.histogram(
        "request_num_preemptions",
        "Histogram of the number of times a request was preempted.",
        lambda now: now.counters.request_preemptions,
    )
    add.histogram(
        "request_prefill_kv_computed_tokens",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        lambda now: now.counters.prefill_computed,
    )


class _AdapterSeries:
    """`vllm:lora_requests_info`: a series for every combination there was, its value the time it was last true."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str], float] = {}

    def render(self, moment: Moment) -> str:
        name = "vllm:lora_requests_info"
        lines = [head(name, "gauge", "Running stats on lora requests.")]
        if moment.has_adapters:
            labels = (
                str(moment.max_adapters),
                ",".join(moment.running_adapters),
                ",".join(moment.waiting_adapters),
            )
            self._series[labels] = moment.wall
            if len(self._series) > KEPT_ADAPTER_SERIES:
                del self._series[min(self._series, key=self._series.__getitem__)]
            for (limit, running, waiting), at in self._series.items():
                own = {"max_lora": limit, "running_lora_adapters": running, "waiting_lora_adapters": waiting}
                lines.append(f"{name}{braces(own)} {number(at)}\n")
        return "".join(lines)

    def __repr__(self) -> str:
        return f"<_AdapterSeries {len(self._series)} combinations>"


class _CacheConfig:
    """`vllm:cache_config_info`: the configuration is in the labels."""

    def __init__(self, context_length: int, prefix_caching: bool) -> None:
        self._context_length = context_length
        self._prefix_caching = prefix_caching
        self._seen = (-1, -1)
        self._text = ""

    def render(self, moment: Moment) -> str:
        if (seen := (moment.block_tokens, moment.kv_blocks)) != self._seen:
            self._seen, self._text = seen, self._info(*seen)
        return self._text

    def _info(self, block_tokens: int, kv_blocks: int) -> str:
        none = (
            *("cache_hit_alignment_tokens", "hash_block_size", "kv_cache_layout", "kv_offloading_size"),
            *("mamba_block_size", "mamba_page_size_padded", "num_cpu_blocks", "num_gpu_blocks_override"),
            *("prefix_match_unit", "skip_page_size_padded", "sliding_window"),
        )
        false = (
            *("enable_mamba_shared_prefix_checkpoint", "is_attention_free", "kv_sharing_fast_prefill"),
            *("use_kda_recoverssm", "use_replayssm", "user_specified_block_size"),
        )
        labels = {
            **dict.fromkeys(none, "None"),
            **dict.fromkeys(false, "False"),
            **dict.fromkeys(("cache_dtype", "mamba_cache_dtype", "mamba_ssm_cache_dtype"), "auto"),
            "_block_size_resolved": "True",
            "block_size": str(block_tokens),
            "effective_attention_block_size": str(block_tokens),
            "enable_prefix_caching": str(self._prefix_caching),
            "engine": "0",
            "gpu_memory_utilization": "0.92",
            "kv_cache_dtype_skip_layers": "[]",
            "kv_cache_max_concurrency": str(block_tokens * kv_blocks / self._context_length),
            "kv_cache_memory_bytes": "None",
            "kv_cache_size_tokens": str(block_tokens * kv_blocks),
            "kv_offloading_backend": "native",
            "mamba_cache_mode": "none",
            "num_gpu_blocks": str(kv_blocks),
            "prefix_cache_retention_interval": "0",
            "prefix_caching_hash_algo": "xxhash",
            "replayssm_buffer_len": "16",
            "swa_bounded_replay": "True",
        }
        name = "vllm:cache_config_info"
        return f"{head(name, 'gauge', 'Information of the LLMEngine CacheConfig')}{name}{braces(labels)} 1.0\n"

    def __repr__(self) -> str:
        return f"<_CacheConfig {self._seen}>"
