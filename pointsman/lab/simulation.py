"""Pickers and model servers in simulated time: one queue of events, no clock, no process, no network.

Pickers decide, publish and forget with the code of the real ones. Simulated is what surrounds them: the
servers, the collector, the delays of messages, and who asks which picker. Equal settings give equal results.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from random import Random

from msgspec import Struct

from pointsman.lab.picker import LabPicker, Pick, Send
from pointsman.lab.server import LabServer, frame_of
from pointsman.lab.workload import Arrival
from services.picker.request import Refusal
from services.simulator.settings import SimulatorSettings
from shared.config import LoadedConfig

SECOND = 1_000_000_000
SLOTS = 4
"""Moments of an interval at which some of the servers are scraped."""
STREAM_INTERVAL = 1_000_000
"""Of the tokens of a response, only the first and the last are events."""
SAMPLES = 0.05
"""Seconds between two looks at the requests that servers have."""


class Scenario(Struct, frozen=True, kw_only=True):
    """What is simulated. Times are seconds."""

    pickers: int = 1
    sharing: bool = True
    """Whether pickers share where they have placed prefixes."""
    sharing_load: bool = True
    """Whether they share their load in flight."""
    kill_at: float = 0.0
    """When the last picker dies; 0: none does."""
    servers: int = 8
    settings: SimulatorSettings = SimulatorSettings(
        slots=16, kv_blocks=150, block_tokens=64, stream_interval=STREAM_INTERVAL
    )
    """Of each server."""
    seed: int = 1
    scrape_interval: float = 0.1
    scrape_delay: float = 0.004
    """From a scrape to the pickers."""
    interval: float = 0.02
    """Between two tables of the load in flight, and two batches of placements."""
    heartbeat: float = 0.5
    delay: float = 0.001
    """Of a message from picker to picker, on average."""
    maintenance: float = 0.25


class Outcome(Struct):
    """What became of a request."""

    at: float
    """Seconds: when it came."""
    picker: int
    prompt_tokens: int
    server: str = ""
    """Empty if it was refused."""
    first_token: float = 0.0
    """Seconds after it came; 0: never."""
    seconds: float = 0.0
    cached_tokens: int = 0
    refusal: str = ""


class Result(Struct, frozen=True, kw_only=True):
    """What a simulation came to."""

    scenario: Scenario
    outcomes: list[Outcome]
    in_flight: list[tuple[float, int, float]]
    """(seconds, the most requests of a server, the mean of all) from time to time."""
    picks: int
    load_bytes: int
    prefix_bytes: int


class Simulation:
    """One run."""

    def __init__(self, config: LoadedConfig, scenario: Scenario, arrivals: Iterator[Arrival]) -> None:
        self._scenario, self._arrivals = scenario, arrivals
        self._random = Random(f"simulation {scenario.seed}")
        self._servers = {server.name: server for server in map(self._server, range(scenario.servers))}
        endpoints = [server.endpoint for server in self._servers.values()]
        self._all = [
            LabPicker(number, config, endpoints, scenario.seed, scenario.interval) for number in range(scenario.pickers)
        ]
        self._alive = list(self._all)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = self._now = self._frames = 0
        self._picks: dict[str, Pick] = {}
        self._outcomes: list[Outcome] = []
        self._in_flight: list[tuple[float, int, float]] = []
        self._coming = True

    def run(self) -> Result:
        """To the end of the last request."""
        self._begin()
        while self._events:
            self._now, _, event = heappop(self._events)
            event()
        return Result(
            scenario=self._scenario,
            outcomes=self._outcomes,
            in_flight=self._in_flight,
            picks=sum(picker.picks for picker in self._all),
            load_bytes=sum(picker.load_bytes for picker in self._all),
            prefix_bytes=sum(picker.prefix_bytes for picker in self._all),
        )

    @property
    def _seconds(self) -> float:
        return self._now / SECOND

    def _server(self, number: int) -> LabServer:
        return LabServer(number, self._scenario.settings)

    def _begin(self) -> None:
        scenario = self._scenario
        servers = list(self._servers.values())
        for slot in range(min(SLOTS, len(servers))):
            scraped = servers[slot::SLOTS]
            self._send_frame(scraped)  # pickers don't start before they know the servers
            offset = scenario.scrape_interval * slot / SLOTS
            self._every(scenario.scrape_interval, offset, lambda scraped=scraped: self._scrape(scraped))  # type: ignore[misc]
        for picker in self._all:
            if scenario.sharing:
                picker.share_prefixes()
            offset = scenario.interval * self._random.random()
            self._every(scenario.interval, offset, lambda picker=picker: self._publish(picker))  # type: ignore[misc]
            self._every(scenario.maintenance, offset, lambda picker=picker: picker.maintain(self._seconds))  # type: ignore[misc]
        self._every(SAMPLES, 0.0, self._sample)
        if scenario.kill_at:
            self._at(round(scenario.kill_at * SECOND), lambda: self._kill(self._all[-1]))
        self._next_arrival()

    def _at(self, when: int, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (when, self._order, event))

    def _after(self, seconds: float, event: Callable[[], None]) -> None:
        self._at(self._now + round(seconds * SECOND), event)

    def _every(self, interval: float, offset: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            if self._coming or self._picks:
                self._after(interval, again)

        self._after(offset, again)

    # Requests

    def _next_arrival(self) -> None:
        arrival = next(self._arrivals, None)
        self._coming = arrival is not None
        if arrival is not None:
            self._at(round(arrival.at * SECOND), lambda: self._arrive(arrival))

    def _arrive(self, arrival: Arrival) -> None:
        self._next_arrival()
        picker = self._alive[int(self._random.random() * len(self._alive))]
        outcome = Outcome(arrival.at, picker.number, max(-(-len(arrival.prompt) // 4), 1))
        id = str(len(self._outcomes))
        self._outcomes.append(outcome)
        pick = picker.pick(id, arrival, self._seconds)
        if isinstance(pick, Refusal):
            outcome.refusal = pick.message
            return
        self._publish(picker)
        server = self._servers[pick.server]
        outcome.refusal = server.submit(id, arrival.prompt, arrival.output_tokens, self._now)
        if outcome.refusal:
            pick.failed()
            return
        outcome.server = server.name
        self._picks[id] = pick
        self._wake(server)

    def _wake(self, server: LabServer) -> None:
        """Have the server advanced when something happens there."""
        at = server.engine.next_event()
        if at is not None and (server.wakes_at is None or at < server.wakes_at):
            server.wakes_at = at
            self._at(at, lambda: self._advance(server))

    def _advance(self, server: LabServer) -> None:
        if server.wakes_at != self._now:
            return  # it was woken for another reason
        server.wakes_at = None
        for output in server.advance(self._now):
            outcome, pick = self._outcomes[int(output.id)], self._picks[output.id]
            seconds = output.at / SECOND - outcome.at
            if not outcome.first_token:
                outcome.first_token, outcome.cached_tokens = seconds, output.cached_tokens
                pick.began()
            if output.finished:
                outcome.seconds = seconds
                self._picks.pop(output.id).ended()
        self._wake(server)

    # Messages

    def _scrape(self, servers: list[LabServer]) -> None:
        self._frames += 1
        frame = frame_of(servers, self._frames, self._seconds)

        def arrive() -> None:
            for picker in self._alive:
                picker.receive_frame(frame, self._seconds)

        self._after(self._scenario.scrape_delay, arrive)

    def _send_frame(self, servers: list[LabServer]) -> None:
        for picker in self._all:
            picker.receive_frame(frame_of(servers, 0, 0.0), 0.0)

    def _publish(self, picker: LabPicker) -> None:
        """Once an interval and after each pick, as often as the picker may."""
        if picker not in self._alive or picker.pace.wait(self._seconds) > 0:
            return
        published = picker.publish_prefixes(self._send(LabPicker.receive_prefixes))
        if self._scenario.sharing_load:
            published |= picker.publish_load(
                self._seconds, self._scenario.heartbeat, self._send(LabPicker.receive_load)
            )
        if published:
            picker.pace.sent(self._seconds)

    def _send(self, receive: Callable[[LabPicker, bytes, float], None]) -> Send:
        def send(sender: LabPicker, payload: bytes) -> None:
            for other in self._alive:
                if other is not sender:
                    delay = self._scenario.delay * (0.5 + self._random.random())
                    self._after(delay, lambda other=other: receive(other, payload, self._seconds))  # type: ignore[misc]

        return send

    def _kill(self, picker: LabPicker) -> None:
        """Its requests go on: proxies don't need it any more."""
        self._alive.remove(picker)

    def _sample(self) -> None:
        open = [server.open for server in self._servers.values()]
        self._in_flight.append((self._seconds, max(open), sum(open) / len(open)))

    def __repr__(self) -> str:
        return f"<Simulation {self._seconds:.3f} s, {len(self._outcomes)} requests>"
