"""trtllm-serve's page."""

from collections.abc import Callable

from services.simulator.counters import FinishReason
from services.simulator.exposition import Family, HistogramFamily, Part
from services.simulator.gauges import Moment
from services.simulator.histogram import Histogram

_Getter = Callable[[Moment], float]


def page(model: str, slots: int) -> list[Part[Moment]]:
    """The page's parts."""
    labels = {"engine_type": "trtllm", "model_name": model}
    gauges: dict[str, tuple[str, _Getter]] = {
        "num_requests_running": ("Active requests.", lambda now: now.running),
        "num_requests_waiting": ("Queued requests.", lambda now: now.waiting),
        "max_num_active_requests": ("Active requests at most.", lambda now: slots),
        "kv_cache_utilization": ("Share of the KV cache blocks in use.", lambda now: now.kv_usage),
        "kv_cache_hit_rate": ("Share of the prompt tokens that were cached.", _hit_rate),
        "kv_cache_max_blocks": ("KV cache blocks.", lambda now: now.kv_blocks),
        "kv_cache_free_blocks": ("Free KV cache blocks.", lambda now: now.kv_blocks - now.kv_used),
        "kv_cache_used_blocks": ("KV cache blocks in use.", lambda now: now.kv_used),
        "kv_cache_tokens_per_block": ("Tokens in a KV cache block.", lambda now: now.block_tokens),
        "num_context_requests": ("Requests whose prompt is being read.", lambda now: now.prefilling),
        "num_generation_requests": ("Requests that get tokens.", lambda now: now.running - now.prefilling),
        "num_scheduled_requests": ("Requests in the step.", lambda now: now.running),
        "num_paused_requests": ("Paused requests.", lambda now: 0),
        "max_batch_size_static": ("Requests in a batch at most.", lambda now: slots),
    }
    counters: dict[str, tuple[str, _Getter]] = {
        "prompt_tokens_total": ("Prompt tokens read.", lambda now: now.counters.prompt_tokens),
        "generation_tokens_total": ("Output tokens made.", lambda now: now.counters.generation_tokens),
        "prompt_cached_tokens_total": ("Prompt tokens that were cached.", lambda now: now.counters.cached_tokens),
        "num_requests_completed_total": (
            "Requests that ended.",
            lambda now: now.counters.finished[FinishReason.STOP] + now.counters.finished[FinishReason.LENGTH],
        ),
    }
    histograms: dict[str, tuple[str, Callable[[Moment], Histogram]]] = {
        "e2e_request_latency_seconds": ("Time of a whole request.", lambda now: now.counters.end_to_end),
        "time_to_first_token_seconds": ("Time to the first token.", lambda now: now.counters.first_token),
        "time_per_output_token_seconds": ("Time for an output token.", lambda now: now.counters.per_token),
        "request_queue_time_seconds": ("Time in the queue.", lambda now: now.counters.queue),
        "request_prefill_time_seconds": ("Time to read the prompt.", lambda now: now.counters.prefill),
        "request_decode_time_seconds": ("Time from the first token to the last.", lambda now: now.counters.decode),
        "request_inference_time_seconds": ("Time in the batch.", lambda now: now.counters.inference),
    }
    success: Family[Moment] = Family(
        "trtllm_request_success_total",
        "counter",
        "Requests that ended, by reason.",
        [
            ({**labels, "finished_reason": "stop"}, lambda now: now.counters.finished[FinishReason.STOP]),
            ({**labels, "finished_reason": "length"}, lambda now: now.counters.finished[FinishReason.LENGTH]),
        ],
    )
    return [
        success,
        *(HistogramFamily(f"trtllm_{name}", help, labels, get) for name, (help, get) in histograms.items()),
        *(Family(f"trtllm_{name}", "counter", help, [(labels, get)]) for name, (help, get) in counters.items()),
        *(Family(f"trtllm_{name}", "gauge", help, [(labels, get)]) for name, (help, get) in gauges.items()),
    ]


def _hit_rate(now: Moment) -> float:
    return now.counters.prefix_hits / now.counters.prefix_queries if now.counters.prefix_queries else 0.0
