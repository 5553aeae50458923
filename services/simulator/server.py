"""One simulated model server: its engine, its metrics page, its faults, and what it has counted."""

import asyncio
import time

from msgspec import Struct

from services.simulator.delivery import Reply
from services.simulator.driver import Driver
from services.simulator.engine import Engine, EngineState
from services.simulator.faults import TARGETS, AnyFault, Close, Fail, Faults, Hang, Replace, Slow, Target
from services.simulator.gauges import Pins
from services.simulator.metrics import MetricsPage
from services.simulator.settings import SimulatorSettings


class Tally(Struct):
    """What happened at the server's door since its start."""

    scrapes: int = 0
    requests: int = 0
    """Calls of the inference API."""
    answered: int = 0
    """Those that got a complete answer, errors included."""
    refused: int = 0
    """Those of them that got an error."""
    aborted: int = 0
    """Those whose client left before the end."""
    spoiled: int = 0
    """Those that a fault has cut short."""
    models: dict[str, int] = {}
    """Requests that could be read, by the model that they ask for; only served models are among them."""

    def asked_for(self, model: str) -> None:
        """Count a request that could be read."""
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
    """What the handlers share. Made inside the event loop that runs it."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.engine = Engine(settings, time.monotonic_ns())
        self.driver = Driver(self.engine)
        self.started = time.time()
        self.page = MetricsPage(settings, self.started)
        self.faults = Faults()
        self.tally = Tally()

    def metrics(self) -> bytes:
        """The metrics page as it is now."""
        state = self.driver.state()
        return self.page.render(state, self.engine.counters, self.engine.revision, time.time())

    def set_fault(self, target: Target, fault: AnyFault | None) -> None:
        """Set or take away a fault. Raises ValueError for one that the target can't have."""
        if fault is None:
            self.faults.clear(target)
        else:
            self.faults.set(target, fault)
        self.driver.slow_down(self.faults.slowdown)

    async def suffer(self, target: Target, reply: Reply) -> AnyFault | None:
        """What happens to a call before it is served; the fault when it is to be the answer. Raises `Closed`."""
        fault, lifted = self.faults.take(target)
        reply.fault = fault
        match fault:
            case None:
                pass
            case Hang():
                assert lifted is not None, "a fault that is set can be lifted"
                await lifted.wait()
            case Slow(latency=latency):
                await asyncio.sleep(latency)
            case Close(after=0):
                reply.close()
            case Fail() | Replace():
                return fault
        return None

    def state(self) -> ControlState:
        """Everything that a test may want to know."""
        gauges: EngineState = self.driver.state()
        tally, counters = self.tally, self.engine.counters
        return ControlState(
            name=self.name,
            engine=self.settings.engine,
            scrapes=tally.scrapes,
            requests=tally.requests,
            answered=tally.answered,
            refused=tally.refused,
            aborted=tally.aborted,
            spoiled=tally.spoiled,
            models=tally.models,
            running=gauges.running,
            waiting=gauges.waiting,
            kv_usage=gauges.kv_usage,
            kv_used=gauges.kv_used,
            kv_cached=gauges.kv_cached,
            preemptions=counters.preemptions,
            loaded_adapters=gauges.loaded_adapters,
            running_adapters=gauges.running_adapters,
            waiting_adapters=gauges.waiting_adapters,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            generation_tokens=counters.generation_tokens,
            finished={str(reason): count for reason, count in counters.finished.items()},
            faults=self.faults.describe(),
            pins=self.page.pins,
        )

    def lift_faults(self) -> None:
        """Take every fault away; calls that hang go on."""
        for target in TARGETS:
            self.set_fault(target, None)

    def close(self) -> None:
        """The engine's timer stops."""
        self.driver.close()

    def __repr__(self) -> str:
        return f"<ModelServer {self.name} {self.settings.engine}, {self.engine!r}>"
