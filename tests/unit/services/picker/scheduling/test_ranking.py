"""Endpoints that seem to be down rank behind all others, whatever they scored and whoever picks."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.picker.scheduling.interfaces import Picker, PickerParameters
from services.picker.scheduling.pickers.max_score import MaxScorePicker
from services.picker.scheduling.pickers.random import RandomPicker, WeightedRandomPicker
from services.picker.scheduling.profile import Profile
from services.picker.scheduling.record import ProfileRun
from services.picker.state.health import REPLACED
from tests.unit.services.picker.scheduling.plugins import Scores
from tests.unit.services.picker.world import NOW, cycle, pool

SCORES = [1.0, 0.9, 0.4, 0.2]
PICKERS = [MaxScorePicker, RandomPicker, WeightedRandomPicker]


def run(
    kind: type[Picker], wanted: int, down: Sequence[int], rows: Sequence[int] = (0, 1, 2, 3), seed: int = 1
) -> ProfileRun:
    """A profile over four endpoints that score `SCORES`; those in `down` seem to be."""
    view = pool("a1", "a2", "a3", "a4")
    for row in down:
        view.health.suspect(view.layout.endpoints[row], NOW)
    profile = Profile(
        "p",
        (),
        ((Scores(lambda rows: np.array(SCORES)[rows]), 1.0),),
        kind("picker", PickerParameters(max_num_of_endpoints=wanted)),
    )
    candidates = np.array(rows, np.intp)
    return profile.run(cycle(view, rows=candidates, seed=seed), candidates)


@pytest.mark.parametrize(
    ("wanted", "down", "rows", "picked"),
    [
        (1, [0], [0, 1, 2, 3], (1,)),
        (3, [0], [0, 1, 2, 3], (1, 2, 3)),
        (3, [0, 1], [0, 1, 2, 3], (2, 3, 0)),
        (9, [0, 1], [0, 1, 2, 3], (2, 3, 0, 1)),
        (1, [0, 1, 2, 3], [0, 1, 2, 3], (0,)),
        (2, [0], [0], (0,)),
        (2, [3], [0, 3], (0, 3)),
        (2, [1], [3, 0], (0, 3)),
    ],
)
def test_the_healthy_come_first_and_the_others_fill_the_places_that_are_left(
    wanted: int, down: list[int], rows: list[int], picked: tuple[int, ...]
) -> None:
    assert run(MaxScorePicker, wanted, down, rows).picked == picked


@pytest.mark.parametrize("kind", PICKERS)
@pytest.mark.parametrize("wanted", [1, 2, 3, 4])
@pytest.mark.parametrize("down", [[0], [0, 1], [0, 1, 2]])
def test_whoever_picks_as_many_are_picked_as_ever_and_the_healthy_first(
    kind: type[Picker], wanted: int, down: list[int]
) -> None:
    for seed in range(20):
        picked = run(kind, wanted, down, seed=seed).picked
        assert len(set(picked)) == len(picked) == wanted
        assert [row in down for row in picked] == sorted(row in down for row in picked)
        assert sum(row not in down for row in picked) == min(wanted, 4 - len(down))


@pytest.mark.parametrize(("down", "last"), [([], {}), ([0], {0: REPLACED}), ([0, 1, 2, 3], {})])
def test_the_record_says_who_was_ranked_last(down: list[int], last: dict[int, str]) -> None:
    assert run(MaxScorePicker, 1, down).ranked_last == last
