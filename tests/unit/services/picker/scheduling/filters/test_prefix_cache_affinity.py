"""`prefix-cache-affinity-filter`: sticky until saturated."""

from typing import Any

import numpy as np
import pytest

from services.picker.pipeline import build
from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.scheduling.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from shared.config import load as load_config
from shared.plugin import Registry
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import NOW, cycle, load, pool, request

PARAMETERS = PrefixCacheAffinityFilter.Parameters
DEFAULT_GAP = 286_704
"""Tokens: 15 928 a second for 18 s."""


def kept(
    raw: dict[str, Any],
    matched: list[float],
    in_flight: list[tuple[int, int]] | None = None,
    total: int = 10,
    seed: int = 1,
) -> list[int]:
    """What stays of endpoints with so many requests and tokens in flight."""
    names = [f"a{number}" for number in range(len(matched))]
    view = pool(*names)
    if in_flight is not None:
        view.apply_load(load("peer", dict(zip(names, in_flight, strict=True))), NOW)
    run = cycle(view, seed=seed)
    if total >= 0:
        run.put(PREFIX_MATCH, PrefixMatch(np.array(matched, np.float64), total, 64))
    found: list[int] = plugin(PrefixCacheAffinityFilter, raw).filter(run, run.candidates).tolist()
    return found


@pytest.mark.parametrize(
    ("raw", "matched", "tokens", "expected"),
    [
        ({}, [], [], []),
        ({}, [0], [0], [0]),
        ({}, [8, 7, 10], None, [0, 2]),  # 0.8 and above
        ({}, [8, 7.99], None, [0]),
        ({}, [7, 0], None, [0, 1]),  # none is sticky
        ({}, [9, 9], None, [0, 1]),  # all are
        ({"affinityThreshold": 0}, [10, 0], None, [0, 1]),
        ({"affinityThreshold": -1}, [10, 0], None, [0, 1]),
        ({"affinityThreshold": 1}, [10, 9], None, [0]),
        ({"affinityThreshold": 0.6}, [6, 5], None, [0]),
        # the gap
        ({}, [10, 0], [DEFAULT_GAP, 0], [0]),
        ({}, [10, 0], [DEFAULT_GAP + 1, 0], [0, 1]),
        ({}, [10, 0], [DEFAULT_GAP + 500, 500], [0]),
        ({}, [10, 10, 0, 0], [900_000, 100, 50, 900_000], [0, 1]),  # the least of each side: 100 and 50
        ({"maxTTFTPenaltyMs": 0}, [10, 0], [9_000_000, 0], [0]),
        ({"maxTTFTPenaltyMs": 1000, "peakPrefillThroughput": 100}, [10, 0], [100, 0], [0]),
        ({"maxTTFTPenaltyMs": 1000, "peakPrefillThroughput": 100}, [10, 0], [101, 0], [0, 1]),
        ({"explorationProbability": 1}, [10, 0], None, [0, 1]),
    ],
)
def test_endpoints_with_the_prompt_until_they_are_saturated(
    raw: dict[str, Any], matched: list[float], tokens: list[int] | None, expected: list[int]
) -> None:
    assert kept(raw, matched, None if tokens is None else [(1, count) for count in tokens]) == expected


@pytest.mark.parametrize(
    ("raw", "matched", "in_flight", "expected"),
    [
        # requests and tokens in flight, of each endpoint
        ({}, [10, 0], [(900, 0), (0, 0)], [0]),  # without the parameter they don't matter
        ({"maxRequestGap": 4}, [10, 0], [(4, 0), (0, 0)], [0]),
        ({"maxRequestGap": 4}, [10, 0], [(5, 0), (0, 0)], [1]),
        ({"maxRequestGap": 4}, [10, 0, 0], [(7, 0), (3, 0), (2, 0)], [1, 2]),
        ({"maxRequestGap": 4}, [10, 0, 0], [(7, 0), (8, 0), (2, 0)], [2]),
        ({"maxRequestGap": 4}, [0, 0], [(9, 0), (0, 0)], [0, 1]),  # none is sticky
        ({"maxRequestGap": 4}, [10, 0, 0], [(3, 0), (9, 0), (0, 0)], [0]),  # another one is busy
        # two have it; the second while it computes the prompt, and then
        ({"maxRequestGap": 4}, [10, 10, 0], [(9, 40), (0, 1000), (0, 0)], [0, 1]),
        ({"maxRequestGap": 4}, [10, 10, 0], [(9, 40), (0, 40), (0, 0)], [1]),
        ({"maxRequestGap": 4}, [10, 10], [(9, 40), (0, 40)], [1]),
        # the gap of the tokens counts too
        ({"maxRequestGap": 4}, [10, 10, 0], [(9, DEFAULT_GAP + 2), (0, DEFAULT_GAP + 1), (0, 0)], [0, 1, 2]),
    ],
)
def test_endpoints_with_the_prompt_until_they_have_too_many_requests(
    raw: dict[str, Any], matched: list[float], in_flight: list[tuple[int, int]], expected: list[int]
) -> None:
    assert kept(raw, matched, in_flight) == expected


