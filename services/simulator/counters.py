"""The engine's counters and histograms, from which metrics pages are made.

The bucket bounds are those of vLLM 0.32; the pages of other engines show the same buckets.
"""

from enum import StrEnum

from services.simulator.exposition import Histogram

_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_PER_TOKEN = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_PHASE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0),
    *(1920.0, 7680.0),
)
_STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTIONS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


def one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 … up to `limit`: vLLM's buckets for token counts, with its context length as the limit."""
    bounds: list[float] = []
    magnitude = 1
    while magnitude <= limit:
        bounds += [float(magnitude * step) for step in (1, 2, 5) if magnitude * step <= limit]
        magnitude *= 10
    return tuple(bounds)


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Counters:
    """Totals and distributions; times in seconds."""

    def __init__(self, context_length: int) -> None:
        lengths = one_two_five(context_length)
        self.prompt_tokens = 0
        self.cached_tokens = 0
        """Cached prompt tokens of requests that got their first token."""
        self.generation_tokens = 0
        self.prefix_queries = 0
        """Prompt tokens that were looked up in the prefix cache."""
        self.prefix_hits = 0
        self.preemptions = 0
        self.rejections = 0
        self.steps = 0
        self.finished = dict.fromkeys(FinishReason, 0)
        self.busy_seconds = 0.0
        self.request_prompt_tokens = Histogram(lengths)
        self.request_generation_tokens = Histogram(lengths)
        self.request_max_tokens = Histogram(lengths)
        self.params_max_tokens = Histogram(lengths)
        self.params_n = Histogram(_CHOICES)
        self.step_tokens = Histogram(_STEP_TOKENS)
        self.first_token = Histogram(_FIRST_TOKEN)
        self.inter_token = Histogram(_PER_TOKEN)
        self.per_token = Histogram(_PER_TOKEN)
        self.end_to_end = Histogram(_PHASE)
        self.queue = Histogram(_PHASE)
        self.inference = Histogram(_PHASE)
        self.prefill = Histogram(_PHASE)
        self.decode = Histogram(_PHASE)
        self.request_preemptions = Histogram(_PREEMPTIONS)
        self.prefill_computed = Histogram(lengths)

    def __repr__(self) -> str:
        done = ", ".join(f"{count} {reason}" for reason, count in self.finished.items())
        return f"<Counters {done}, {self.prompt_tokens} prompt and {self.generation_tokens} generation tokens>"
