"""Topology affinity, as filter and scorer: near the endpoint that was picked before."""

from typing import Any

import numpy as np
import pytest

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.record import ProfileRun
from services.picker.scheduling.topology_affinity import TopologyAffinityFilter, TopologyAffinityScorer
from services.picker.state.topology import TOPOLOGY, Topology
from services.picker.state.view import View
from shared.attributes import ALWAYS
from tests.unit.services.picker.scheduling.plugins import plugin
from tests.unit.services.picker.world import cycle, pool

HERE = Topology("h1", "r1", "z1", "g1")
PLACES = [
    HERE,
    Topology("h1", "r1", "z1", "g1"),
    Topology("h2", "r1", "z1", "g1"),
    Topology("h3", "r2", "z1", "g1"),
    Topology("h4", "r3", "z2", "g1"),
    Topology("h5", "r4", "z3", "g2"),
    None,
]


def placed(*places: Topology | None) -> View:
    view = pool(*(f"a{at}" for at in range(len(places))))
    for at, place in enumerate(places):
        if place is not None:
            view.made(f"a{at}").put(TOPOLOGY, place, ALWAYS)
    return view


def after(view: View, *picked: tuple[int, ...]) -> Cycle:
    """A cycle in which profiles have picked these rows."""
    run, nothing = cycle(view), np.zeros(0, np.intp)
    for at, rows in enumerate(picked):
        done = ProfileRun(f"p{at}", nothing, (), nothing, (), np.zeros(0), "", rows)
        run.runs = {**run.runs, done.profile: done}
    return run


def scores(run: Cycle) -> list[float]:
    made: list[float] = plugin(TopologyAffinityScorer, {}).score(run, run.candidates).tolist()
    return made


def kept(run: Cycle, least: str = "host") -> list[int]:
    found: list[int] = plugin(TopologyAffinityFilter, {"minAffinity": least}).filter(run, run.candidates).tolist()
    return found


def test_scores_by_the_nearest_level_in_common() -> None:
    assert scores(after(placed(*PLACES), (0,))) == [1, 1, 0.2, 0.05, 0.02, 0, 0]


@pytest.mark.parametrize(
    ("least", "expected"),
    [("host", [0, 1]), ("rack", [0, 1, 2]), ("zone", [0, 1, 2, 3]), ("region", [0, 1, 2, 3, 4])],
)
def test_those_that_are_near_enough_stay(least: str, expected: list[int]) -> None:
    assert kept(after(placed(*PLACES), (0,)), least) == expected


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (cycle(placed(*PLACES)), "nothing was picked before"),
        (after(placed(*PLACES), ()), "the profile before picked nothing"),
        (after(placed(*PLACES), (6,)), "nothing is known of the one that was picked"),
        (after(pool("a0", "a1"), (0,)), "nothing is known of any"),
    ],
)
def test_without_a_known_place_nothing_is_preferred(run: Cycle, why: str) -> None:
    every = run.candidates.tolist()
    assert kept(run) == every, why
    assert scores(run) == [0.0] * len(every), why


def test_where_none_is_near_enough_all_stay() -> None:
    run = after(placed(HERE, Topology("h2"), Topology("h3")), (0,))
    assert plugin(TopologyAffinityFilter, {}).filter(run, run.candidates[1:]).tolist() == [1, 2]


def test_two_unknown_places_arent_the_same() -> None:
    run = after(placed(Topology(zone="z1"), Topology(), Topology(rack="r1"), Topology(zone="z1")), (0,))
    assert scores(run) == [0.05, 0, 0, 0.05]


def test_the_first_pick_counts() -> None:
    assert kept(after(placed(*PLACES), (5,), (0,))) == [5]


def test_no_endpoint() -> None:
    run = after(placed(*PLACES), (0,))
    for kind, method in ((TopologyAffinityFilter, "filter"), (TopologyAffinityScorer, "score")):
        made: Any = getattr(plugin(kind, {}), method)(run, run.candidates[:0])
        assert made.tolist() == []


def test_a_place_that_changes_is_read_again() -> None:
    view, scorer = placed(HERE, HERE), plugin(TopologyAffinityScorer, {})
    assert scorer.score(after(view, (0,)), view.layout.all_rows).tolist() == [1, 1]
    view.made("a1").put(TOPOLOGY, Topology("h9", "r9", "z1", "g1"), ALWAYS)
    assert scorer.score(after(view, (0,)), view.layout.all_rows).tolist() == [1, 0.05]
