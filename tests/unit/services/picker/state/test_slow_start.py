"""Slow start: how the weight of a new endpoint rises, and how much of the load it gets meanwhile."""

from collections import Counter
from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from services.picker.admin.metrics import PickerMetrics
from services.picker.state.inflight import Charge
from services.picker.state.slow_start import MIN_WEIGHT
from services.picker.state.view import View
from shared.model import ROLE, Endpoint
from tests.unit.services.picker.test_director import decide, director
from tests.unit.services.picker.world import NOW, endpoint, facts, request

WINDOW = 10.0
LEAST_BUSY = "plugins:\n- {type: active-request-scorer}\n- {type: max-score-picker}\n"
RANDOM = "plugins:\n- {type: random-picker}\n"
ONLY_NEW = "plugins:\n- {type: by-label, parameters: {label: tier, validValues: [new]}}\n- {type: max-score-picker}\n"


def view_of(*members: Endpoint, window: float = WINDOW) -> View:
    view = View(slow_start=window)
    view.reset(facts(*members))
    assert len(view.layout) == len(members)
    return view


def serving(name: str, role: str) -> Endpoint:
    return replace(endpoint(name), labels={ROLE: role})


def add(view: View, *members: Endpoint) -> None:
    for member in members:
        view.upsert(f"pool.endpoint.{member.id}", member)


def charged(view: View, requests: Mapping[str, int]) -> list[Charge]:
    return [view.in_flight.charge(id, 1) for id, count in requests.items() for _ in range(count)]


def weights(view: View, now: float = NOW) -> list[float]:
    assert len(view.layout)  # changed endpoints first
    found: list[float] = view.slow_start.weights(now).tolist()
    return found


def held_back(view: View, now: float) -> list[str]:
    layout = view.layout
    rows, _ = view.slow_start.held_back(layout.candidates, view.in_flight.requests, view.health.unhealthy, now)
    return [layout.endpoints[row].id for row in rows.tolist()]


@pytest.mark.parametrize(
    ("after", "weight"),
    [(0.0, MIN_WEIGHT), (0.5, MIN_WEIGHT), (2.5, 0.25), (5.0, 0.5), (9.9, 0.99), (10.0, 1.0), (1e6, 1.0)],
)
def test_the_weight_rises_within_the_window(after: float, weight: float) -> None:
    view = view_of(endpoint("a1"))
    add(view, endpoint("a2"))
    held_back(view, NOW)  # the window begins with the first decision
    assert weights(view, NOW + after) == pytest.approx([1.0, weight])
    assert view.slow_start.count(NOW + after) == (weight < 1)


@pytest.mark.parametrize(
    ("after", "loads", "held"),
    [
        (0.0, {"a1": 20, "a2": 20, "a3": 1}, False),  # ⌈0.1 · 20⌉ = 2
        (0.0, {"a1": 20, "a2": 20, "a3": 2}, True),
        (5.0, {"a1": 20, "a2": 10, "a3": 7}, False),  # ⌈0.5 · 15⌉ = 8
        (5.0, {"a1": 20, "a2": 10, "a3": 8}, True),
        (0.0, {}, False),  # one at least, in an idle pool
        (0.0, {"a3": 1}, True),
        (10.0, {"a3": 50}, False),
    ],
)
def test_it_gets_so_much_of_the_mean_of_the_others(after: float, loads: dict[str, int], held: bool) -> None:
    view = view_of(endpoint("a1"), endpoint("a2"))
    add(view, endpoint("a3"))
    held_back(view, NOW)
    charges = charged(view, loads)
    assert held_back(view, NOW + after) == (["a3"] if held else [])
    assert all(charges) or not loads


