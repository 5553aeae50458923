"""Pickers with one pool, step by step: requests arrive at random, run for a while, and tables are on their way."""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from services.picker.flow_control.peers import EXPIRY
from services.picker.flow_control.settings import FlowControlSettings
from services.picker.flow_control.waiting import Waiting
from tests.unit.services.picker.flow_control.flows import Picker, Room

STEP = 0.002
PUBLISHED_EVERY = 0.02
ON_THE_WAY = 0.01
"""Seconds, half more or less."""


class PoolView(Room):
    """What one picker knows of the pool: its own requests, and what it has heard of the others'."""

    def __init__(self, capacity: float) -> None:
        super().__init__(capacity)
        self.heard: dict[str, tuple[int, float]] = {}
        """Of each peer: requests in flight, and when it said so."""

    def hear(self, sender: str, in_flight: int, sent: float) -> None:
        if sent >= self.heard.get(sender, (0, -1.0))[1]:
            self.heard[sender] = in_flight, sent

    def expire(self, now: float) -> None:
        self.heard = {sender: frame for sender, frame in self.heard.items() if now - frame[1] <= EXPIRY}

    def all_in_flight(self) -> int:
        return self.in_flight + sum(count for count, _ in self.heard.values())

    @property
    def saturation(self) -> float:
        return self.all_in_flight() / self.capacity if self.capacity else 1.0

    def room(self, ceiling: float) -> float:
        return ceiling * self.capacity - self.all_in_flight()


@dataclass
class Result:
    """What became of it, without the first fifth of the time."""

    steps: int = 0
    used: float = 0.0
    """Share of the pool's capacity, the mean over time."""
    excess: int = 0
    """Requests beyond the capacity, at most."""
    dispatched: Counter[str] = field(default_factory=Counter)
    """Requests by flow."""

    def jain(self, weights: Mapping[str, float] | None = None) -> float:
        """Jain's index of the flows' requests by weight: 1 is fair, 1 / flows is not."""
        got = [many / (weights or {}).get(flow, 1.0) for flow, many in self.dispatched.items()]
        return sum(got) ** 2 / (len(got) * sum(share * share for share in got))


def simulate(
    how: Sequence[FlowControlSettings],
    rates: Mapping[str, Sequence[float]],
    *,
    capacity: int,
    seconds: float,
    service: float = 0.5,
    share: bool = True,
) -> Result:
    """Requests of `rates[flow][picker]` a second, each of which runs for `service` seconds, a third more or less."""
    random, numbers, result = Random(1), count(), Result()
    pickers = [Picker(one, PoolView(capacity), id=f"picker-{at}") for at, one in enumerate(how)]
    publishes = [random.random() * PUBLISHED_EVERY for _ in pickers]
    ends: list[tuple[float, int, Picker, Waiting]] = []
    wires: list[tuple[float, int, Picker, tuple[Any, ...]]] = []
    for step in range(int(seconds / STEP)):
        now = step * STEP
        for flow, each in rates.items():
            for picker, rate in zip(pickers, each, strict=True):
                if random.random() < rate * STEP:
                    picker.now = now
                    picker.add(None, flow)
        while ends and ends[0][0] <= now:
            _, _, picker, item = heapq.heappop(ends)
            picker.now = now
            picker.finish(item, 100, 50)
        while wires and wires[0][0] <= now:
            _, _, picker, (sender, table, in_flight, sent) = heapq.heappop(wires)
            if share:
                picker.controller.apply(sender, 1, sent, table, now)
            picker.pool.hear(sender, in_flight, sent)  # type: ignore[attr-defined]
        for at, picker in enumerate(pickers):
            picker.now, before = now, len(picker.running)
            picker.controller.expire(now, False)
            picker.dispatch()
            for item in picker.running[before:]:
                heapq.heappush(ends, (now + service * random.uniform(0.67, 1.33), next(numbers), picker, item))
                result.dispatched[item.flow] += now > seconds / 5
            if now >= publishes[at]:
                publishes[at] = now + PUBLISHED_EVERY
                news = (f"picker-{at}", picker.controller.table(now), picker.pool.in_flight, now)
                for other in pickers:
                    if other is not picker:
                        arrives = now + ON_THE_WAY * random.uniform(0.5, 1.5)
                        heapq.heappush(wires, (arrives, next(numbers), other, news))
        if now > seconds / 5:
            in_flight = sum(picker.pool.in_flight for picker in pickers)
            result.steps += 1
            result.used += (min(in_flight, capacity) / capacity - result.used) / result.steps
            result.excess = max(result.excess, in_flight - capacity)
    return result
