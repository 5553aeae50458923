from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.state.layout import Floats, Mask
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from tests.unit.services.picker.world import NOW, cycle, pool, report, request


@pytest.mark.parametrize(
    ("ages", "policy", "limit", "fresh"),
    [
        ([0.5, 5.0, 0.0], "saturated", None, [True, False, False]),
        ([2.0, 2.125, 0.0], "saturated", None, [True, False, False]),
        ([2.0, 2.125, 0.0], "saturated", 3.0, [True, True, False]),
        (1e6, "lastKnown", None, [True, True, False]),
    ],
)
def test_a_reading_tells_what_is_fresh(ages: Any, policy: str, limit: float | None, fresh: list[bool]) -> None:
    """Stale begins beyond two seconds here; by the last known values everything that ever was is fresh."""
    view = pool("a1", "a2", "a3")
    report(view, {WAITING_QUEUE_SIZE: [1, 2, None]}, ages=ages)
    run = cycle(view, after=2.0, policy=policy)
    samples = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows, *([] if limit is None else [limit]))
    assert samples.fresh is not None
    assert (samples.fresh.tolist(), samples.values.tolist()[:2]) == (fresh, [1, 2])
    assert run.samples == {WAITING_QUEUE_SIZE.wire: samples}


def test_readings_keep_the_numbers_of_the_decision() -> None:
    view = pool("a1")
    report(view, {WAITING_QUEUE_SIZE: [1]})
    samples = cycle(view).read(WAITING_QUEUE_SIZE, view.layout.all_rows)
    report(view, {WAITING_QUEUE_SIZE: [9]}, now=NOW + 1)
    assert samples.values.tolist() == [1]


def test_what_was_read_of_more_endpoints_stands() -> None:
    """A filter's samples explain the endpoints that it removed, a scorer's only those that were left."""
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, 2]})
    run = cycle(view)
    wide = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows)
    run.read(WAITING_QUEUE_SIZE, view.layout.all_rows[:1])
    assert run.samples == {WAITING_QUEUE_SIZE.wire: wide}
    wide = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows, 9.0)
    assert run.samples[WAITING_QUEUE_SIZE.wire] is wide


@pytest.mark.parametrize(
    ("policy", "scores"), [("saturated", [0.5, 0, 0]), ("ignore", [0.5, 0.5, 0.5]), ("lastKnown", [0.5, 0.75, 0])]
)
def test_the_policy_says_what_a_stale_value_and_a_missing_one_score(policy: str, scores: list[float]) -> None:
    view = pool("a1", "a2", "a3")
    report(view, {KV_CACHE_USAGE: [0.5, 0.25, None]}, ages=[0, 9, 0])
    run = cycle(view, policy=policy)
    assert run.score_by(KV_CACHE_USAGE, view.layout.all_rows, lambda usage: 1 - usage).tolist() == scores


@pytest.mark.parametrize("policy", ["saturated", "ignore"])
def test_when_everything_is_stale_all_score_alike(policy: str) -> None:
    view = pool("a1", "a2")
    report(view, {KV_CACHE_USAGE: [0.5, 0.25]}, ages=9)
    run = cycle(view, policy=policy)
    assert run.score_by(KV_CACHE_USAGE, view.layout.all_rows, lambda usage: 1 - usage).tolist() == [0, 0]


class Counted:
    """A formula that knows how often it was asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, values: Floats) -> Floats:
        self.calls += 1
        return values / 10


def test_scores_of_all_endpoints_are_kept_until_a_value_changes() -> None:
    view, formula = pool("a1", "a2"), Counted()
    report(view, {WAITING_QUEUE_SIZE: [1, 2]})
    for _ in range(3):
        run = cycle(view)
        assert run.score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, formula).tolist() == [0.1, 0.2]
        assert run.samples[WAITING_QUEUE_SIZE.wire].values.tolist() == [1, 2]
    assert formula.calls == 1
    report(view, {WAITING_QUEUE_SIZE: [5, 2]}, now=NOW + 1)
    assert cycle(view, now=NOW + 1).score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, formula).tolist() == [0.5, 0.2]
    assert formula.calls == 2


def test_kept_scores_end_when_a_value_gets_stale() -> None:
    view, formula = pool("a1", "a2"), Counted()
    report(view, {WAITING_QUEUE_SIZE: [1, 2]}, ages=[1.5, 0.0])
    assert cycle(view).score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, formula).tolist() == [0.1, 0.2]
    assert cycle(view, now=NOW + 1).score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, formula).tolist() == [0.0, 0.2]
    # A configuration with another limit sees the same values as it should.
    assert cycle(view, now=NOW + 1, after=9.0).score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, formula).tolist() == [
        0.1,
        0.2,
    ]


def test_scores_of_some_endpoints_are_kept_if_nobody_can_change_which() -> None:
    view, formula = pool("a1", "a2", "a3"), Counted()
    report(view, {WAITING_QUEUE_SIZE: [1, 2, 3]})
    first, second = np.array([0, 2]), np.array([1, 2])
    first.flags.writeable = second.flags.writeable = False
    for _ in range(2):
        assert cycle(view).score_by(WAITING_QUEUE_SIZE, first, formula).tolist() == [0.1, 0.3]
        assert cycle(view).score_by(WAITING_QUEUE_SIZE, second, formula).tolist() == [0.2, 0.3]
    assert formula.calls == 2


def test_no_more_is_kept_than_a_few_results() -> None:
    """A gateway's subset hints can name ever other endpoints."""
    view, formula = pool("a1", "a2"), Counted()
    report(view, {WAITING_QUEUE_SIZE: [1, 2]})
    for _ in range(200):
        rows = np.array([1])
        rows.flags.writeable = False
        assert cycle(view).score_by(WAITING_QUEUE_SIZE, rows, formula).tolist() == [0.2]
        assert len(view.columns.numbers(WAITING_QUEUE_SIZE.wire).derived) <= 64
    assert formula.calls == 200


