"""The simulation by its results: it is deterministic, and pickers that share are told from those that don't."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from pointsman.lab.report import figures, table
from pointsman.lab.simulation import STREAM_INTERVAL, Result, Scenario, Simulation
from pointsman.lab.workload import Arrival, Groups
from services.simulator.settings import SimulatorSettings
from shared.config import load
from shared.plugin import Registry

STICKY = Path(__file__).parents[4] / "docs" / "profiles" / "sticky-until-saturated.yaml"
GROUPS = Groups(seconds=8.0)
SMALL = SimulatorSettings(slots=2, kv_blocks=100, block_tokens=64, max_requests=3, stream_interval=STREAM_INTERVAL)


@dataclass
class Case:
    scenario: Scenario
    text: str = ""
    groups: Groups = GROUPS

    def run(self) -> Result:
        config = load(self.text, Registry.installed(), "")
        return Simulation(config, self.scenario, self.groups.arrivals(self.scenario.seed)).run()


def hit_rate(result: Result) -> float:
    return figures("", "", [result], 2.0).hit_rate


def test_equal_seeds_give_equal_results_and_others_dont() -> None:
    case = Case(Scenario(pickers=2))
    first = case.run()
    assert case.run() == first
    assert Case(Scenario(pickers=2, seed=2)).run().outcomes != first.outcomes


def test_every_request_is_served_once_and_to_its_end() -> None:
    result = Case(Scenario(pickers=3)).run()
    assert len(result.outcomes) == result.picks == len(list(GROUPS.arrivals(1)))
    assert all(outcome.server and 0 < outcome.first_token <= outcome.seconds for outcome in result.outcomes)
    assert {outcome.picker for outcome in result.outcomes} == {0, 1, 2}


def test_four_pickers_that_share_place_prefixes_as_one_and_those_that_dont_know_less() -> None:
    text = STICKY.read_text(encoding="utf-8")
    one, four, apart = (
        hit_rate(Case(scenario, text).run())
        for scenario in (Scenario(), Scenario(pickers=4), Scenario(pickers=4, sharing=False))
    )
    assert four == pytest.approx(one, rel=0.1)
    assert apart < 0.8 * four


def test_the_requests_of_a_picker_that_dies_go_on_and_the_others_take_over() -> None:
    result = Case(Scenario(pickers=3, kill_at=4.0)).run()
    assert all(outcome.seconds for outcome in result.outcomes)
    assert {outcome.picker for outcome in result.outcomes if outcome.at > 4.0} == {0, 1}


def test_refused_requests_are_counted_and_leave_no_load_behind() -> None:
    result = Case(Scenario(pickers=2, servers=1, settings=SMALL)).run()
    shown = figures("", "", [result], 0.0)
    assert shown.refused == sum(not outcome.server for outcome in result.outcomes) > 0
    assert result.in_flight[-1][1] <= 3


def test_a_table_shows_each_case() -> None:
    result = Case(Scenario(), groups=replace(GROUPS, seconds=1.0)).run()
    head, line = table([figures("mine", "1 picker", [result], 0.0)])
    assert line.split()[:3] == ["mine", "1", "picker"]
    assert len(line) <= len(head) + 20


def test_a_prompt_that_comes_again_is_cached() -> None:
    prompt = b"x" * 64 * 4 * 10
    result = Simulation(
        load("", Registry.installed(), ""), Scenario(), iter([Arrival(0.0, prompt, 2), Arrival(5.0, prompt + b"y", 2)])
    ).run()
    first, again = result.outcomes
    assert (first.cached_tokens, again.cached_tokens) == (0, 640)
    assert again.server == first.server
    assert again.first_token < first.first_token
