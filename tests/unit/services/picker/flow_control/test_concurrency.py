from typing import Any

import numpy as np
import pytest

from services.picker.flow_control.concurrency import ConcurrencyDetector
from services.picker.flow_control.stages import Stages
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import SaturationDetector
from services.picker.state.layout import Rows
from services.picker.state.view import View
from shared.model import ROLE
from tests.unit.services.picker.flow_control.flows import parameters
from tests.unit.services.picker.world import cycle, endpoint, load, pool

Load = tuple[int, int]
"""Requests and tokens in flight."""


def loaded(*loads: Load, roles: tuple[str | None, ...] = ()) -> Cycle:
    labels: list[dict[str, Any]] = [{} if role is None else {ROLE: role} for role in roles or [None] * len(loads)]
    view: View = pool(*(endpoint(f"a{number}", **label) for number, label in enumerate(labels)))
    table = {row.id: each for row, each in zip(view.layout.endpoints, loads, strict=True)}
    assert view.apply_load(load("peer", table), 1.0)
    return cycle(view)


HALF = {"maxConcurrency": 50, "maxTokenConcurrency": 1000}


@pytest.mark.parametrize(
    ("loads", "given", "expected"),
    [
        ([(49, 0)], HALF, 0.98),
        ([(50, 0), (0, 0)], HALF, 0.5),
        ([(100, 0), (50, 0)], HALF, 1.5),
        ([(100, 500)], {}, 1.0),
        ([(50, 100), (0, 900)], {**HALF, "concurrencyMode": "tokens"}, 0.5),
        ([(50, 100), (0, 900)], {**HALF, "concurrencyMode": "hybrid"}, 0.95),
        ([], HALF, 1.0),
    ],
)
def test_the_saturation_of_a_pool(loads: list[Load], given: dict[str, Any], expected: float) -> None:
    run = loaded(*loads)
    assert parameters(ConcurrencyDetector, **given).saturation(run, run.candidates) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (HALF, [0, 3]),
        ({**HALF, "headroom": 0.2}, [0, 1, 3]),  # 60 is one too many
        ({**HALF, "concurrencyMode": "tokens"}, [0, 1, 2]),
        ({**HALF, "concurrencyMode": "hybrid"}, [0]),
        ({"maxConcurrency": 1}, []),  # nobody is a possible answer
    ],
)
def test_as_a_filter_it_keeps_the_endpoints_that_have_room(given: dict[str, Any], left: list[int]) -> None:
    run = loaded((49, 999), (59, 0), (60, 0), (1, 1000))
    assert parameters(ConcurrencyDetector, **given).filter(run, run.candidates).tolist() == left


def test_what_it_read_is_there_to_be_explained() -> None:
    run = loaded((49, 999), (59, 0))
    parameters(ConcurrencyDetector, concurrencyMode="hybrid").saturation(run, run.candidates)
    read = {name: samples.values.tolist() for name, samples in run.samples.items()}
    assert read == {"InFlightRequests": [49, 59], "InFlightTokens": [999, 0]}


@pytest.mark.parametrize(
    ("loads", "given", "ceiling", "expected"),
    [
        ([(49, 0)], HALF, 1.0, 1),
        ([(50, 0)], HALF, 1.0, 0),
        ([(40, 0), (30, 0)], HALF, 1.0, 30),
        ([(40, 0), (30, 0)], HALF, 0.75, 5),
        ([(0, 750)], {**HALF, "concurrencyMode": "tokens"}, 1.0, 3),  # the third exceeds it
        ([(0, 999)], {**HALF, "concurrencyMode": "tokens"}, 1.0, 1),
        ([(45, 0)], {**HALF, "concurrencyMode": "hybrid"}, 1.0, 1),  # 100 tokens weigh more than a request
        ([], HALF, 1.0, 0),
    ],
)
def test_how_many_requests_of_a_hundred_tokens_fit(
    loads: list[Load], given: dict[str, Any], ceiling: float, expected: int
) -> None:
    run = loaded(*loads)
    assert parameters(ConcurrencyDetector, **given).room(run, run.candidates, ceiling, 100.0) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"maxConcurrency": 0},
        {"maxTokenConcurrency": 0},
        {"headroom": -0.1},
        {"concurrencyMode": "bytes"},
    ],
)
def test_parameters_out_of_range_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        parameters(ConcurrencyDetector, **given)


@pytest.mark.parametrize(
    ("roles", "loads", "expected", "room"),
    [
        ((None, None), [10, 20], {"decode": 0.3}, 70),
        (("prefill", "decode"), [50, 10], {"prefill": 1.0, "decode": 0.2}, 0),
        (("encode-prefill", None), [5, 10], {"prefill": 0.1, "decode": 0.2}, 40),
        (("both", "prefill"), [20, 40], {"prefill": 0.6, "decode": 0.4}, 30),
        (("prefill-decode", "encode-prefill-decode"), [20, 40], {"prefill": 0.6, "decode": 0.6}, 40),
        (("encode", "decode"), [50, 10], {"decode": 0.2}, 40),  # encoders are of neither stage
        (("encode", "unheard-of"), [50, 0], {"pool": 0.5}, 50),
        ((), [], {"pool": 1.0}, 0),
    ],
)
def test_the_fuller_stage_counts(
    roles: tuple[str | None, ...], loads: list[int], expected: dict[str, float], room: int
) -> None:
    run = loaded(*((load, 0) for load in loads), roles=roles)
    stages, detector = Stages.of(run.layout), parameters(ConcurrencyDetector, maxConcurrency=50)
    assert stages.saturations(detector, run) == pytest.approx(expected)
    assert stages.saturation(detector, run) == pytest.approx(max(expected.values()))
    assert stages.room(detector, run, 1.0, 100.0) == room


class Foreign(SaturationDetector):
    """Says only how full the pool is."""

    TYPE = "foreign-detector"

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        return 0.5


@pytest.mark.parametrize(("roles", "room"), [((None, None), 2), (("prefill", None, None), 1), ((), 0)])
def test_a_detector_that_does_not_say_how_many_fit_has_room_for_one_on_each_endpoint(
    roles: tuple[str | None, ...], room: int
) -> None:
    run = loaded(*((9, 9) for _ in roles), roles=roles)
    stages, detector = Stages.of(run.layout), Foreign("foreign")
    assert [stages.room(detector, run, ceiling, 1.0) for ceiling in (0.5, 0.51)] == [0, room]


def test_a_stage_that_is_the_whole_pool_reads_no_copies() -> None:
    run = loaded((1, 0), (2, 0))
    assert Stages.of(run.layout).decode is run.layout.all_rows
    assert not np.any(Stages.of(run.layout).prefill)
