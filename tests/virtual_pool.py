"""A pool in virtual time: a picker's director, and the timing models of model servers, in one loop without a clock.

A run takes a small part of the time that it simulates and is the same every time. What it leaves out is what the
network does: a decision, a charge and a scrape take no time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from msgspec import Struct

from services.picker.pipeline import build
from services.picker.request import Content, Headers, Request, Route
from services.picker.state.inflight import Charge
from services.picker.state.view import View
from services.simulator.engine import SECOND, Engine
from services.simulator.sequence import EngineRequest
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import BYTES_PER_TOKEN, Prompt, answer_bytes
from shared.attributes import KV_CACHE_USAGE, REACHABLE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import Frame
from shared.config import load
from shared.model import Endpoint
from shared.plugin import Registry

SCRAPES = 0.1
"""Seconds between two scrapes of a server."""


class Arrival(Struct, frozen=True):
    """A request of a workload."""

    at: float
    """Seconds since the start."""
    prompt: str
    output: int
    """Tokens."""


@dataclass
class Served:
    """A request of which a server has begun to take care."""

    arrival: Arrival
    server: int
    charge: Charge
    first_token: float | None = None
    """Seconds from the arrival."""
    seconds: float | None = None
    cached: int = 0


@dataclass
class VirtualPool:
    """Equal servers, and a picker with this EndpointPickerConfig. `now` is in seconds since the start."""

    document: str
    settings: SimulatorSettings
    servers: int
    seed: int = 1
    now: float = 0.0
    requests: list[Served] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        self.view = View()
        self.names = [f"model-{number}" for number in range(1, self.servers + 1)]
        self.view.reset(
            {
                f"pool.endpoint.{name}": Endpoint(id=name, name=name, address=f"10.0.0.{number}", port=8000)
                for number, name in enumerate(self.names)
            }
        )
        self.engines = [Engine(self.settings, 0) for _ in self.names]
        self._director = build(
            load(self.document, Registry.installed()), np.random.default_rng(self.seed), lambda: self.now
        ).director
        self._open: list[dict[str, Served]] = [{} for _ in self.names]
        self._numbers = count()
        self._scraped = -SCRAPES

    def ask(self, prompt: str, output: int) -> Served | None:
        """A request arrives now; None if it is refused."""
        number, text = next(self._numbers), prompt.encode()
        content = Content(api="completions", model="m", stream=True, prompt=text, output_limit=output)
        request = Request(id=f"r{number}", headers=Headers(), path="/v1/completions", content=content)
        decision = self._director.decide(request, self.view, self.now)
        if not isinstance(decision.outcome, Route):
            self.refused += 1
            return None
        row = decision.picked[0]
        charge = self.view.in_flight.charge(self.view.layout.endpoints[row].id, decision.tokens)
        server = self.names.index(self.view.layout.endpoints[row].id)
        served = Served(Arrival(self.now, prompt, output), server, charge)
        self.requests.append(served)
        self._open[server][request.id] = served
        answer = answer_bytes(number, output)
        self.engines[server].submit(
            EngineRequest(id=request.id, prompt=Prompt(text), output=answer, stream=True), self._ns
        )
        assert len(answer) == output * BYTES_PER_TOKEN
        self._outputs(server)
        return served

    def ask_now(self, prompt: str, output: int) -> Served:
        """As `ask`, for a request that can't be refused."""
        served = self.ask(prompt, output)
        assert served is not None
        return served

    def run(self, arrivals: Iterable[Arrival] = (), until: float = float("inf")) -> None:
        """Go on until all these requests are served, or until then. Arrivals are in order."""
        coming = iter(arrivals)
        arrival = next(coming, None)
        while True:
            events = [(event, server) for server, engine in enumerate(self.engines) if (event := engine.next_event())]
            due = min(events, default=None)
            at = min(due[0] / SECOND if due else float("inf"), arrival.at if arrival else float("inf"))
            if at > until or at == float("inf"):
                break
            if at >= self._scraped + SCRAPES:
                self.now = max(self.now, self._scraped + SCRAPES)
                self.scrape()
                continue
            self.now = max(self.now, at)
            if arrival is not None and arrival.at <= at:
                self.ask(arrival.prompt, arrival.output)
                arrival = next(coming, None)
            elif due is not None:
                self._outputs(due[1], due[0])
        if until != float("inf"):
            self.now = until
            self.scrape()

    def scrape(self) -> None:
        """The picker learns what the servers' pages say now."""
        states = []
        for server, engine in enumerate(self.engines):
            self._outputs(server)
            states.append(engine.state())
        columns: dict[AttributeKey[float], list[float]] = {
            WAITING_QUEUE_SIZE: [state.waiting for state in states],
            RUNNING_REQUESTS_SIZE: [state.running for state in states],
            KV_CACHE_USAGE: [state.kv_usage for state in states],
            REACHABLE: [1.0 for _ in states],
        }
        ages = pack_ages(np.zeros(len(states)))
        frame = Frame(
            sender="collector",
            sent=self.now,
            sequence=1,
            ids=tuple(self.names),
            columns={key.wire: pack_floats(values) for key, values in columns.items()},
            objects={},
            ages={key.wire: ages for key in columns},
        )
        self.view.apply_frame(frame, self.now, 0.0)
        self._scraped = self.now

    @property
    def tokens(self) -> list[float]:
        """In flight, by server."""
        return [float(self.view.in_flight.tokens[self.view.layout.index[name]]) for name in self.names]

    @property
    def _ns(self) -> int:
        return round(self.now * SECOND)

    def _outputs(self, server: int, at: int | None = None) -> None:
        engine, serving = self.engines[server], self._open[server]
        for output in engine.advance(max(self._ns, at or 0)):
            served = serving[output.id]
            elapsed = output.at / SECOND - served.arrival.at
            if served.first_token is None:
                served.first_token, served.cached = elapsed, output.cached_tokens
                served.charge.response_began()
                served.charge.release_tokens()
            if output.finished:
                served.seconds = elapsed
                served.charge.release()
                del serving[output.id]


def poisson(
    rate: Callable[[float], float], seconds: float, prompt: Callable[[], str], output: int, seed: int = 1
) -> Iterator[Arrival]:
    """Arrivals of a rate, in requests a second, that changes with time."""
    random, at = np.random.default_rng(seed), 0.0
    while (at := at + float(random.exponential(1.0 / max(rate(at), 1e-9)))) < seconds:
        yield Arrival(at, prompt(), output)
