"""A picker's director and the lab's model servers in virtual time, for tests that look at a pool between two requests.

A decision, a charge and a scrape take no time.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from pointsman.lab.server import LabServer, frame_of
from pointsman.lab.workload import Arrival
from services.picker.pipeline import build
from services.picker.request import Content, Headers, Request, Route
from services.picker.state.inflight import Charge
from services.picker.state.view import View
from services.simulator.engine import SECOND
from services.simulator.settings import SimulatorSettings
from shared.config import load
from shared.plugin import Registry

SCRAPES = 0.1
"""Seconds between two scrapes of a server."""


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
        self._servers = [LabServer(number, self.settings) for number in range(self.servers)]
        self.names = [server.name for server in self._servers]
        self.view.reset({f"pool.endpoint.{server.name}": server.endpoint for server in self._servers})
        self._director = build(
            load(self.document, Registry.installed()), np.random.default_rng(self.seed), lambda: self.now
        ).director
        self._open: list[dict[str, Served]] = [{} for _ in self.names]
        self._numbers = count()
        self._scraped = -SCRAPES

    def ask(self, prompt: bytes, output: int) -> Served | None:
        """A request for so many tokens arrives now; None if it is refused."""
        content = Content(api="completions", model="m", stream=True, prompt=prompt, output_limit=output)
        request = Request(id=f"r{next(self._numbers)}", headers=Headers(), path="/v1/completions", content=content)
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
        assert not self._servers[server].submit(request.id, prompt, output, self._ns)
        self._outputs(server)
        return served

    def ask_now(self, prompt: bytes, output: int) -> Served:
        """As `ask`, for a request that can't be refused."""
        served = self.ask(prompt, output)
        assert served is not None
        return served

    def run(self, arrivals: Iterable[Arrival] = (), until: float = float("inf")) -> None:
        """Go on until all these requests are served, or until then. Arrivals are in order."""
        coming = iter(arrivals)
        arrival = next(coming, None)
        while True:
            events = [(event, server) for server, one in enumerate(self._servers) if (event := one.engine.next_event())]
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
                self.ask(arrival.prompt, arrival.output_tokens)
                arrival = next(coming, None)
            elif due is not None:
                self._outputs(due[1], due[0])
        if until != float("inf"):
            self.now = until
            self.scrape()

    def scrape(self) -> None:
        """The picker learns what the servers' pages say now."""
        for server in range(self.servers):
            self._outputs(server)
        self.view.apply_frame(frame_of(self._servers, 1, self.now), self.now, 0.0)
        self._scraped = self.now

    @property
    def tokens(self) -> list[float]:
        """In flight, by server."""
        return [float(self.view.in_flight.tokens[self.view.layout.index[name]]) for name in self.names]

    @property
    def _ns(self) -> int:
        return round(self.now * SECOND)

    def _outputs(self, server: int, at: int | None = None) -> None:
        serving = self._open[server]
        for output in self._servers[server].advance(max(self._ns, at or 0)):
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
    rate: Callable[[float], float], seconds: float, prompt: Callable[[], bytes], output: int, seed: int = 1
) -> Iterator[Arrival]:
    """Arrivals of a rate, in requests a second, that changes with time."""
    random, at = np.random.default_rng(seed), 0.0
    while (at := at + float(random.exponential(1.0 / max(rate(at), 1e-9)))) < seconds:
        yield Arrival(at, prompt(), output)
