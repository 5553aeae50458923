"""`bench_queues` in simulated time: the same requests, configuration and model servers, in one process.

    python -m tests.benchmarks.bench_queues_simulated [--pickers 1,2,4] [--seconds 80] [--delay-ms 1] [--plot FILE] …

Pickers decide and queue with the code of real ones. Their load tables are encoded, sent at the pace of real ones, and
arrive after `--delay-ms`, half more or less. What is left out is the network to clients and servers, and what a busy
machine does to processes, so equal flags give equal figures. All cases take half a minute.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from pathlib import Path
from random import Random

import numpy as np

from pointsman.lab.plot import draw
from pointsman.lab.server import LabServer
from services.picker.bus.pace import Pace
from services.picker.flow_control.admission import FlowAdmission
from services.picker.flow_control.ticket import Ticket
from services.picker.flow_control.waiting import DISPATCHED
from services.picker.pipeline import build
from services.picker.request import Content, Headers, Refusal, Request
from services.picker.state.inflight import Charge
from services.picker.state.view import View
from services.simulator.settings import SimulatorSettings
from shared.bus.codec import decode, encode
from shared.bus.messages import Load
from shared.config import load as load_config
from shared.model import Objective
from shared.plugin import Registry
from tests.benchmarks import bench_queues as real
from tests.benchmarks.bench_queues import BATCH, URGENT
from tests.benchmarks.queue_load import Flow, Record

PRIORITIES = {URGENT: 10, BATCH: -1}
INTERVAL, HEARTBEAT, MAINTENANCE = 0.02, 0.5, 0.25
"""Seconds."""
SECOND = 1_000_000_000
START = 1_000.0
"""The pickers' clocks at the beginning."""


class SimulatedRequest:
    """One request: it waits for room, then runs on a server. It owns its ticket."""

    def __init__(self, picker: "SimulatedPicker", flow: Flow, id: str) -> None:
        self.flow, self.id, self.tokens = flow, id, 0
        self.sent = picker.pool.now
        self._picker = picker
        self._ticket: Ticket | None = None
        self._charge: Charge | None = None
        prompt = b"all " * flow.prompt
        headers = Headers([("x-llm-d-inference-fairness-id", flow.name)])
        content = Content(api="completions", model="simulated", stream=True, prompt=prompt)
        self._request = Request(
            id=id, headers=headers, content=content, body_size=len(prompt), received_at=picker.clock()
        )

    def arrives(self) -> None:
        picker = self._picker
        self._ticket = picker.flow.admit(self._request, PRIORITIES.get(self.flow.name, 0), self, picker.clock())
        if self._ticket is None or self._ticket.outcome is not None:
            self.released()

    def released(self) -> None:
        picker, ticket = self._picker, self._ticket
        if ticket is not None and ticket.outcome is not DISPATCHED:
            picker.pool.record.failures["refused"] += 1
            return
        decision = picker.director.decide(self._request, picker.view, picker.clock())
        assert not isinstance(decision.outcome, Refusal), decision.outcome
        server = decision.layout.endpoints[decision.picked[0]].id
        self._charge = picker.view.in_flight.charge(server, decision.tokens)
        if ticket is not None:
            ticket.charged()
        picker.pool.submit(server, self, self._request.content.prompt)

    def progress(self, tokens: int, finished: bool) -> None:
        """So many tokens have come in all."""
        pool = self._picker.pool
        if not self.tokens:
            pool.record.first_tokens.append((self.sent, self.flow.name, pool.now - self.sent))
        pool.record.tokens.append((pool.now, self.flow.name, tokens - self.tokens))
        self.tokens = tokens
        if finished:
            assert self._charge is not None
            self._charge.release()
            if self._ticket is not None:
                self._ticket.finished(self._picker.clock(), self.flow.prompt, tokens)

    def may_wait(self) -> bool:
        return True

    def wait_deadline(self, now: float) -> float:
        return math.inf

    def requeue(self) -> None:
        raise AssertionError("the configuration stays")

    def evict(self) -> None:
        raise AssertionError("nothing is evicted")


