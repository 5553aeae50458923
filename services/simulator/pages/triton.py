"""Triton's page: what every Triton shows, and what its TensorRT-LLM backend adds.

Triton has no gauge of the requests that run; `nv_inference_exec_count` counts executions since its start.
"""

from collections.abc import Callable

from services.simulator.counters import FinishReason
from services.simulator.exposition import Family, Part
from services.simulator.gauges import Moment

_Getter = Callable[[Moment], float]


def page(model: str) -> list[Part[Moment]]:
    """The families of every Triton."""
    labels = {"model": model, "version": "1"}
    counters: dict[str, tuple[str, _Getter]] = {
        "nv_inference_request_success": ("Requests that succeeded.", _ended),
        "nv_inference_count": ("Inferences made.", _ended),
        "nv_inference_exec_count": ("Executions of the model.", lambda now: now.counters.steps),
        "nv_inference_request_duration_us": (
            "Microseconds of all requests.",
            lambda now: round(now.counters.end_to_end.sum * 1e6),
        ),
        "nv_inference_queue_duration_us": (
            "Microseconds that requests were queued.",
            lambda now: round(now.counters.queue.sum * 1e6),
        ),
        "nv_inference_compute_input_duration_us": ("Microseconds to prepare inputs.", lambda now: 0),
        "nv_inference_compute_infer_duration_us": (
            "Microseconds of inference.",
            lambda now: round(now.counters.inference.sum * 1e6),
        ),
        "nv_inference_compute_output_duration_us": ("Microseconds to prepare outputs.", lambda now: 0),
    }
    failures = [
        ({**labels, "reason": "BACKEND"}, _none),
        ({**labels, "reason": "CANCELED"}, lambda now: now.counters.finished[FinishReason.ABORT]),
        ({**labels, "reason": "OTHER"}, _none),
        ({**labels, "reason": "REJECTED"}, lambda now: now.counters.rejections),
    ]
    pending = "Requests that wait to be executed, by model."
    return [
        *(Family(name, "counter", help, [(labels, get)], whole=True) for name, (help, get) in counters.items()),
        Family("nv_inference_request_failure", "counter", "Requests that failed.", failures, whole=True),
        Family("nv_inference_pending_request_count", "gauge", pending, [(labels, lambda now: now.waiting)], whole=True),
        Family("nv_cpu_utilization", "gauge", "CPU utilization, 0.0 to 1.0.", [({}, _none)], whole=True),
    ]


def tensorrt_llm(model: str, slots: int) -> list[Part[Moment]]:
    """The families of the TensorRT-LLM backend."""
    requests: dict[str, _Getter] = {
        "context": lambda now: now.prefilling,
        "scheduled": lambda now: now.running,
        "max": lambda now: slots,
        "active": lambda now: now.running + now.waiting,
        "waiting": lambda now: now.waiting,
    }
    blocks: dict[str, _Getter] = {
        "tokens_per": lambda now: now.block_tokens,
        "used": lambda now: now.kv_used,
        "free": lambda now: now.kv_blocks - now.kv_used,
        "max": lambda now: now.kv_blocks,
        "fraction": lambda now: now.kv_usage,
    }
    batcher: dict[str, _Getter] = {
        "micro_batch_id": lambda now: 0,
        "generation_requests": lambda now: now.running - now.prefilling,
    }
    memory: dict[str, _Getter] = dict.fromkeys(("pinned", "gpu", "cpu"), _none)
    general: dict[str, _Getter] = {
        "iteration_counter": lambda now: now.counters.steps,
        "timestamp": lambda now: int(now.wall),
    }
    return [
        _labelled("request_metrics", "TRT LLM request metrics", model, "request_type", requests),
        _labelled("runtime_memory_metrics", "TRT LLM runtime memory metrics", model, "memory_type", memory),
        _labelled("kv_cache_block_metrics", "TRT LLM KV cache block metrics", model, "kv_cache_block_type", blocks),
        _labelled(
            "inflight_batcher_metrics",
            "TRT LLM inflight_batcher-specific metrics",
            model,
            "inflight_batcher_specific_metric",
            batcher,
        ),
        _labelled("general_metrics", "General TRT LLM metrics", model, "general_type", general),
    ]


def _labelled(name: str, help: str, model: str, label: str, values: dict[str, _Getter]) -> Family[Moment]:
    series = [({"model": model, label: value, "version": "1"}, get) for value, get in values.items()]
    return Family(f"nv_trt_llm_{name}", "gauge", help, series, whole=True)


def _ended(now: Moment) -> float:
    return now.counters.finished[FinishReason.STOP] + now.counters.finished[FinishReason.LENGTH]


def _none(now: Moment) -> float:
    return 0
