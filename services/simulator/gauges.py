"""What a metrics page shows at one moment: the engine's gauges, or what a test has pinned in their place."""

from typing import Annotated

from msgspec import Meta, Struct

from services.simulator.counters import Counters
from services.simulator.engine import EngineState
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
    """Samples that no engine has, or that another model of the same server would have; they come first on the page."""


class Moment(Struct, frozen=True, kw_only=True):
    """Everything that a page is made of."""

    running: int
    waiting: int
    deferred: int
    prefilling: int
    kv_usage: float
    kv_used: int
    kv_blocks: int
    block_tokens: int
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
    loaded_adapters: tuple[str, ...]
    max_adapters: int
    has_adapters: bool
    """Whether the server knows adapters at all: without, vLLM's adapter family has no samples."""
    counters: Counters
    wall: float
    """Unix seconds."""


def moment(settings: SimulatorSettings, state: EngineState, counters: Counters, pins: Pins, wall: float) -> Moment:
    """The page's values; figures that follow from a pinned one follow it."""
    waiting = _or(pins.waiting, state.waiting)
    running = _or(pins.running, state.running)
    kv_blocks = _or(pins.kv_blocks, settings.kv_blocks)
    usage = state.kv_usage if pins.kv_usage is None else pins.kv_usage
    pinned = pins.running_adapters is not None or pins.waiting_adapters is not None
    return Moment(
        running=running,
        waiting=waiting,
        deferred=min(state.deferred, waiting),
        prefilling=min(state.prefilling, running),
        kv_usage=usage,
        kv_used=state.kv_used if pins.kv_usage is None else round(usage * kv_blocks),
        kv_blocks=kv_blocks,
        block_tokens=_or(pins.block_tokens, settings.block_tokens),
        running_adapters=state.running_adapters if pins.running_adapters is None else pins.running_adapters,
        waiting_adapters=state.waiting_adapters if pins.waiting_adapters is None else pins.waiting_adapters,
        loaded_adapters=state.loaded_adapters,
        max_adapters=_or(pins.max_adapters, settings.max_adapters),
        has_adapters=bool(settings.adapters) or pinned,
        counters=counters,
        wall=wall,
    )


def _or(pinned: int | None, own: int) -> int:
    return own if pinned is None else pinned