class SimulatedPicker:
    """One picker, and what it tells the others."""

    def __init__(self, pool: "SimulatedPool", number: int, document: str) -> None:
        self.pool, self.name = pool, f"picker-{number}"
        self.view = View()
        self.view.reset({f"pool.endpoint.{name}": server.endpoint for name, server in pool.servers.items()})
        for name, priority in PRIORITIES.items():
            self.view.upsert(f"pool.objective.{name}", Objective(name=name, priority=priority))
        random = np.random.default_rng([pool.given.seed, number])
        config = load_config(document, Registry.installed(), allow_experimental=True)
        pipeline = build(config, random, lambda: 0.0)
        self.director = pipeline.director
        self.flow = FlowAdmission(self.view, id=self.name, clock=self.clock, random=random, wake=self._wake)
        self.flow.configure(pipeline.flow_control, pipeline.director.detector, config.stale_metrics)
        self._pace = Pace(INTERVAL)
        self._published = (-HEARTBEAT, self.flow.changes)
        self._sequence = 0
        self._looks_at = -math.inf
        self._wakes_at = math.inf
        if pool.number > 1:
            self.view.in_flight.on_charge = lambda: pool.after(0.0, self.look)
        pool.every(INTERVAL, self.look)
        pool.every(MAINTENANCE, self._maintain)

    def clock(self) -> float:
        return START + self.pool.now

    def _wake(self, at: float) -> None:
        at = max(at, self.clock())
        if at < self._wakes_at:
            self._wakes_at = at
            self.pool.after(at - self.clock(), lambda: self._run(at))

    def _run(self, at: float) -> None:
        if at == self._wakes_at:  # nothing else has woken it since
            self._wakes_at = math.inf
            self.flow.run()

    def _maintain(self) -> None:
        self.view.in_flight.expire(self.clock())
        self.flow.maintain()

    def look(self) -> None:
        """Tell what has changed, if it is time."""
        now, (at, queue) = self.clock(), self._published
        wait = self._pace.wait(now)
        if wait > 0:
            if self._looks_at <= self.pool.now:
                self._looks_at = self.pool.now + wait
                self.pool.after(wait, self.look)
            return
        if not (now - at >= HEARTBEAT or self.view.in_flight.changed or self.flow.changes != queue):
            return
        ids, requests, tokens = self.view.in_flight.columns()
        self.view.in_flight.published()
        self._published = now, self.flow.changes
        self._sequence += 1
        message = Load(
            sender=self.name,
            sent=now,
            sequence=self._sequence,
            run=1,
            ids=ids,
            requests=requests,
            tokens=tokens,
            queue=self.flow.table(now),
        )
        self._pace.sent(now)
        self.pool.send(self, encode(message))

    def hear(self, payload: bytes) -> None:
        message = decode(Load, payload)
        if self.view.apply_load(message, self.clock()) and self.pool.hear == "all":
            self.flow.apply(message, self.clock())