def test_who_is_new() -> None:
    view = view_of(endpoint("a1"), endpoint("a2"), replace(endpoint("a3"), draining=True))
    assert not view.slow_start.active  # a picker that starts knows nothing of the past
    add(view, replace(endpoint("a2"), labels={"x": "y"}))
    assert weights(view) == [1.0, 1.0, 1.0]
    add(view, replace(endpoint("a2"), uid="another server"))
    assert weights(view) == [1.0, MIN_WEIGHT, 1.0]
    add(view, endpoint("a3"))
    assert weights(view) == [1.0, MIN_WEIGHT, MIN_WEIGHT]
    add(view, replace(endpoint("a3"), draining=True))
    assert weights(view) == [1.0, MIN_WEIGHT, 1.0]


def test_no_window_no_slow_start() -> None:
    view = view_of(endpoint("a1"), window=0.0)
    add(view, endpoint("a2"))
    assert weights(view) == [1.0, 1.0]
    assert not view.slow_start.active


def test_it_is_measured_by_the_servers_of_its_role() -> None:
    view = view_of(serving("p1", "prefill"), serving("d2", "decode"))
    add(view, serving("p3", "prefill"), serving("d4", "decode"), serving("e5", "encode"))  # e5 is alone in its role
    charges = charged(view, {"p1": 100, "p3": 9, "d2": 10, "d4": 1, "e5": 5})
    assert held_back(view, NOW) == ["d4"]
    assert charges


def test_without_warm_servers_that_are_up_nothing_is_held_back() -> None:
    view = view_of(endpoint("a1"))
    add(view, endpoint("a2"))
    charges = charged(view, {"a2": 5})
    assert held_back(view, NOW) == ["a2"]
    view.health.suspect(endpoint("a1"), NOW)
    assert held_back(view, NOW) == []
    assert charges


@pytest.mark.parametrize("document", [LEAST_BUSY, RANDOM])
def test_under_load_its_share_rises_with_its_weight_whatever_picks(document: str) -> None:
    """40 requests at a time; each that ends makes room for the next."""
    view, made = view_of(endpoint("a1"), endpoint("a2"), endpoint("a3")), director(document)
    add(view, endpoint("a4"))
    under_way: list[tuple[str, Charge]] = []
    shares: list[float] = []
    for now in np.arange(0.0, 2 * WINDOW, 0.01):
        if len(under_way) == 40:
            under_way.pop(0)[1].release()
        decision = made.decide(request(), view, NOW + float(now))
        id = decision.layout.endpoints[decision.picked[0]].id
        under_way.append((id, view.in_flight.charge(id, 1)))
        shares.append(Counter(name for name, _ in under_way)["a4"] / len(under_way))
    means = [float(np.mean(shares[at : at + 100])) for at in (100, 300, 500, 700, 1500)]
    assert means == sorted(means)
    assert means[0] <= 0.1
    assert 0.15 <= means[-1] <= 0.35


def test_a_request_that_only_it_can_take_goes_there() -> None:
    view = view_of(endpoint("a1"))
    add(view, endpoint("a2", tier="new"))
    charges = charged(view, {"a2": 3})
    assert held_back(view, NOW) == ["a2"]
    made = director(ONLY_NEW).decide(request(), view, NOW)
    assert [made.layout.endpoints[row].id for row in made.picked] == ["a2"]
    assert charges


def test_the_explanation_and_the_metrics_show_it() -> None:
    view = view_of(endpoint("a1"), endpoint("a2"))
    add(view, endpoint("a3"))
    charges = charged(view, {"a3": 2})
    explanation = decide(view, document=LEAST_BUSY).explain()
    assert explanation["profiles"]["default"]["ranked_last"] == {"a3": "slow start"}
    assert explanation["inputs"]["SlowStartWeight"]["a3"]["value"] == pytest.approx(MIN_WEIGHT)
    registry = CollectorRegistry()
    PickerMetrics(registry, view, clock=lambda: NOW)
    assert registry.get_sample_value("pointsman_picker_slow_start_endpoints") == 1
    assert [each["slow_start_weight"] for each in view.state(NOW)] == [1.0, 1.0, MIN_WEIGHT]
    assert charges
