"""One simulated model server: its engine, its metrics page, its faults, and what it has counted."""

import asyncio
import time

from msgspec import Struct

from services.simulator.delivery import ResponseWriter
from services.simulator.driver import Driver
from services.simulator.engine import Engine
from services.simulator.faults import TARGETS, AnyFault, Close, Fail, Faults, Hang, Replace, Slow, Target
from services.simulator.gauges import Pins
from services.simulator.metrics import MetricsPage
from services.simulator.settings import SimulatorSettings


class RequestCounts(Struct):
    """Counts of requests since the start."""

    scrapes: int = 0
    requests: int = 0
    """Requests to the inference API."""
    answered: int = 0
    """Requests that got a complete answer, including errors."""
    refused: int = 0
    """Answered requests that got an error."""
    aborted: int = 0
    """Requests whose client left before the end."""
    spoiled: int = 0
    """Requests that a fault cut short."""
    models: dict[str, int] = {}
    """Valid requests by model; a request for a model that is not served is not counted."""

    def asked_for(self, model: str) -> None:
        """Count a valid request."""
        self.models[model] = self.models.get(model, 0) + 1


class ControlState(Struct, frozen=True, kw_only=True):
    """`GET /control/state`."""

    name: str
    engine: str
    scrapes: int
    requests: int
    answered: int
    refused: int
    aborted: int
    spoiled: int
    models: dict[str, int]
    running: int
    waiting: int
    kv_usage: float
    kv_used: int
    kv_cached: int
    preemptions: int
    loaded_adapters: tuple[str, ...]
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    generation_tokens: int
    finished: dict[str, int]
    faults: dict[str, AnyFault | None]
    pins: Pins


class ModelServer:
    """What the handlers share. Create it inside the event loop that runs it."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.engine = Engine(settings, time.monotonic_ns())
        self.driver = Driver(self.engine)
        self.started = time.time()
        self.page = MetricsPage(settings, self.started)
        self.faults = Faults()
        self.counts = RequestCounts()

    def metrics(self) -> bytes:
        """The metrics page as it is now."""
        state = self.driver.state()
        return self.page.render(state, self.engine.counters, self.engine.revision, time.time())

    def set_fault(self, target: Target, fault: AnyFault | None) -> None:
        """Set a fault, or clear it with None. Raises ValueError for a fault that doesn't fit the target."""
        if fault is None:
            self.faults.clear(target)
        else:
            self.faults.set(target, fault)
        self.driver.slow_down(self.faults.slowdown)

    async def apply_fault(self, target: Target, reply: ResponseWriter) -> AnyFault | None:
        """What the target's fault does before a request is served. Returns the fault if it is the whole answer. Raises
        `Closed`."""
        fault, cleared = self.faults.take(target)
        reply.fault = fault
        match fault:
            case None:
                pass
            case Hang():
                assert cleared is not None, "a fault that is set has its event"
                await cleared.wait()
            case Slow(latency=latency):
                await asyncio.sleep(latency)
            case Close(after=0):
                reply.close()
            case Fail() | Replace():
                return fault
        return None

    def state(self) -> ControlState:
        """What the server has counted, and how it is now."""
        sources = (self.counts, self.driver.state(), self.engine.counters)
        counted = {
            name: getattr(source, name)
            for source in sources
            for name in ControlState.__struct_fields__
            if hasattr(source, name)
        }
        return ControlState(
            **counted,
            name=self.name,
            engine=self.settings.engine,
            faults=self.faults.describe(),
            pins=self.page.pins,
        )

    def clear_faults(self) -> None:
        """Clear every fault; requests that hang go on."""
        for target in TARGETS:
            self.set_fault(target, None)

    def close(self) -> None:
        """Stop the engine's timer."""
        self.driver.close()

    def __repr__(self) -> str:
        return f"<ModelServer {self.name} {self.settings.engine}, {self.engine!r}>"