class SimulatedPool:
    """Servers and pickers in simulated time; `now` is seconds from the beginning."""

    def __init__(self, given: argparse.Namespace, pickers: int, hear: str, *, flow_control: bool) -> None:
        self.given, self.number, self.hear = given, pickers, hear
        self._nanoseconds = 0
        self.record = Record([], [], Counter())
        self._random = Random(given.seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        settings = SimulatorSettings(
            slots=given.slots,
            prefill_time=given.prefill_ms / 1000,
            decode_time=given.decode_ms / 1000,
            decode_growth=given.decode_growth,
            prefix_caching=False,
            stream_interval=max(given.tokens // 4, 1),
        )
        made = [LabServer(number, settings) for number in range(given.servers)]
        self.servers = {server.name: server for server in made}
        self._requests: dict[str, SimulatedRequest] = {}
        document = real.configuration(given, flow_control=flow_control)
        self.pickers = [SimulatedPicker(self, number, document) for number in range(pickers)]

    @property
    def now(self) -> float:
        return self._nanoseconds / SECOND

    def run(self, flows: list[Flow], seconds: float) -> Record:
        """What comes of these flows."""
        for flow in flows:
            for at, picker in flow.arrivals(seconds, self._random):
                self.after(max(at, 0.0), lambda flow=flow, picker=picker: self._arrive(flow, picker))  # type: ignore[misc]
        while self._events and self._events[0][0] < seconds * SECOND:
            self._nanoseconds, _, event = heappop(self._events)
            event()
        for request in self._requests.values():
            if not request.tokens:
                self.record.first_tokens.append((request.sent, request.flow.name, seconds - request.sent))
        return self.record

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """In so many seconds, never earlier: who is woken before its time asks to be woken at once, and time would
        stand."""
        self._at(self._nanoseconds + math.ceil(seconds * SECOND), event)

    def _at(self, nanoseconds: int, event: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (nanoseconds, self._order, event))

    def every(self, interval: float, event: Callable[[], None]) -> None:
        def again() -> None:
            event()
            self.after(interval, again)

        self.after(interval * self._random.random(), again)

    def send(self, sender: SimulatedPicker, payload: bytes) -> None:
        for picker in self.pickers:
            if picker is not sender and self.hear != "nothing":
                delay = self.given.delay_ms / 1000 * self._random.uniform(0.5, 1.5)
                self.after(delay, lambda picker=picker: picker.hear(payload))  # type: ignore[misc]

    def submit(self, name: str, request: SimulatedRequest, prompt: bytes) -> None:
        server = self.servers[name]
        self._requests[request.id] = request
        refused = server.submit(request.id, prompt, self.given.tokens, self._nanoseconds)
        assert not refused, refused
        self._await(server)

    def _arrive(self, flow: Flow, picker: int) -> None:
        SimulatedRequest(self.pickers[picker], flow, f"{flow.name}-{self._order}").arrives()

    def _await(self, server: LabServer) -> None:
        """Have the server advanced when something happens there."""
        at = server.engine.next_event()
        if at is not None and (server.wakes_at is None or at < server.wakes_at):
            server.wakes_at = at
            self._at(max(at, self._nanoseconds), lambda: self._advance(server, at))

    def _advance(self, server: LabServer, at: int) -> None:
        if server.wakes_at != at:
            return  # it was woken for another reason
        server.wakes_at = None
        for output in server.advance(self._nanoseconds):
            request = self._requests[output.id]
            request.progress(output.tokens, output.finished)
            if output.finished:
                del self._requests[output.id]
        self._await(server)


def case(given: argparse.Namespace, pickers: int, hear: str) -> real.Result:
    """The three parts of a case, each from an idle pool."""
    flows = real.flows_of(given, pickers, real.estimate(given), given.urgent * given.load)
    record = SimulatedPool(given, pickers, hear, flow_control=False).run(flows, given.settle + given.part)
    maximum = record.throughput(given.settle, given.settle + given.part)
    flows = real.flows_of(given, pickers, maximum / given.tokens, given.urgent)
    idle = SimulatedPool(given, pickers, hear, flow_control=True).run(flows[:1], given.seconds)
    end = given.settle + given.seconds
    return real.Result(
        title=real.title(pickers, hear),
        maximum=maximum,
        idle=idle.ttft(URGENT, 0, given.seconds - 2),
        record=SimulatedPool(given, pickers, hear, flow_control=True).run(flows, end),
        begin=given.settle,
        end=end,
        fair=real.fair(flows[1:-1], 1 - given.urgent, maximum / given.tokens),
    )


def main() -> None:
    parser = real.parser(__doc__)
    parser.add_argument("--delay-ms", type=float, default=1.0, help="of a message between pickers (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    parser.set_defaults(settle=30.0, part=60.0, seconds=80.0)  # in sum below the time to live
    given = parser.parse_args()
    print(real.HEAD)
    numbers = [int(word) for word in given.pickers.split(",")]
    columns = []
    for hear in given.hear.split(","):
        for pickers in numbers if hear == "all" else [max(numbers)]:
            result = case(given, pickers, hear)
            print(real.row(result), flush=True)
            columns.append(real.panels(result))
    if given.plot:
        Path(given.plot).write_text(draw(columns), encoding="utf-8")


if __name__ == "__main__":
    main()