@pytest.mark.parametrize("total", [0, -1], ids=["no blocks", "no match is known"])
def test_without_a_prompt_all_pass(total: int) -> None:
    assert kept({}, [0, 0], total=total) == [0, 1]


def test_some_requests_explore() -> None:
    explored = [len(kept({"explorationProbability": 0.25}, [10, 0], seed=seed)) - 1 for seed in range(200)]
    assert 30 < sum(explored) < 70


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        ({"affinityThreshold": 1.1}, "at.affinityThreshold: 1.1 is above 1"),
        ({"explorationProbability": -0.1}, "at.explorationProbability: -0.1 is negative"),
        ({"maxTTFTPenaltyMs": -1}, "at.maxTTFTPenaltyMs: -1 is negative"),
        ({"peakPrefillThroughput": 0}, "at.peakPrefillThroughput: 0 is not above 0"),
        ({"maxRequestGap": -1}, "at.maxRequestGap: -1 is negative"),
        ({"ttftSource": "oracle"}, "at.ttftSource: 'oracle' isn't one of 'latencyPredictor', 'prefillThroughput'"),
    ],
)
def test_parameters_out_of_range(raw: dict[str, Any], error: str) -> None:
    assert read(PARAMETERS, raw)[1] == [error]


def test_a_prediction_is_replaced_with_a_warning() -> None:
    parameters, _ = read(PARAMETERS, {"ttftSource": "latencyPredictor"})
    assert PrefixCacheAffinityFilter.deprecations(parameters)
    assert not PrefixCacheAffinityFilter.deprecations(read(PARAMETERS, {})[0])


STICKY = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: token-load-scorer
- type: prefix-cache-affinity-filter
  parameters: {peakPrefillThroughput: 100, maxTTFTPenaltyMs: 10000}
"""


def test_a_prompt_sticks_breaks_out_at_the_gap_and_returns() -> None:
    view = pool("a1", "a2")
    director = build(load_config(STICKY, Registry.installed()), np.random.default_rng(1), lambda: 0.0).director
    asked = request(b"x" * 4 * 640)

    def goes_to() -> int:
        return director.decide(asked, view, NOW).picked[0]

    home = goes_to()
    name, other = view.layout.endpoints[home].id, 1 - home
    assert [goes_to() for _ in range(5)] == [home] * 5
    charge = view.in_flight.charge(name, 1000)  # 10 s of work
    assert goes_to() == home
    more = view.in_flight.charge(name, 1)
    assert goes_to() == other
    charge.release()
    more.release()
    view.in_flight.charge(view.layout.endpoints[other].id, 2000)  # both have the prompt by now
    assert goes_to() == home


@pytest.mark.parametrize(
    ("matched", "in_flight", "down", "expected"),
    [
        ([10, 10, 0], [(1, 0), (1, 0), (1, 0)], [0], [1]),
        ([10, 0, 0], [(1, 0), (1, 0), (1, 0)], [0], [0, 1, 2]),  # the one that has it seems to be down: none is sticky
        ([10, 0, 0], [(1, 900_000), (1, 0), (1, 0)], [1, 2], [0]),  # so do the others: their emptiness says nothing
        ([10, 0, 0], [(1, 900_000), (1, 0), (1, 800_000)], [1], [0]),
        ([10, 0, 0], [(1, 900_000), (1, 0), (1, 0)], [1], [0, 1, 2]),
        ([10, 0, 0], [(9, 0), (0, 0), (6, 0)], [1], [0]),
        ([10, 0, 0], [(9, 0), (0, 0), (2, 0)], [1], [1, 2]),
    ],
)
def test_an_endpoint_that_seems_to_be_down_is_neither_sticky_nor_an_alternative(
    matched: list[float], in_flight: list[tuple[int, int]], down: list[int], expected: list[int]
) -> None:
    names = [f"a{number}" for number in range(len(matched))]
    view = pool(*names)
    view.apply_load(load("peer", dict(zip(names, in_flight, strict=True))), NOW)
    for row in down:
        view.health.suspect(view.layout.endpoints[row], NOW)
    run = cycle(view)
    run.put(PREFIX_MATCH, PrefixMatch(np.array(matched, np.float64), 10, 64))
    found = plugin(PrefixCacheAffinityFilter, {"maxRequestGap": 4}).filter(run, run.candidates)
    assert found.tolist() == expected
