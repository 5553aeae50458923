"""How many requests go between two looks of the saturation detector."""

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np
import pytest

from services.picker.flow_control.concurrency import ConcurrencyDetector
from services.picker.flow_control.pool_gauge import AGE, PoolGauge
from services.picker.flow_control.ticket import Gate, Ticket
from services.picker.flow_control.waiting import Outcome
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import SaturationDetector
from services.picker.state.inflight import Charge
from services.picker.state.layout import Rows
from services.picker.state.view import View
from shared.config.schema import StaleMetrics
from tests.unit.services.picker.flow_control.flows import Picker, parameters
from tests.unit.services.picker.world import load, pool

LIMITS = {"maxConcurrency": 50, "maxTokenConcurrency": 5000}
"""Of each of two endpoints."""


class Owner:
    def released(self) -> None: ...
    def requeue(self) -> None: ...
    def evict(self) -> None: ...
    def wait_deadline(self, now: float) -> float:
        return inf


class Gauged:
    """A pool of two endpoints, and the gauge at one moment."""

    def __init__(self, detector: SaturationDetector) -> None:
        self.view: View = pool("a1", "a2")
        self.failures: list[str] = []
        self.gauge = PoolGauge(
            self.view,
            detector,
            StaleMetrics(),
            np.random.default_rng(1),
            lambda plugin, error, _: self.failures.append(f"{plugin}: {error}"),
        )
        self.charges: list[Charge] = []

    def ticket(self, tokens: int) -> Ticket:
        """Of a request with so many tokens."""
        gate = Gate(Picker().controller, None, self.gauge, print)
        return Ticket("a", 0, 1.0, tokens=tokens, owner=Owner(), gate=gate)

    def fill(self, tokens: Iterable[int], pending: bool = False) -> int:
        """Let requests of these tokens go until one doesn't fit; how many went."""
        went = 0
        for each in tokens:
            gauge = self.gauge.expect(each, 1.0)
            if not (gauge.saturation < 1.0 and gauge.room(1.0) >= 1):
                break
            went += 1
            if pending:
                self.ticket(each).ends(Outcome.DISPATCHED, 1.0)
            else:
                endpoint = self.view.layout.endpoints[went % 2].id
                self.charges.append(self.view.in_flight.charge(endpoint, each))
        return went


@pytest.mark.parametrize("pending", [False, True])
@pytest.mark.parametrize(
    ("mode", "tokens", "fit"),
    [
        ("requests", [5000] * 200, 100),
        ("tokens", [1] * 20000, 10000),
        ("tokens", [1250] * 100, 8),
        ("tokens", [25] * 100 + [1250] * 100, 106),
        ("tokens", [1250] * 4 + [25] * 300, 204),
        ("hybrid", [1] * 200, 100),
        ("hybrid", [1250] * 100, 8),
        ("hybrid", [25] * 90 + [1250] * 100, 97),
    ],
)
def test_what_fits_between_two_readings(mode: str, tokens: list[int], fit: int, pending: bool) -> None:
    """One more of the average may fit: room is a whole number of those."""
    gauged = Gauged(parameters(ConcurrencyDetector, **LIMITS, concurrencyMode=mode))
    assert fit <= gauged.fill(tokens, pending) <= fit + (mode != "requests")
    assert gauged.failures == []


def test_what_ends_gives_its_tokens_back() -> None:
    gauged = Gauged(parameters(ConcurrencyDetector, **LIMITS, concurrencyMode="tokens"))
    assert gauged.fill([1000] * 100) == 10
    for charge in gauged.charges[:3]:
        charge.release()
    gauged.charges[3].release_tokens()
    assert gauged.gauge.room(1.0) == 4


def test_a_ticket_pends_until_it_is_charged() -> None:
    gauged = Gauged(parameters(ConcurrencyDetector, **LIMITS, concurrencyMode="tokens"))
    gauged.gauge.expect(1000, 1.0)
    ticket = gauged.ticket(3000)
    ticket.ends(Outcome.DISPATCHED, 1.0)
    assert gauged.gauge.at(1.0).room(1.0) == 7
    ticket.charged()
    ticket.charged()
    assert gauged.gauge.room(1.0) == 10


def test_a_request_of_any_length_pends_with_what_it_will_be_charged() -> None:
    gauged = Gauged(parameters(ConcurrencyDetector, concurrencyMode="tokens", maxTokenConcurrency=10**6))
    gauged.gauge.expect(10**7, 1.0)
    ticket = gauged.ticket(10**7)
    ticket.ends(Outcome.DISPATCHED, 1.0)
    assert gauged.gauge.at(1.0).room(1.0) == 1
    gauged.view.in_flight.charge("a1", 10**7)
    ticket.charged()
    assert gauged.gauge.room(1.0) == 1


def test_what_peers_dispatch_takes_room() -> None:
    gauged = Gauged(parameters(ConcurrencyDetector, **LIMITS, concurrencyMode="tokens"))
    gauged.gauge.expect(1000, 1.0)
    assert gauged.gauge.at(1.0).room(1.0) == 10
    gauged.view.apply_load(load("peer", {gauged.view.layout.endpoints[0].id: (2, 4000)}), 1.0)
    assert gauged.gauge.room(1.0) == 6


class Counting(ConcurrencyDetector):
    """Counts how often it is asked, and may fail."""

    asked = 0
    broken: Any = None

    def room(self, cycle: Cycle, rows: Rows, ceiling: float, tokens: float) -> float:
        self.asked += 1
        return super().room(cycle, rows, ceiling, tokens)

    def places(self, requests: float, tokens: float, average: float) -> float:
        return super().places(requests, tokens, average) if self.broken is None else self.broken()


def test_the_detector_is_asked_once_a_reading() -> None:
    detector = parameters(Counting, **LIMITS)
    gauged = Gauged(detector)
    gauged.fill([100] * 50)
    assert detector.asked == 1
    gauged.gauge.at(1.0 + AGE).room(1.0)
    assert detector.asked == 2


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: float("nan"), lambda: None])
def test_where_the_detector_fails_each_request_takes_one_place(broken: Any) -> None:
    detector = parameters(Counting, **LIMITS)
    detector.broken = broken
    gauged = Gauged(detector)
    assert gauged.fill([100] * 200) == 100
    assert gauged.failures
