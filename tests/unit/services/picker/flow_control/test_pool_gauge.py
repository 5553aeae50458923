"""How many requests go between two looks of the saturation detector."""

from collections.abc import Iterable
from math import inf
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

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
from shared.model import ROLE, Endpoint
from tests.unit.services.picker.flow_control.flows import Picker, parameters
from tests.unit.services.picker.world import endpoint, load, pool

LIMITS = {"maxConcurrency": 50, "maxTokenConcurrency": 5000}
"""Of each of two endpoints."""


class Owner:
    def released(self) -> None: ...
    def requeue(self) -> None: ...
    def evict(self) -> None: ...
    def may_wait(self) -> bool:
        return True

    def wait_deadline(self, now: float) -> float:
        return inf


class Gauged:
    """A pool of these endpoints, or of two, and the gauge at one moment."""

    def __init__(self, detector: SaturationDetector, *members: Endpoint | str) -> None:
        self.view: View = pool(*(members or ("a1", "a2")))
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


ROLES = {"p1": "prefill", "d2": "decode", "d3": "decode", "b4": "both", "e5": "encode"}


@pytest.mark.parametrize(
    ("fill", "mode", "charges", "holds"),
    [
        ({"p1": 5}, "requests", [("d2",), ("d2", "p1"), ("b4",), ("e5",), ("gone", "p1")], [0, 1, 1, 0, 1]),
        ({"d2": 5, "d3": 5}, "requests", [("d2",), ("d2", "p1"), ("p1",), ("gone",)], [1, 1, 0, 0]),
        ({"p1": 5}, "tokens", [("d2", "p1"), ("p1",)], [1, 1]),
        ({"p1": 5}, "tokens, until read", [("d2", "p1"), ("p1",)], [1, 0]),
        ({"p1": 5}, "hybrid, until read", [("d2", "p1"), ("p1",)], [1, 1]),
        ({"p1": 5}, "requests, until response", [("d2", "p1"), ("b4", "p1")], [0, 1]),
    ],
)
def test_who_takes_room_on_the_fullest_stage(
    fill: dict[str, int], mode: str, charges: list[tuple[str, ...]], holds: list[int]
) -> None:
    detector = parameters(ConcurrencyDetector, concurrencyMode=mode.partition(",")[0])
    gauged = Gauged(detector, *(replace(endpoint(name), labels={ROLE: role}) for name, role in ROLES.items()))
    in_flight = gauged.view.in_flight
    for name, count in fill.items():
        for _ in range(count):
            in_flight.charge(name, 1000)
    filled = gauged.gauge.at(1.0).fullest()
    made = [in_flight.charge_all(id, 100, [(other, 100, True) for other in others]) for id, *others in charges]
    for charge in made:
        if "read" in mode:
            charge.release_tokens()
        if "response" in mode:
            charge.response_began()
    assert filled.name == ("prefill" if "p1" in fill else "decode")
    assert (filled.saturation, filled.in_flight) == (max(gauged.gauge.stages.values()), sum(fill.values()))
    assert [filled.holds(charge) for charge in made] == [bool(held) for held in holds]
    for charge in made:
        charge.release()
    assert not any(map(filled.holds, made))


def test_what_runs_on_a_draining_endpoint_takes_no_room() -> None:
    gauged = Gauged(parameters(ConcurrencyDetector), "a1", replace(endpoint("a2"), draining=True))
    stage = gauged.gauge.at(1.0).fullest()
    assert [stage.holds(gauged.view.in_flight.charge(name, 1)) for name in ("a1", "a2")] == [True, False]


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
    assert gauged.gauge.fullest().holds(gauged.charges[0])
    assert gauged.failures
