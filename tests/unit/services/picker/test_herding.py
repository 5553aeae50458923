"""Pickers that decide at the same time, between two tables of the load in flight, don't pile up on one endpoint."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from services.picker.pipeline import build
from services.picker.request import Route
from services.picker.state.view import View
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from shared.config import load as load_configuration
from shared.plugin import Registry
from tests.unit.services.picker.world import NOW, load, pool, report, request

PROFILES = Path(__file__).parents[4] / "docs" / "profiles"
STICKY, WEIGHTED = (
    (PROFILES / f"{name}.yaml").read_text(encoding="utf-8") for name in ("sticky-until-saturated", "weighted-sum")
)
ACTIVE = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: active-request-scorer
"""
NAMES = [f"a{number}" for number in range(10)]


def picks(configuration: str, pickers: int, requests: int, seed: int, busy: int = 0) -> Counter[str]:
    """Where simultaneous requests go. All endpoints but the first one have `busy` requests of a peer's."""

    def world() -> View:
        view = pool(*NAMES)
        report(view, {WAITING_QUEUE_SIZE: [0] * len(NAMES), KV_CACHE_USAGE: [0.25] * len(NAMES)})
        for number in range(pickers - 1):
            table = dict.fromkeys(NAMES[1:], (busy, busy * 250)) if number == 0 else {}
            view.apply_load(load(f"peer{number}", table), NOW)
        return view

    views = [world() for _ in range(pickers)]
    directors = [
        build(
            load_configuration(configuration, Registry.installed()), np.random.default_rng([seed, at]), float
        ).director
        for at in range(pickers)
    ]
    found: Counter[str] = Counter()
    for number in range(requests):
        view, director = views[number % pickers], directors[number % pickers]
        decision = director.decide(request(b"%04d" % number * 250, id=f"request-{number}"), view, NOW)
        assert isinstance(decision.outcome, Route)
        chosen = decision.layout.endpoints[decision.picked[0]].id
        view.in_flight.charge(chosen, decision.tokens)
        found[chosen] += 1
    return found


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("configuration", ["", WEIGHTED, ACTIVE], ids=["default", "weighted", "active"])
def test_a_hundred_requests_at_once_over_two_pickers_are_spread_over_ten_endpoints(
    configuration: str, seed: int
) -> None:
    assert max(picks(configuration, 2, 100, seed).values()) <= 14


@pytest.mark.parametrize("configuration", [STICKY, ACTIVE], ids=["sticky", "active"])
@pytest.mark.parametrize("pickers", [2, 4, 8])
def test_an_endpoint_that_all_pickers_know_to_be_idle_is_filled_once_and_not_by_each_of_them(
    configuration: str, pickers: int
) -> None:
    """It has room for 24 requests until it is as busy as the others."""
    found = picks(configuration, pickers, 24, 1, busy=24)
    assert found[NAMES[0]] == 24
    found = picks(configuration, pickers, 100, 1, busy=24)
    assert found[NAMES[0]] <= 24 + 100 / len(NAMES)
