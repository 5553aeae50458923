"""`active-request-scorer` and `token-load-scorer`: scores of the load in flight."""

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.scheduling.scorers.active_request import ActiveRequestParameters, ActiveRequestScorer
from services.picker.scheduling.scorers.token_load import DEFAULT_THRESHOLD, TokenLoadParameters, TokenLoadScorer
from services.picker.state.view import View
from tests.unit.services.picker.world import NOW, cycle, load, pool, request


def loaded(*rows: tuple[int, int]) -> View:
    """A pool whose peers have this many requests and tokens in flight at each endpoint."""
    names = [f"a{number}" for number in range(len(rows))]
    view = pool(*names)
    view.apply_load(load("peer", dict(zip(names, rows, strict=True))), NOW)
    return view


def active(parameters: ActiveRequestParameters, *requests: int) -> list[float]:
    view = loaded(*((count, 0) for count in requests))
    made: list[float] = ActiveRequestScorer("active", parameters).score(cycle(view), view.layout.all_rows).tolist()
    return made


@pytest.mark.parametrize(
    ("idle", "busy", "requests", "expected"),
    [
        (0, 1.0, (0, 1, 4), [1, 0.75, 0]),
        (1, 0.5, (1, 2, 4), [1, 0.25, 0]),
        (0, 1.0, (0, 0), [1, 1]),
        (9, 0.1, (3, 4), [1, 1]),
        (-3, 1.0, (0, 2), [1, 0]),
        (0, 1.5, (0, 1, 4), [1, 0.75, 0]),
        (0, -0.5, (0, 1, 4), [1, 0.75, 0]),
        (0, 0.0, (0, 1, 4), [1, 0, 0]),
    ],
)
def test_idle_scores_1_and_the_busiest_0(
    idle: int, busy: float, requests: tuple[int, ...], expected: list[float]
) -> None:
    parameters = ActiveRequestParameters(idle_threshold=idle, max_busy_score=busy)
    assert active(parameters, *requests) == expected


def test_requests_of_this_picker_and_of_its_peers_count_alike() -> None:
    view = loaded((1, 0), (1, 0))
    view.in_flight.charge("a1", 0)
    view.in_flight.published()
    assert ActiveRequestScorer("active").score(cycle(view), view.layout.all_rows).tolist() == [0.5, 0]


def test_a_request_timeout_is_pointed_out() -> None:
    assert ActiveRequestScorer.deprecations(ActiveRequestParameters(request_timeout="2m"))
    assert not ActiveRequestScorer.deprecations(ActiveRequestParameters())


def tokens(threshold: int, prompt_tokens: int, *load_tokens: int) -> list[float]:
    view = loaded(*((1, count) for count in load_tokens))
    parameters = TokenLoadParameters(queue_threshold_tokens=threshold)
    run = cycle(view, request(b"xxxx" * prompt_tokens))
    made: list[float] = TokenLoadScorer("tokens", parameters).score(run, view.layout.all_rows).tolist()
    return made


def test_the_tokens_in_flight_and_those_of_this_request_count_together() -> None:
    assert tokens(1000, 10, 0, 240, 490, 990, 2000) == pytest.approx([0.99, 0.75, 0.5, 0, 0])


def test_a_cached_prompt_adds_only_what_isnt_cached() -> None:
    view = loaded((0, 250), (0, 0), (0, 2000))
    run = cycle(view, request(b"xxxx" * 640))
    run.put(PREFIX_MATCH, PrefixMatch(np.array([10.0, 5.0, 10.0]), 10, 64))
    scorer = TokenLoadScorer("tokens", TokenLoadParameters(queue_threshold_tokens=1000))
    assert scorer.score(run, view.layout.all_rows).tolist() == pytest.approx([0.75, 0.68, 0.0])


@pytest.mark.parametrize("threshold", [0, -1])
def test_a_threshold_that_is_none_is_the_default(threshold: int) -> None:
    assert tokens(threshold, 1, 0) == [1 - 1 / DEFAULT_THRESHOLD]
