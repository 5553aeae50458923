import math
from collections.abc import Callable

import numpy as np
import pytest

from services.picker.scheduling.interfaces import PickerParameters
from services.picker.scheduling.pickers.max_score import MaxScorePicker
from services.picker.scheduling.profile import Profile
from services.picker.scheduling.record import FilterStep
from tests.unit.services.picker.scheduling.plugins import Keeps, Scores
from tests.unit.services.picker.world import cycle, pool

PICKER = MaxScorePicker("picker")


@pytest.mark.parametrize(
    ("score", "held"), [(-0.5, 0), (1.5, 1), (math.nan, 0), (math.inf, 1), (-math.inf, 0), (0.3, 0.3)]
)
def test_a_score_is_held_to_0_to_1_and_no_number_is_0(score: float, held: float) -> None:
    view = pool("a1")
    run = Profile("p", (), ((Scores([score]), 2.0),), PICKER).run(cycle(view), view.layout.all_rows)
    assert run.scores[0].scores.tolist() == [held]
    assert run.totals.tolist() == [2 * held]


def test_filters_narrow_in_order_and_scorers_see_what_is_left() -> None:
    view = pool("a1", "a2", "a3")
    scores = Scores([0.1, 0.2])
    run = Profile("p", (Keeps("a2", "a3"), Keeps("a1", "a2", "a3")), ((scores, 1.0),), PICKER).run(
        cycle(view), view.layout.all_rows
    )
    assert scores.seen == [[1, 2]]
    assert [step.kept.tolist() for step in run.filters] == [[1, 2], [1, 2]]
    assert (run.candidates.tolist(), run.rows.tolist(), run.picked) == ([0, 1, 2], [1, 2], (2,))


class Prefers(Keeps):
    """As the affinity filters do."""

    PREFERS = True


@pytest.mark.parametrize(
    ("filters", "count", "first", "fallbacks"),
    [
        ((Prefers("a2"),), 1, ["a2"], []),
        ((Prefers("a2"),), 2, ["a2"], ["a1", "a3", "a4"]),
        ((Prefers("a2"),), 9, ["a2"], ["a1", "a3", "a4"]),
        ((Keeps("a2"),), 9, ["a2"], []),
        ((Prefers("a1", "a2", "a3", "a4"),), 2, ["a1", "a2", "a3", "a4"], ["a1", "a2", "a3", "a4"]),
        ((Keeps("a1", "a2", "a3"), Prefers("a2")), 9, ["a2"], ["a1", "a3"]),
        ((Prefers("a2"), Keeps("a1", "a2", "a3")), 9, ["a2"], ["a1", "a3"]),
        ((Prefers("a2"), Keeps("a1")), 9, [], []),
        ((Prefers("a2", "a3"), Keeps("a1", "a2", "a4"), Prefers("a2")), 9, ["a2"], ["a1", "a4"]),
    ],
)
def test_fallbacks_follow_from_the_endpoints_that_filters_prefer_others_to(
    filters: tuple[Keeps, ...], count: int, first: list[str], fallbacks: list[str]
) -> None:
    view = pool("a1", "a2", "a3", "a4")
    picker = MaxScorePicker("picker", PickerParameters(max_num_of_endpoints=count))
    picked = Profile("p", filters, (), picker).run(cycle(view), view.layout.all_rows).picked
    names = [view.layout.endpoints[row].id.removeprefix("default/") for row in picked]
    assert set(names[:1]) <= set(first)
    assert len(names) == len(set(names)) == min(count, len({*first, *fallbacks}))
    assert set(names[1:]) <= set(fallbacks)


def test_the_least_busy_fallbacks_come_first_and_last_those_that_seem_to_be_down() -> None:
    view = pool("a1", "a2", "a3", "a4")
    for name in ("a2", "a2", "a3"):
        view.in_flight.charge(name, 10)
    picker = MaxScorePicker("picker", PickerParameters(max_num_of_endpoints=4))
    deciding = cycle(view)
    deciding.ranked_last = {0: "its scrapes fail"}
    assert Profile("p", (Prefers("a2"),), (), picker).run(deciding, view.layout.all_rows).picked == (1, 3, 2, 0)


def test_a_filter_that_leaves_nothing_ends_the_run() -> None:
    view = pool("a1", "a2")
    scores = Scores([])
    run = Profile("p", (Keeps(), Keeps("a1")), ((scores, 1.0),), PICKER).run(cycle(view), view.layout.all_rows)
    assert run.picked == ()
    assert [type(step) for step in run.filters] == [FilterStep]
    assert scores.seen == []


def test_without_scorers_all_total_0() -> None:
    view = pool("a1", "a2")
    run = Profile("p", (), (), PICKER).run(cycle(view), view.layout.all_rows)
    assert run.totals.tolist() == [0, 0]
    assert len(run.picked) == 1


@pytest.mark.parametrize("count", [3, 5, 8, 64, 1001])
def test_endpoints_that_score_alike_tie_exactly_wherever_they_stand(count: int) -> None:
    """Sums that round by position would let ties be won by position: a matrix product does so in one of ten cases."""
    view = pool("a1")
    rows = np.zeros(count, np.intp)
    random = np.random.default_rng(5)
    for _ in range(100):
        scorers = tuple((Scores([score] * count), weight) for score, weight in random.random((3, 2)).tolist())
        run = Profile("p", (), scorers, PICKER).run(cycle(view), rows)
        assert len(set(run.totals.tolist())) == 1


def test_every_plugin_is_timed() -> None:
    timed: list[tuple[str, ...]] = []

    def observe(*plugin: str) -> Callable[[float], None]:
        return lambda seconds: timed.append(plugin) if seconds >= 0 else None

    view = pool("a1")
    profile = Profile("p", (Keeps("a1"),), ((Scores([1], "one"), 1.0), (Scores([1], "two"), 2.5)), PICKER, observe)
    profile.run(cycle(view), view.layout.all_rows)
    assert timed == [
        ("Filter", "keeps", "keeps a1"),
        ("Scorer", "scores", "one"),
        ("Scorer", "scores", "two"),
        ("Picker", "max-score-picker", "picker"),
    ]
    assert repr(profile) == "<Profile 'p': keeps a1 → one·1 → two·2.5 → picker>"