def test_rows_by_a_condition_are_kept_until_a_value_changes() -> None:
    view, asked = pool("a1", "a2", "a3"), []
    rows = view.layout.all_rows

    def few(values: Floats) -> Mask:
        asked.append(values.tolist())
        return values < 3

    report(view, {WAITING_QUEUE_SIZE: [1, 3, 2]})
    kept = cycle(view).rows_by(WAITING_QUEUE_SIZE, rows, few)
    assert kept is not None
    assert (kept.tolist(), kept.flags.writeable) == ([0, 2], False)
    assert cycle(view).rows_by(WAITING_QUEUE_SIZE, rows, few) is kept
    assert asked == [[1, 3, 2]]
    report(view, {WAITING_QUEUE_SIZE: [1, 1, 1]}, now=NOW + 1)
    assert cycle(view, now=NOW + 1).rows_by(WAITING_QUEUE_SIZE, rows, few) is rows
    assert cycle(view, now=NOW + 9).rows_by(WAITING_QUEUE_SIZE, rows, few) is None, "the values are stale"
    report(view, {WAITING_QUEUE_SIZE: [1, None, 1]}, now=NOW + 10, ages=[0, 9, 0])
    assert cycle(view, now=NOW + 10).rows_by(WAITING_QUEUE_SIZE, rows, few) is None


def test_scores_of_some_endpoints_arent_kept_if_they_can_become_others() -> None:
    view, formula = pool("a1", "a2", "a3"), Counted()
    report(view, {WAITING_QUEUE_SIZE: [1, 2, 3]})
    for rows in ([0, 2], [1, 2]):
        expected = [(row + 1) / 10 for row in rows]
        assert cycle(view).score_by(WAITING_QUEUE_SIZE, np.array(rows), formula).tolist() == expected
    assert formula.calls == 2


def test_each_formula_has_its_own_scores() -> None:
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, 2]})
    rows = view.layout.all_rows
    assert cycle(view).score_by(WAITING_QUEUE_SIZE, rows, Counted()).tolist() == [0.1, 0.2]
    assert cycle(view).score_by(WAITING_QUEUE_SIZE, rows, np.negative).tolist() == [-1, -2]


def test_kept_scores_cant_be_changed() -> None:
    view = pool("a1")
    report(view, {WAITING_QUEUE_SIZE: [1]})
    with pytest.raises(ValueError, match="read-only"):
        cycle(view).score_by(WAITING_QUEUE_SIZE, view.layout.all_rows, Counted())[0] = 9


@pytest.mark.parametrize(
    ("prompt", "more", "tokens"),
    [
        (403, {}, 100),
        (1, {}, 1),
        (0, {"body_size": 4000}, 1000),
        (40, {"body_size": 4000}, 10),
        # what the parser counted goes before
        (40, {"prompt_tokens": 7}, 7),
        (40, {"prompt_tokens": 0}, 1),
    ],
)
def test_a_prompt_is_estimated_at_four_bytes_a_token(prompt: int, more: dict[str, Any], tokens: int) -> None:
    assert cycle(pool("a1"), request(b"x" * prompt, **more)).prompt_tokens == tokens


def test_what_is_cached_needs_no_computing() -> None:
    view = pool("a1", "a2", "a3")
    run = cycle(view, request(b"x" * 4000))
    rows = np.array([2, 0, 1])
    assert run.uncached_tokens(rows).tolist() == [1000, 1000, 1000]
    assert run.uncached_tokens_at(1) == 1000
    run.put(PREFIX_MATCH, PrefixMatch(np.array([0.0, 5.0, 16.0]), 16, 64))
    assert run.uncached_tokens(rows).tolist() == [0, 1000, 680]
    assert [run.uncached_tokens_at(row) for row in (0, 1, 2)] == [1000, 680, 0]
