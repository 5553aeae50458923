"""A picker's view that differs from what it was told is found and repaired."""

from typing import Any, cast

import pytest

from services.picker.reports.convergence import INTERVAL, Convergence
from services.picker.reports.reports import Parts
from services.picker.state.prefix_peers import PrefixPeers
from services.picker.state.view import View
from shared.model import Configuration
from tests.unit.services.picker.world import NOW, endpoint, facts, load, pool


class Told:
    """A replica that has these facts, and nobody else's placements."""

    def __init__(self, view: View) -> None:
        self.synced = True
        self.known = facts(endpoint("a"), endpoint("b")) | {"pool.config": Configuration(text="x")}
        self.peers = PrefixPeers(view.prefixes)

    def facts(self) -> dict[str, Any]:
        return self.known


def looking(view: View) -> tuple[Told, Convergence]:
    told = Told(view)
    parts: Any = cast(Parts, type("Few", (), {"replica": told, "view": view, "prefixes": told}))
    return told, Convergence(parts)


def found(convergence: Convergence) -> dict[str, int]:
    return {part: repairs.found for part, repairs in convergence.repairs(NOW).items()}


def test_a_view_that_agrees_is_left_alone() -> None:
    view = pool("a", "b")
    view.in_flight.charge("a", 5)
    view.apply_load(load("peer", {"a": (3, 30), "gone": (1, 1)}), NOW)
    _, convergence = looking(view)
    layout = view.layout
    convergence.compare_if_due(NOW)
    assert found(convergence) == {"view": 0, "load": 0, "prefixes": 0}
    assert view.layout is layout


@pytest.mark.parametrize("named", [("a",), ("a", "b", "c"), ()])
def test_facts_that_differ_are_replaced(named: tuple[str, ...]) -> None:
    view = pool(*named)
    _, convergence = looking(view)
    convergence.compare_if_due(NOW)
    assert [endpoint.id for endpoint in view.layout.endpoints] == ["a", "b"]
    assert found(convergence)["view"] == 1
    convergence.compare_if_due(NOW + INTERVAL)
    assert found(convergence)["view"] == 1


def test_sums_of_load_that_differ_are_made_anew() -> None:
    view = pool("a", "b")
    view.in_flight.charge("b", 5)
    view.apply_load(load("peer", {"a": (3, 30)}), NOW)
    _, convergence = looking(view)
    view.in_flight.requests[0] += 1
    convergence.compare_if_due(NOW)
    assert view.in_flight.requests.tolist() == [3.0, 1.0]
    assert view.in_flight.count == 4.0
    assert found(convergence)["load"] == 1


def test_comparisons_are_rare() -> None:
    view = pool("a", "b")
    told, convergence = looking(view)
    convergence.compare_if_due(NOW)
    told.known = facts(endpoint("c"))
    convergence.compare_if_due(NOW + INTERVAL / 2)
    assert [endpoint.id for endpoint in view.layout.endpoints] == ["a", "b"]
