"""The metrics page of a server: an engine's template filled from the timing model or from pins, and padded on demand.

A page is rendered again only when something on it has changed, which makes thousands of scrapes a second cheap.
"""

from pathlib import Path
from string import Template

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    Summary,
    generate_latest,
)

from services.simulator.counters import Counters
from services.simulator.engine import EngineState
from services.simulator.exposition import Family, escape, families, filler, head, number
from services.simulator.gauges import Pins, page_values
from services.simulator.settings import EngineType, SimulatorSettings

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TEMPLATES = Path(__file__).parent / "pages"
PROCESS_REFRESH = 1.0
"""Seconds for which the metrics of the process (memory, CPU) are used again."""
KEPT_ADAPTER_SERIES = 64
"""Adapter combinations on the page at most; vLLM keeps all."""
_PREFIXES = {EngineType.VLLM: "vllm:", EngineType.SGLANG: "sglang:", EngineType.TRTLLM_SERVE: "trtllm_"}


class MetricsPage:
    """One server's page. `started` is in Unix seconds."""

    def __init__(self, settings: SimulatorSettings, started: float) -> None:
        self.settings = settings
        self.http = HttpMetrics()
        self._started = started
        self._vllm = settings.engine is EngineType.VLLM
        self._adapters = _AdapterSeries()
        self._process = _ProcessMetrics()
        self._padding: str | None = None
        self._pins_revision = 0
        self._key: tuple[int, int, int, int] | None = None
        self._page = b""
        self.pin(Pins())

    def pin(self, pins: Pins) -> None:
        """Show these values from now on; `Pins()` shows the engine's own again."""
        self.pins = pins
        self._pins_revision += 1
        self._families = self._fill_template()

    def _fill_template(self) -> list[Family]:
        """The families of the engine, with the values of their labels, such as sizes that can be pinned."""
        settings, sizes = self.settings, self.pins.over(self.settings)
        kv_tokens = sizes["block_tokens"] * sizes["kv_blocks"]
        labels = {
            **sizes,
            "model": escape(settings.models[0]),
            "kv_tokens": kv_tokens,
            "concurrency": kv_tokens / settings.context_length,
            "prefix_caching": settings.prefix_caching,
        }
        engine = settings.engine
        triton = engine in (EngineType.TRITON, EngineType.TRITON_TENSORRT_LLM)
        names = [engine] if engine is not EngineType.TRITON_TENSORRT_LLM else [EngineType.TRITON, engine]
        text = "".join((TEMPLATES / f"{name}.prom").read_text(encoding="utf-8") for name in names)
        created = self._started if self._vllm else None
        return families(Template(text).substitute(labels), created=created, integers=triton)

    def render(self, state: EngineState, counters: Counters, revision: int, wall: float) -> bytes:
        """The page as it is now; `revision` is the engine's, `wall` the time in Unix seconds."""
        process = self._process.refresh(wall) if self._vllm else 0
        key = (revision, self.http.revision, self._pins_revision, process)
        if key != self._key:
            self._key = key
            self._page = self._render(state, counters, wall).encode()
        return self._page

    def _render(self, state: EngineState, counters: Counters, wall: float) -> str:
        settings, pins = self.settings, self.pins
        values = page_values(settings, state, counters, pins, wall)
        pieces = [family.render(values) for family in self._families]
        if self._vllm:
            adapters = self._adapters.render(settings, state, pins, wall)
            pieces = [self._process.text, *pieces, adapters, self.http.render()]
        if self._padding is None:
            missing = settings.page_bytes - sum(len(piece.encode()) for piece in pieces)
            self._padding = filler(_PREFIXES.get(settings.engine, "nv_"), settings.models[0], missing)
        pinned = "".join(f"{name} {number(value)}\n" for name, value in pins.series.items())
        return pinned + "".join(pieces) + self._padding

    def __repr__(self) -> str:
        return f"<MetricsPage {self.settings.engine}, {len(self._page)} bytes, {self.pins}>"


class _AdapterSeries:
    """`vllm:lora_requests_info`: a series for each combination of adapters; its value is when it last applied.

    Series stay on the page, as vLLM's do: the newest is the one with the highest value.
    """

    def __init__(self) -> None:
        self._series: dict[str, float] = {}

    def render(self, settings: SimulatorSettings, state: EngineState, pins: Pins, wall: float) -> str:
        name = "vllm:lora_requests_info"
        if settings.adapters or pins.running_adapters is not None or pins.waiting_adapters is not None:
            shown = pins.over(settings) | pins.over(state)
            running, waiting = (escape(",".join(shown[f"{kind}_adapters"])) for kind in ("running", "waiting"))
            labels = f'max_lora="{shown["max_adapters"]}",running_lora_adapters="{running}"'
            labels += f',waiting_lora_adapters="{waiting}"'
            self._series[labels] = wall
            if len(self._series) > KEPT_ADAPTER_SERIES:
                del self._series[min(self._series, key=self._series.__getitem__)]
        lines = [f"{name}{{{labels}}} {number(at)}\n" for labels, at in self._series.items()]
        return head(name, "gauge", "Running stats on lora requests.") + "".join(lines)


_HIGH_RESOLUTION = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0),
    60.0,
)


class HttpMetrics:
    """Metrics of the API's HTTP requests: those of prometheus-fastapi-instrumentator, which vLLM uses."""

    def __init__(self) -> None:
        self.revision = 0
        self._registry = registry = CollectorRegistry()
        labels = ("handler", "method", "status")
        help = "Total number of requests by method, status and handler."
        self._requests = Counter("http_requests", help, labels, registry=registry)
        help = "Content length of {} requests by handler."
        self._received = Summary("http_request_size_bytes", help.format("incoming"), labels[:1], registry=registry)
        self._sent = Summary("http_response_size_bytes", help.format("outgoing"), labels[:1], registry=registry)
        name, help = "http_request_duration_highr_seconds", "Latency with many buckets but no API specific labels."
        self._all_durations = Histogram(name, help, registry=registry, buckets=_HIGH_RESOLUTION)
        name, help = "http_request_duration_seconds", "Latency with only few buckets by handler."
        self._durations = Histogram(name, help, labels[:2], registry=registry, buckets=(0.1, 0.5, 1.0))
        self._rendered = -1, ""

    def observe(self, handler: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """Count a request that got its answer or whose client has left; sizes in bytes."""
        self.revision += 1
        self._requests.labels(handler, method, f"{status // 100}xx").inc()
        self._received.labels(handler).observe(received)
        self._sent.labels(handler).observe(sent)
        self._all_durations.observe(seconds)
        self._durations.labels(handler, method).observe(seconds)

    def render(self) -> str:
        if self._rendered[0] != self.revision:
            self._rendered = self.revision, generate_latest(self._registry).decode()
        return self._rendered[1]


class _ProcessMetrics:
    """prometheus-client's metrics of the Python process; reading them costs more than the rest of the page."""

    def __init__(self) -> None:
        self.text = ""
        self._registry = CollectorRegistry()
        GCCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        ProcessCollector(registry=self._registry)
        self._read_at = float("-inf")
        self._revision = 0

    def refresh(self, wall: float) -> int:
        """Read them again when they are old; the result rises with each reading."""
        if not 0 <= wall - self._read_at < PROCESS_REFRESH:
            self._read_at = wall
            self.text = generate_latest(self._registry).decode()
            self._revision += 1
        return self._revision
