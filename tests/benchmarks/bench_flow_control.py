"""What flow control costs: alone, and with the tables of three other pickers.

    python -m tests.benchmarks.bench_flow_control

Queues 50 000 requests of 1 000 flows, for each fairness policy, and prints the memory of a waiting request, the CPU
microseconds of queueing one, of one that passes an idle queue (`unsaturated`), and of a dispatch with the end of an
earlier request, while the pool is full: without peers, and with three whose tables come every 20 ms (`4 pickers`; the
figure includes taking the tables in and making one's own). A dispatch's figure is that of the best of ten parts of the
run. The clock of the simulated time goes 1 ms a dispatch. The last column is the CPU milliseconds of the longest of all
calls of the run, without the garbage collector's; among them are those that cancel half of the queue, one each.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

from services.picker.flow_control.controller import FlowController
from services.picker.flow_control.fairness.global_strict import GlobalStrictFairnessPolicy
from services.picker.flow_control.fairness.program_aware import ProgramAwareFairness
from services.picker.flow_control.fairness.round_robin import RoundRobinFairnessPolicy
from services.picker.flow_control.interfaces import FairnessPolicy
from services.picker.flow_control.ordering.fcfs import FcfsOrderingPolicy
from services.picker.flow_control.settings import BandSettings, FlowControlSettings
from services.picker.flow_control.usage_limits.static import StaticUsageLimitPolicy
from services.picker.flow_control.waiting import Outcome, Waiting
from shared.bus.messages import QueueTable

REQUESTS, FLOWS, CAPACITY, PEERS = 50_000, 1_000, 400, 3
DISPATCHES = 10_000
PARTS = 10
"""In which they are timed; the best counts, as other processes slow the others down."""
TABLE_EVERY = 20
"""Dispatches between two tables of each picker."""


class FullPool:
    """Takes so many requests at once."""

    empty = False

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.in_flight = 0

    @property
    def saturation(self) -> float:
        return self.in_flight / self.capacity

    def room(self, ceiling: float) -> float:
        return ceiling * self.capacity - self.in_flight


class Run:
    """A controller under load, and the longest of its calls."""

    def __init__(self, fairness: FairnessPolicy, id: str, capacity: float) -> None:
        band = BandSettings(FcfsOrderingPolicy("fcfs"), fairness, REQUESTS, 10**12)
        limits = StaticUsageLimitPolicy("static")
        settings = FlowControlSettings(bands={}, template=band, negative_template=band, usage_limits=limits)
        self.pool = FullPool(capacity)
        self.running: list[Waiting] = []
        self.controller = FlowController(settings, self.outcome, id=id)
        self.now, self.longest = 1.0, 0.0

    def outcome(self, item: Waiting, outcome: Outcome) -> None:
        if outcome is Outcome.DISPATCHED:
            self.pool.in_flight += 1
            self.running.append(item)

    def timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        started = time.thread_time()
        result = call(*arguments)
        self.longest = max(self.longest, time.thread_time() - started)
        return result

    def fill(self, count: int) -> list[Waiting]:
        items = [Waiting(f"flow-{number % FLOWS}", 0, self.now, bytes=2000, tokens=500) for number in range(count)]
        for item in items:
            self.now += 1e-5
            self.timed(self.controller.enqueue, item, self.now)
        return items

    def finish_one(self) -> None:
        item = self.running.pop(len(self.running) // 2)
        self.pool.in_flight -= 1
        self.controller.finished(item, self.now, 500, 200)


def unsaturated(fairness: FairnessPolicy) -> float:
    """CPU seconds of a request that waits for nothing."""
    run = Run(fairness, "a", 1e9)
    items = [Waiting(f"flow-{number % FLOWS}", 0, 1.0, bytes=2000, tokens=500) for number in range(DISPATCHES)]
    started = time.process_time()
    for item in items:
        if run.controller.passes(item, run.now, run.pool):
            run.outcome(item, Outcome.DISPATCHED)
    spent = time.process_time() - started
    assert len(run.running) == DISPATCHES
    for item in items:
        run.controller.finished(item, run.now)
    return spent / DISPATCHES


def dispatches(run: Run, peers: list[Run]) -> float:
    """CPU seconds of a dispatch and of the end of a request, with everything that tables cost."""
    spent, dispatched = 0.0, 0
    parts: list[float] = []
    while len(parts) < PARTS:
        run.now += 0.001
        tables: list[tuple[str, QueueTable]] = []
        if peers and int(run.now * 1000) % TABLE_EVERY == 0:
            for number, peer in enumerate(peers):
                peer.now = run.now
                peer.fill(1)
                if peer.running:
                    peer.finish_one()
                peer.controller.dispatch(peer.now, peer.pool)
                tables.append((f"peer-{number}", peer.controller.table(peer.now)))
        started = time.process_time()
        if tables:
            run.timed(run.controller.table, run.now)
            for sender, table in tables:
                run.timed(run.controller.apply, sender, 1, run.now, table, run.now)
        if run.running:
            run.timed(run.finish_one)
        done = run.timed(run.controller.dispatch, run.now, run.pool)
        spent += time.process_time() - started
        dispatched += done
        if dispatched >= DISPATCHES / PARTS:
            parts.append(spent / dispatched)
            spent, dispatched = 0.0, 0
    return min(parts)


def measure(kind: type[FairnessPolicy]) -> list[float]:
    """The row of a policy."""
    gc.collect()
    tracemalloc.start()
    run = Run(kind(kind.TYPE), "m", CAPACITY)
    before = tracemalloc.get_traced_memory()[0]
    run.fill(REQUESTS)
    memory = (tracemalloc.get_traced_memory()[0] - before) / REQUESTS
    tracemalloc.stop()
    run = Run(kind(kind.TYPE), "m", CAPACITY)
    gc.collect()
    gc.disable()
    started = time.process_time()
    items = run.fill(REQUESTS)
    queueing = (time.process_time() - started) / REQUESTS
    alone = dispatches(run, [])
    for item in items[::2]:
        run.timed(run.controller.cancel, item, run.now)
    shared = Run(kind(kind.TYPE), "m", CAPACITY / (PEERS + 1))
    peers = [Run(kind(kind.TYPE), f"peer-{number}", CAPACITY / (PEERS + 1)) for number in range(PEERS)]
    for table in [shared, *peers]:
        table.fill(REQUESTS if table is shared else REQUESTS - DISPATCHES)
        table.controller.dispatch(table.now, table.pool)
    with_peers = dispatches(shared, peers)
    longest = max(run.longest, shared.longest)
    gc.enable()
    return [memory, queueing * 1e6, unsaturated(kind(kind.TYPE)) * 1e6, alone * 1e6, with_peers * 1e6, longest * 1e3]


def main() -> None:
    print(f"{REQUESTS} requests in {FLOWS} flows          bytes  µs to    µs un-     µs a dispatch       longest")
    print("fairness                          a request  queue  saturated  alone   4 pickers    call, ms")
    for kind in (GlobalStrictFairnessPolicy, RoundRobinFairnessPolicy, ProgramAwareFairness):
        memory, queueing, passing, alone, shared, longest = measure(kind)
        print(
            f"{kind.TYPE:33} {memory:9.0f}  {queueing:5.1f}  {passing:9.1f}  {alone:5.1f}  {shared:10.1f}"
            f"  {longest:10.2f}"
        )


if __name__ == "__main__":
    main()
