"""Why a decision went as it did, in sentences, and what would have changed it."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from services.picker.decision import Decision, Progress, RequestSummary
from services.picker.flow_control.ticket import Wait
from services.picker.reports import reasons as module
from services.picker.reports.reasons import changes, reasons
from services.picker.request import Refusal, Request, Route
from services.picker.scheduling.cycle import Samples
from services.picker.scheduling.record import FilterStep, PluginFailure, ProfileRun, ScoreStep
from tests.unit.services.picker.world import pool

LAYOUT = pool("a", "b", "c").layout
ALL = LAYOUT.all_rows
ROUTE = Route(destinations=("10.0.0.1:8000",))


def run(
    queue: list[float], cache: list[float], picked: int | None, rows: list[int] | None = None, **fields: Any
) -> ProfileRun:
    """A profile with a filter, a queue-scorer of weight 2 and a cache-scorer of weight 1."""
    kept = ALL if rows is None else np.array(rows, np.intp)
    scores = (ScoreStep("queue", 2.0, np.array(queue)), ScoreStep("cache", 1.0, np.array(cache)))
    return ProfileRun(
        profile="default",
        candidates=ALL,
        filters=(FilterStep("filter", kept),),
        rows=kept,
        scores=scores if len(kept) else (),
        totals=2.0 * np.array(queue) + np.array(cache),
        picker="max-score-picker",
        picked=() if picked is None else (picked,),
        **fields,
    )


def decision(profile: ProfileRun | None = None, outcome: Any = ROUTE, **fields: Any) -> Decision:
    return Decision(
        request=RequestSummary.of(Request(id="1", headers=None)),  # type: ignore[arg-type]
        outcome=outcome,
        layout=LAYOUT,
        runs={} if profile is None else {"default": profile},
        primary="default",
        monotonic=100.0,
        **fields,
    )


BEST = run([1.0, 0.5, 0.0], [0.0, 0.5, 0.0], 0)
TIE = run([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], 1)
REFUSED = Refusal(status=429, message="full", reason="saturated")
OLD = Samples(ALL, np.zeros(3), np.array([99.9, 40.0, -np.inf]), np.array([True, False, False]))


@pytest.mark.parametrize(
    ("made", "possible", "expected"),
    [
        (
            decision(BEST),
            None,
            ["a had the highest total of 3 candidates, 2, before b with 1.5; queue made the difference"],
        ),
        (
            decision(TIE),
            None,
            ["b ties with a at 2: max-score-picker chose among them, at random where nothing tells them apart"],
        ),
        (decision(TIE), [1], ["b ties with a at 2: max-score-picker chose among them"]),
        (decision(TIE), [0, 1], ["b was drawn at random among a, b, which tie at 2"]),
        (
            decision(run([1.0, 0.5, 0.0], [0.0, 0.5, 0.0], 1)),
            None,
            ["b with a total of 1.5 was drawn at random by max-score-picker; the highest total was 2 of a"],
        ),
        (
            decision(BEST),
            [0, 1],
            ["a with a total of 2 was drawn at random among a, b by max-score-picker"],
        ),
        (decision(run([1.0], [0.0], 0, [0])), None, ["a was the only candidate: filter removed 2"]),
        (
            decision(
                replace(run([1.0], [0.0], 0, [0]), filters=(FilterStep("filter", ALL[:1], ("Blocks/made", "Load")),)),
                samples={
                    "Blocks/made": Samples(ALL, np.array([9.0, 0.0, 4.0])),
                    "Load": Samples(ALL, np.array([2.0, math.nan, 7.5])),
                },
            ),
            None,
            ["a was the only candidate: filter removed 2 (Blocks 9 here, 0 to 4 there; Load 2 here, 7.5 there)"],
        ),
        (
            decision(
                replace(run([1.0, 0.5], [0.0, 0.5], 0, [0, 1]), filters=(FilterStep("filter", ALL[:2], ("Load",)),)),
                samples={"Load": Samples(ALL[1:], np.array([2.0, 7.0]))},
            ),
            None,
            [
                "a had the highest total of 2 candidates, 2, before b with 1.5; queue made the difference",
                "filter removed 1",
            ],
        ),
        (
            decision(run([], [], None, []), REFUSED),
            None,
            ["refused with status 429: full", "filter left no candidate"],
        ),
        (
            decision(outcome=REFUSED, saturation=1.5),
            (),
            ["refused with status 429: full", "the saturation of the candidates was 1.5, and the priority is negative"],
        ),
        (
            decision(replace(BEST, ranked_last={2: "its scrapes fail"})),
            None,
            [
                "a had the highest total of 3 candidates, 2, before b with 1.5; queue made the difference",
                "c ranks last: its scrapes fail",
            ],
        ),
        (
            decision(BEST, samples={"WaitingQueueSize/core": OLD}),
            None,
            [
                "a had the highest total of 3 candidates, 2, before b with 1.5; queue made the difference",
                "b: WaitingQueueSize 60 s old, so its scores by them aren't its own",
                "c: WaitingQueueSize never reported, or long ago, so its scores by them aren't its own",
            ],
        ),
        (
            decision(
                BEST,
                failures=(PluginFailure("cache", "Scorer", "ValueError: no"),),
                progress=Progress(served_by="fallback", endpoint="b", aborted=True),
            ),
            None,
            [
                "a had the highest total of 3 candidates, 2, before b with 1.5; queue made the difference",
                "Scorer cache failed: ValueError: no",
                "b served instead (fallback)",
                "it was aborted before its response was complete",
            ],
        ),
    ],
)
def test_a_decision_is_explained_in_sentences(made: Decision, possible: list[int] | None, expected: list[str]) -> None:
    assert reasons(made, possible) == expected


def test_a_wait_is_a_reason() -> None:
    wait = Wait(flow="f", band=0, ahead=3, seconds=1.5, released_by="fresh metrics")
    assert reasons(decision(BEST, queued=wait))[1] == (
        "it waited 1.500 s in band 0 behind 3 requests; fresh metrics let it go"
    )


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            BEST,
            [
                "without queue: b",
                "if queue gave b more than 0.75 instead of 0.5: b",
                "if cache gave b more than 1 instead of 0.5: b",
            ],
        ),
        (TIE, []),
        (
            run([1.0, 0.0], [0.0, 0.0], 0, [0, 1]),
            ["if queue gave b more than 1 instead of 0: b", "without filter: c would be candidates"],
        ),
        (
            run([0.5, 1.0, 0.0], [0.0, 0.0, 0.0], 0, ranked_last={1: "down"}),
            [
                "if queue gave c more than 0.5 instead of 0: c",
                "if cache gave c more than 1 instead of 0: c",
                "if b didn't seem to be down: b",
            ],
        ),
        (None, []),
    ],
)
def test_what_would_have_changed_it_is_named(profile: ProfileRun | None, expected: list[str]) -> None:
    assert [change["text"] for change in changes(decision(profile))] == expected


def test_the_work_is_no_multiple_of_the_endpoints_that_rank_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = 0
    position = module._position

    def counted(profile: ProfileRun, row: int) -> int:
        nonlocal looked_up
        looked_up += 1
        return position(profile, row)

    monkeypatch.setattr(module, "_position", counted)
    layout = pool(*(f"e{number:03}" for number in range(300))).layout
    totals = np.linspace(1.0, 0.0, 300)
    profile = ProfileRun(
        profile="default",
        candidates=layout.all_rows,
        filters=(),
        rows=layout.all_rows,
        scores=(ScoreStep("queue", 1.0, totals),),
        totals=totals,
        picker="max-score-picker",
        picked=(250,),
        ranked_last=dict.fromkeys(range(250), "down"),
    )
    found = [
        each["endpoint"] for each in changes(replace(decision(profile), layout=layout)) if each["kind"] == "health"
    ]
    assert found == [layout.endpoints[row].id for row in range(250)]
    assert looked_up < 10
