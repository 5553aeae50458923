"""The metrics page: an engine's families, filled from the timing model or from pins, and padded on demand.

A page is rendered again only when something on it has changed; families that haven't are taken as they were. That is
what makes thousands of scrapes a second cheap.
"""

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest

from services.simulator.counters import Counters
from services.simulator.engine import EngineState
from services.simulator.exposition import Part, filler, number
from services.simulator.gauges import Moment, Pins, moment
from services.simulator.http_stats import HttpStats
from services.simulator.pages import sglang, triton, trtllm, vllm
from services.simulator.settings import EngineType, SimulatorSettings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PROCESS_REFRESH = 1.0
"""Seconds for which the figures of the process itself (memory, CPU) are used again."""


class MetricsPage:
    """One server's page. `started` is in Unix seconds."""

    def __init__(self, settings: SimulatorSettings, started: float) -> None:
        self.settings = settings
        self.http = HttpStats(started)
        self.pins = Pins()
        self._pins_revision = 0
        self._parts = self._engine_parts(started)
        self._vllm = settings.engine is EngineType.VLLM
        self._prefix = _PREFIXES[settings.engine]
        self._process = _Process()
        self._padding: str | None = None
        self._key: tuple[int, int, int, int] | None = None
        self._page = b""

    def pin(self, pins: Pins) -> None:
        """Show these values from now on; `Pins()` shows the engine's own again."""
        self.pins = pins
        self._pins_revision += 1

    def render(self, state: EngineState, counters: Counters, revision: int, wall: float) -> bytes:
        """The page as it is now; `revision` is the engine's, `wall` the time in Unix seconds."""
        process = self._process.refresh(wall) if self._vllm else 0
        key = (revision, self.http.revision, self._pins_revision, process)
        if key != self._key:
            self._key = key
            self._page = self._render(moment(self.settings, state, counters, self.pins, wall)).encode()
        return self._page

    def _render(self, now: Moment) -> str:
        pieces = [part.render(now) for part in self._parts]
        if self._vllm:
            pieces = [self._process.text, *pieces, self.http.render()]
        if self._padding is None:
            missing = self.settings.page_bytes - sum(len(piece.encode()) for piece in pieces)
            self._padding = filler(self._prefix, {"model_name": self.settings.models[0]}, missing)
        pinned = "".join(f"{name} {number(value)}\n" for name, value in self.pins.series.items())
        return pinned + "".join(pieces) + self._padding

    def _engine_parts(self, started: float) -> list[Part[Moment]]:
        settings = self.settings
        model = settings.models[0]
        match settings.engine:
            case EngineType.VLLM:
                return vllm.page(model, settings.context_length, settings.prefix_caching, started)
            case EngineType.SGLANG:
                return sglang.page(model, settings.slots, settings.context_length)
            case EngineType.TRTLLM_SERVE:
                return trtllm.page(model, settings.slots)
            case EngineType.TRITON:
                return triton.page(model)
            case EngineType.TRITON_TENSORRT_LLM:
                return [*triton.page(model), *triton.tensorrt_llm(model, settings.slots)]

    def __repr__(self) -> str:
        return f"<MetricsPage {self.settings.engine}, {len(self._page)} bytes, {self.pins}>"


_PREFIXES = {
    EngineType.VLLM: "vllm:",
    EngineType.SGLANG: "sglang:",
    EngineType.TRTLLM_SERVE: "trtllm_",
    EngineType.TRITON: "nv_",
    EngineType.TRITON_TENSORRT_LLM: "nv_",
}


class _Process:
    """What prometheus-client says of the Python process; reading it costs more than the rest of the page."""

    def __init__(self) -> None:
        self.text = ""
        self._registry = CollectorRegistry()
        GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._read_at = float("-inf")
        self._revision = 0

    def refresh(self, wall: float) -> int:
        """Read it again when it is old; rises whenever it was read."""
        if not 0 <= wall - self._read_at < PROCESS_REFRESH:
            self._read_at = wall
            self.text = generate_latest(self._registry).decode()
            self._revision += 1
        return self._revision

    def __repr__(self) -> str:
        return f"<_Process read {self._revision} times>"
