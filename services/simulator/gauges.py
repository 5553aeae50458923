"""The values of a metrics page at one moment: the engine's, or those that a test has pinned in their place."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from services.simulator.counters import Counters, FinishReason
from services.simulator.engine import EngineState
from services.simulator.exposition import CONSTANTS, Values
from services.simulator.settings import SimulatorSettings

Count = Annotated[int, Meta(ge=0)]
SeriesName = Annotated[str, Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*(\{[^{}\n]*\})?$")]
"""As a page writes it: `name` or `name{label="value"}`."""


class Pins(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Values that the page shows whatever the engine does; absent ones are the engine's own."""

    running: Count | None = None
    waiting: Count | None = None
    kv_usage: Annotated[float, Meta(ge=0, le=1)] | None = None
    """Share of the KV blocks in use, 0 to 1."""
    running_adapters: tuple[str, ...] | None = None
    waiting_adapters: tuple[str, ...] | None = None
    max_adapters: Count | None = None
    block_tokens: Count | None = None
    kv_blocks: Count | None = None
    series: dict[SeriesName, float] = {}
    """Further samples, such as those of another model of the same server; they come first on the page."""

    def over(self, own: Any) -> dict[str, Any]:
        """The fields of a struct that can be pinned: the pin, or the struct's own value."""
        return {
            name: getattr(own, name) if (pin := getattr(self, name)) is None else pin
            for name in self.__struct_fields__
            if hasattr(own, name)
        }


def page_values(settings: SimulatorSettings, state: EngineState, counters: Counters, pins: Pins, wall: float) -> Values:
    """What the names in the page templates stand for. Values that follow from a pinned one follow the pin."""
    shown = pins.over(settings) | pins.over(state)
    running, waiting, usage = shown["running"], shown["waiting"], shown["kv_usage"]
    kv_blocks, block_tokens = shown["kv_blocks"], shown["block_tokens"]
    kv_used = state.kv_used if pins.kv_usage is None else round(usage * kv_blocks)
    deferred, prefilling = min(state.deferred, waiting), min(state.prefilling, running)
    finished = counters.finished
    return {
        **CONSTANTS,
        **vars(counters),
        "running": running,
        "waiting": waiting,
        "active": running + waiting,
        "deferred": deferred,
        "waiting_for_capacity": waiting - deferred,
        "prefilling": prefilling,
        "decoding": running - prefilling,
        "slots": settings.slots,
        "utilization": running / settings.slots,
        "context_length": settings.context_length,
        "kv_usage": usage,
        "kv_used": kv_used,
        "kv_free": kv_blocks - kv_used,
        "kv_blocks": kv_blocks,
        "block_tokens": block_tokens,
        "kv_used_tokens": kv_used * block_tokens,
        "kv_tokens": kv_blocks * block_tokens,
        "computed_tokens": counters.prompt_tokens - counters.cached_tokens,
        "hit_rate": counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0,
        "throughput": counters.generation_tokens / counters.busy_seconds if counters.busy_seconds else 0.0,
        **{f"finished_{reason}": count for reason, count in finished.items()},
        "completed": finished[FinishReason.STOP] + finished[FinishReason.LENGTH],
        "end_to_end_us": round(counters.end_to_end.sum * 1e6),
        "queue_us": round(counters.queue.sum * 1e6),
        "inference_us": round(counters.inference.sum * 1e6),
        "timestamp": int(wall),
    }
