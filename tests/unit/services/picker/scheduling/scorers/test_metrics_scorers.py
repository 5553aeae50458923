"""`queue-scorer`, `running-requests-size-scorer` and `kv-cache-utilization-scorer`: scores of scraped gauges."""

from typing import Any

import pytest

from services.picker.scheduling.interfaces import Scorer
from services.picker.scheduling.scorers.scraped_load import KvCacheUtilizationScorer, QueueScorer, RunningRequestsScorer
from shared.attributes import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, AttributeKey
from tests.unit.services.picker.scheduling.plugins import over

RELATIVE = [(QueueScorer, WAITING_QUEUE_SIZE), (RunningRequestsScorer, RUNNING_REQUESTS_SIZE)]
ALL = [*RELATIVE, (KvCacheUtilizationScorer, KV_CACHE_USAGE)]
Case = tuple[type[Scorer], AttributeKey[float]]


def scores(kind: type[Scorer], key: AttributeKey[float], values: Any, ages: Any = 0, policy: str = "saturated") -> Any:
    run = over(key, values, ages, policy)
    return kind("scorer").score(run, run.candidates).tolist()


@pytest.mark.parametrize("case", RELATIVE)
@pytest.mark.parametrize(
    ("values", "expected"), [([0, 5, 10], [1, 0.5, 0]), ([3, 3], [1, 1]), ([7], [1]), ([10, 20, 12.5], [1, 0, 0.75])]
)
def test_the_least_scores_1_and_the_most_0(case: Case, values: list[float | None], expected: list[float]) -> None:
    assert scores(*case, values) == expected


def test_the_free_share_of_the_kv_cache_is_its_score() -> None:
    assert scores(KvCacheUtilizationScorer, KV_CACHE_USAGE, [0.25, 0, 1]) == [0.75, 1, 0]


@pytest.mark.parametrize("case", RELATIVE)
def test_only_fresh_values_set_the_scale(case: Case) -> None:
    assert scores(*case, [2, 4, 0, 100], [0, 0, 9, 9]) == [1, 0, 0, 0]


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_an_endpoint_that_was_never_scraped_is_never_the_only_best(case: Case, policy: str) -> None:
    fresh, other, never = scores(*case, [0.6, 0.2, None], policy=policy)
    assert never <= max(fresh, other)
    assert never < max(fresh, other) or policy == "ignore"


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("policy", ["saturated", "ignore"])
def test_a_stale_idle_endpoint_is_never_the_only_best(case: Case, policy: str) -> None:
    busy, stale = scores(*case, [0.9, 0.0], [0, 10], policy)
    assert stale <= busy


@pytest.mark.parametrize("case", ALL)
@pytest.mark.parametrize("policy", ["saturated", "ignore", "lastKnown"])
def test_when_nothing_was_ever_scraped_all_score_alike(case: Case, policy: str) -> None:
    assert len(set(scores(*case, [None, None, None], policy=policy))) == 1


@pytest.mark.parametrize("case", RELATIVE)
def test_the_candidates_alone_count(case: Case) -> None:
    kind, key = case
    run = over(key, [0.5, 0.5, 0.0])
    assert kind("scorer").score(run, run.candidates[:2]).tolist() == [1, 1]
