"""`cold-prefix-scorer`: prompts of 640 tokens in ten blocks, and the default slack of 512 tokens."""

import numpy as np
import pytest

from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, PrefixMatch
from services.picker.scheduling.scorers.cold_prefix import ColdPrefixScorer
from services.picker.state.view import View
from tests.unit.services.picker.world import cycle, load, pool, request


def world(tokens: list[int], recent: list[int]) -> View:
    """Endpoints with these tokens in flight, and so many blocks that were new to them of late."""
    names = [f"a{at}" for at in range(len(tokens))]
    view = pool(*names)
    view.apply_load(load("peer", {name: (1, count) for name, count in zip(names, tokens, strict=True)}), 0.0)
    for at, (name, blocks) in enumerate(zip(names, recent, strict=True)):
        view.prefixes.add(name, [at * 1000 + block for block in range(blocks)], 1000)
    return view


def on(view: View, matched: list[float], rows: list[int] | None = None) -> Cycle:
    run = cycle(view, request(b"xxxx" * 640), rows=None if rows is None else np.array(rows, np.intp))
    run.put(PREFIX_MATCH, PrefixMatch(np.array(matched), 10, 64))
    return run


@pytest.mark.parametrize(
    ("tokens", "recent", "matched", "expected"),
    [
        ([0, 0, 0], [0, 0, 0], [0, 0, 0], [1, 1, 1]),
        ([0, 0, 0], [0, 10, 30], [0, 0, 0], [1, 0.75, 0.625]),
        ([0, 512, 1512], [0, 0, 0], [0, 0, 0], [1, 1, 0.5 * 640 / 2152]),  # 640 and 1152 are near, 2152 isn't
        ([0, 300, 2000], [20, 10, 0], [0, 0, 0], [0.75, 1, 0.5 * 640 / 2640]),  # the least of the near ones counts
        ([9000, 0, 0], [0, 10, 0], [8, 8, 8], [1, 1, 1]),  # all have the prompt
        ([5, 9000], [3, 3], [10, 0], [1, 0.5 * 5 / 9640]),
    ],
)
def test_of_the_endpoints_that_are_least_busy_the_one_with_the_fewest_new_blocks_is_best(
    tokens: list[int], recent: list[int], matched: list[float], expected: list[float]
) -> None:
    run = on(world(tokens, recent), matched)
    assert ColdPrefixScorer("cold").score(run, run.candidates).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("rows", "expected"), [([], []), ([1], [1.0]), ([2, 1], [0.75, 1.0])])
def test_only_candidates_count(rows: list[int], expected: list[float]) -> None:
    run = on(world([0, 0, 0], [0, 10, 20]), [0, 0, 0], rows)
    assert ColdPrefixScorer("cold").score(run, run.candidates).tolist() == pytest.approx(expected)


def test_without_a_match_all_are_alike() -> None:
    run = cycle(world([0, 500], [0, 10]))
    assert ColdPrefixScorer("cold").score(run, run.candidates).tolist() == [1, 1]


def test_blocks_stop_to_be_new() -> None:
    view = world([0, 0], [0, 1000])
    for _ in range(200):
        view.prefixes.sweep()
    run = on(view, [0, 0])
    assert ColdPrefixScorer("cold").score(run, run.candidates).tolist() == pytest.approx([1, 1], abs=0.01)
