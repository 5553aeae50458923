"""`no-hit-lru-scorer`: prompts that nobody has cached go round."""

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.scorers.no_hit_lru import DEFAULT_SIZE, NoHitLruParameters, NoHitLruScorer
from services.picker.state.view import View
from tests.unit.services.picker.world import cycle, endpoint, facts, pool

FOUR = ("a1", "a2", "a3", "a4")


def cold(view: View, rows: list[int] | None = None, hits: dict[int, float] | None = None) -> Cycle:
    run = cycle(view, rows=None if rows is None else np.array(rows, np.intp))
    matched = np.zeros(len(view.layout))
    for row, blocks in (hits or {}).items():
        matched[row] = blocks
    run.put(PREFIX_MATCH, PrefixMatch(matched, 10, 64))
    return run


def scores(scorer: NoHitLruScorer, run: Cycle) -> list[float]:
    made: list[float] = scorer.score(run, run.candidates).tolist()
    return made


def use(scorer: NoHitLruScorer, view: View, *rows: int) -> None:
    """Uncached prompts go to these rows, one after the other."""
    for row in rows:
        run = cold(view)
        scorer.score(run, run.candidates)
        assert scorer.pre_request(run, (row,)) == {}


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ((), [1, 2 / 3, 1 / 3, 0]),  # none was used: in their order
        ((0,), [0, 1, 2 / 3, 1 / 3]),
        ((1, 0), [0, 1 / 3, 1, 2 / 3]),  # a3, a4 never; a2 the oldest
        ((0, 1, 2, 3), [1, 2 / 3, 1 / 3, 0]),
        ((0, 1, 2, 3, 0), [0, 1, 2 / 3, 1 / 3]),  # a1 is the newest again
    ],
)
def test_the_longest_unused_scores_best(used: tuple[int, ...], expected: list[float]) -> None:
    scorer, view = NoHitLruScorer("lru"), pool(*FOUR)
    use(scorer, view, *used)
    assert scores(scorer, cold(view)) == pytest.approx(expected)


def test_only_candidates_are_scored_and_all_that_were_used_count() -> None:
    scorer, view = NoHitLruScorer("lru"), pool(*FOUR)
    use(scorer, view, 0, 1, 2)
    # of a3 and a4: a4 never, place 0; a3 is third of the used, place 1 + 2, beyond the end
    assert scores(scorer, cold(view, [2, 3])) == [0.0, 1.0]


@pytest.mark.parametrize(("rows", "expected"), [([], []), ([2], [1.0])])
def test_none_and_one(rows: list[int], expected: list[float]) -> None:
    assert scores(NoHitLruScorer("lru"), cold(pool(*FOUR), rows)) == expected


def test_a_prompt_that_somebody_has_is_no_reason_to_prefer_anybody() -> None:
    scorer, view = NoHitLruScorer("lru"), pool(*FOUR)
    warm = cold(view, hits={1: 1.0})
    assert scores(scorer, warm) == [0.5] * 4
    scorer.pre_request(warm, (0,))
    assert scores(scorer, cold(view)) == pytest.approx([1, 2 / 3, 1 / 3, 0]), "and no use of an endpoint"
    assert scores(scorer, cold(view, [0, 2], hits={1: 1.0})) == [1, 0], "one that is no candidate doesn't have it"


def test_an_unknown_match_is_none() -> None:
    assert scores(NoHitLruScorer("lru"), cycle(pool("a1", "a2"))) == [1, 0]


def test_no_more_are_remembered_than_asked_for() -> None:
    scorer, view = NoHitLruScorer("lru", NoHitLruParameters(lru_size=2)), pool(*FOUR)
    use(scorer, view, 0, 1, 2)
    assert scores(scorer, cold(view)) == pytest.approx([1, 1 / 3, 0, 2 / 3])
    assert NoHitLruParameters().lru_size == DEFAULT_SIZE


def test_endpoints_keep_their_turn_when_others_come_and_go() -> None:
    scorer, view = NoHitLruScorer("lru"), pool(*FOUR)
    use(scorer, view, 3, 1)
    view.reset(facts(*(endpoint(name) for name in ("a0", "a2", "a3", "a4"))))
    # a0 and a3 never; then a4, then a2
    assert scores(scorer, cold(view)) == pytest.approx([1, 0, 2 / 3, 1 / 3])


def test_parameters_of_older_generations_are_pointed_out() -> None:
    assert len(NoHitLruScorer.deprecations(NoHitLruParameters(prefix_plugin_type="x", prefix_plugin_name="y"))) == 2
    assert not NoHitLruScorer.deprecations(NoHitLruParameters())
