"""One simulated model server: its engine, its metrics page, its faults, and what it has counted."""

import asyncio
import time
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from services.simulator.delivery import ResponseWriter
from services.simulator.driver import Driver
from services.simulator.engine import Engine
from services.simulator.faults import TARGETS, AnyFault, Close, Fail, Faults, Hang, Replace, Slow, Target
from services.simulator.metrics import MetricsPage
from services.simulator.settings import SimulatorSettings
from services.simulator.sidecar import Sidecar


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
    prefills: int = 0
    """Prompts that it has computed for a decode server."""
    prefilled: int = 0
    """Requests whose prompt a prefill server had computed."""
    prefill_failures: int = 0
    """Requests that ended because the prefill server failed."""
    models: dict[str, int] = {}
    """Valid requests by model; a request for a model that is not served is not counted."""

    def asked_for(self, model: str) -> None:
        """Count a valid request."""
        self.models[model] = self.models.get(model, 0) + 1


_COUNTERS = ("preemptions", "prompt_tokens", "cached_tokens", "generation_tokens", "finished")
"""The engine's counters of `/control/state`."""


class ModelServer:
    """What the handlers share. Create it inside the event loop that runs it."""

    def __init__(self, settings: SimulatorSettings) -> None:
        self.settings = settings
        self.name = settings.name
        self.engine = Engine(settings, time.monotonic_ns())
        self.driver = Driver(self.engine)
        self.started = time.time()
        self.page = MetricsPage(settings, self.started)
        self.sidecar = Sidecar() if settings.sidecar else None
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

    def state(self) -> dict[str, Any]:
        """What the server has counted, and how it is now; `GET /control/state`."""
        return {
            "name": self.name,
            "engine": self.settings.engine,
            **asdict(self.counts),
            **asdict(self.driver.state()),
            **{name: getattr(self.engine.counters, name) for name in _COUNTERS},
            "faults": self.faults.describe(),
            "pins": self.page.pins,
        }

    def clear_faults(self) -> None:
        """Clear every fault; requests that hang go on."""
        for target in TARGETS:
            self.set_fault(target, None)

    async def close(self) -> None:
        """Stop the engine's timer, and close the sidecar's connections."""
        self.driver.close()
        if self.sidecar is not None:
            await self.sidecar.close()

    def __repr__(self) -> str:
        return f"<ModelServer {self.name} {self.settings.engine}, {self.engine!r}>"
