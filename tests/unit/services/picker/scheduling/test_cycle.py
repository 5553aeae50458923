import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, PrefixMatch
from services.picker.state.layout import Floats
from shared.attributes import KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from tests.unit.services.picker.world import NOW, cycle, pool, report, request


def test_a_reading_tells_what_is_fresh() -> None:
    view = pool("a1", "a2", "a3")
    report(view, {WAITING_QUEUE_SIZE: [1, 2, None]}, ages=[0.5, 5.0, 0.0])
    run = cycle(view)
    reading = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows)
    assert reading.fresh is not None
    assert reading.fresh.tolist() == [True, False, False]
    assert reading.values.tolist()[:2] == [1, 2]
    assert run.readings == {WAITING_QUEUE_SIZE.wire: reading}


def test_stale_begins_beyond_the_limit() -> None:
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, 2]}, ages=[2.0, 2.125])
    run = cycle(view, after=2.0)
    assert run.read(WAITING_QUEUE_SIZE, view.layout.all_rows).fresh.tolist() == [True, False]  # type: ignore[union-attr]
    assert run.read(WAITING_QUEUE_SIZE, view.layout.all_rows, 3.0).fresh.tolist() == [True, True]  # type: ignore[union-attr]


def test_by_the_last_known_values_everything_that_ever_was_is_fresh() -> None:
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, None]}, ages=1e6)
    run = cycle(view, policy="lastKnown")
    assert run.read(WAITING_QUEUE_SIZE, view.layout.all_rows).fresh.tolist() == [True, False]  # type: ignore[union-attr]


def test_readings_keep_the_numbers_of_the_decision() -> None:
    view = pool("a1")
    report(view, {WAITING_QUEUE_SIZE: [1]})
    reading = cycle(view).read(WAITING_QUEUE_SIZE, view.layout.all_rows)
    report(view, {WAITING_QUEUE_SIZE: [9]}, now=NOW + 1)
    assert reading.values.tolist() == [1]


def test_what_was_read_of_more_endpoints_stands() -> None:
    """A filter's reading explains the endpoints that it removed, a scorer's only those that were left."""
    view = pool("a1", "a2")
    report(view, {WAITING_QUEUE_SIZE: [1, 2]})
    run = cycle(view)
    wide = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows)
    run.read(WAITING_QUEUE_SIZE, view.layout.all_rows[:1])
    assert run.readings == {WAITING_QUEUE_SIZE.wire: wide}
    wide = run.read(WAITING_QUEUE_SIZE, view.layout.all_rows, 9.0)
    assert run.readings[WAITING_QUEUE_SIZE.wire] is wide


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
        assert run.readings[WAITING_QUEUE_SIZE.wire].values.tolist() == [1, 2]
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


def test_scores_of_some_endpoints_arent_kept() -> None:
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


def test_a_prompt_is_estimated_at_four_bytes_a_token() -> None:
    view = pool("a1")
    assert cycle(view, request(b"x" * 403)).prompt_tokens == 100
    assert cycle(view, request(b"x")).prompt_tokens == 1
    assert cycle(view, request(b"", body_size=4000)).prompt_tokens == 1000
    assert cycle(view, request(b"x" * 40, body_size=4000)).prompt_tokens == 10


def test_what_is_cached_needs_no_computing() -> None:
    view = pool("a1", "a2", "a3")
    run = cycle(view, request(b"x" * 4000))
    rows = np.array([2, 0, 1])
    assert run.uncached_tokens(rows).tolist() == [1000, 1000, 1000]
    assert run.uncached_tokens_at(1) == 1000
    run.put(PREFIX_MATCH, PrefixMatch(np.array([0.0, 5.0, 16.0]), 16, 64))
    assert run.uncached_tokens(rows).tolist() == [0, 1000, 680]
    assert [run.uncached_tokens_at(row) for row in (0, 1, 2)] == [1000, 680, 0]
    assert repr(run) == "<Cycle 'request-1': 3 candidates>"


@pytest.mark.parametrize(("counted", "tokens"), [(None, 10), (7, 7), (0, 1)])
def test_tokens_that_the_parser_counted_go_before_the_estimate(counted: int | None, tokens: int) -> None:
    run = cycle(pool("a1"), request(prompt=b"x" * 40, prompt_tokens=counted))
    assert run.prompt_tokens == tokens
