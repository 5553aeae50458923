"""SGLang's page. Its block size and number of blocks are given both ways: as labels of `sglang:cache_config_info`, and
as the gauges that replaced it in 0.5.11."""

from collections.abc import Callable

from services.simulator.counters import FinishReason
from services.simulator.exposition import Family, HistogramFamily, Labels, Part, braces, head
from services.simulator.gauges import Moment
from services.simulator.histogram import Histogram

_Getter = Callable[[Moment], float]


def page(model: str, slots: int, context_length: int) -> list[Part[Moment]]:
    """The page's parts."""
    scheduler = {"engine_type": "unified", "model_name": model, "moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
    tokenizer = {"model_name": model}
    return [*_scheduler(scheduler, slots, context_length), _CacheConfig(scheduler), *_tokenizer(tokenizer)]


def _scheduler(labels: Labels, slots: int, context_length: int) -> list[Part[Moment]]:
    gauges: dict[str, tuple[str, _Getter]] = {
        "num_running_reqs": ("Requests that are running.", lambda now: now.running),
        "num_used_tokens": ("Tokens in the KV cache pool.", lambda now: now.kv_used * now.block_tokens),
        "token_usage": ("Share of the KV cache pool in use.", lambda now: now.kv_usage),
        "swa_token_usage": ("Share of the sliding-window pool in use.", lambda now: 0),
        "mamba_usage": ("Share of the Mamba pool in use.", lambda now: 0),
        "num_queue_reqs": ("Requests in the waiting queue.", lambda now: now.waiting),
        "num_grammar_queue_reqs": ("Requests in the grammar queue.", lambda now: 0),
        "num_running_reqs_offline_batch": ("Running requests of offline batches.", lambda now: 0),
        "cache_hit_rate": ("Share of the prompt tokens that the prefix cache had.", _hit_rate),
        "gen_throughput": ("Output tokens a second of engine time.", _throughput),
        "num_retracted_reqs": ("Requests that had to give back their memory.", lambda now: now.counters.preemptions),
        "num_paused_reqs": ("Paused requests.", lambda now: 0),
        "utilization": ("Share of the batch in use.", lambda now: now.running / slots),
        "max_total_num_tokens": ("Tokens that the KV cache pool holds.", lambda now: now.kv_blocks * now.block_tokens),
        "page_size": ("Tokens in a page of the KV cache.", lambda now: now.block_tokens),
        "num_pages": ("Pages of the KV cache.", lambda now: now.kv_blocks),
        "context_len": ("The longest context.", lambda now: context_length),
    }
    return [Family(f"sglang:{name}", "gauge", help, [(labels, get)]) for name, (help, get) in gauges.items()]


def _tokenizer(labels: Labels) -> list[Part[Moment]]:
    counters: dict[str, tuple[str, _Getter]] = {
        "prompt_tokens_total": ("Prompt tokens read.", lambda now: now.counters.prompt_tokens),
        "generation_tokens_total": ("Output tokens made.", lambda now: now.counters.generation_tokens),
        "cached_tokens_total": ("Prompt tokens that the cache had.", lambda now: now.counters.cached_tokens),
        "num_requests_total": ("Requests that ended.", _ended),
        "num_aborted_requests_total": ("Aborted requests.", lambda now: now.counters.finished[FinishReason.ABORT]),
    }
    histograms: dict[str, tuple[str, Callable[[Moment], Histogram]]] = {
        "time_to_first_token_seconds": ("Time to the first token.", lambda now: now.counters.first_token),
        "inter_token_latency_seconds": ("Time between two tokens.", lambda now: now.counters.inter_token),
        "e2e_request_latency_seconds": ("Time of a whole request.", lambda now: now.counters.end_to_end),
        "queue_time_seconds": ("Time in the waiting queue.", lambda now: now.counters.queue),
    }
    return [
        *(Family(f"sglang:{name}", "counter", help, [(labels, get)]) for name, (help, get) in counters.items()),
        *(HistogramFamily(f"sglang:{name}", help, labels, get) for name, (help, get) in histograms.items()),
    ]


def _hit_rate(now: Moment) -> float:
    return now.counters.prefix_hits / now.counters.prefix_queries if now.counters.prefix_queries else 0.0


def _throughput(now: Moment) -> float:
    return now.counters.generation_tokens / now.counters.busy_seconds if now.counters.busy_seconds else 0.0


def _ended(now: Moment) -> float:
    finished = now.counters.finished
    return finished[FinishReason.STOP] + finished[FinishReason.LENGTH]


class _CacheConfig:
    """`sglang:cache_config_info`, the configuration in its labels."""

    def __init__(self, labels: Labels) -> None:
        self._labels = labels

    def render(self, moment: Moment) -> str:
        labels = {**self._labels, "num_pages": str(moment.kv_blocks), "page_size": str(moment.block_tokens)}
        name = "sglang:cache_config_info"
        return f"{head(name, 'gauge', 'The KV cache pool.')}{name}{braces(labels)} 1.0\n"

    def __repr__(self) -> str:
        return f"<_CacheConfig of {self._labels.get('model_name')}>"
