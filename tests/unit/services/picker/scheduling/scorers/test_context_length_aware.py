"""`context-length-aware`: endpoints for prompts of one length."""

from typing import Any

import pytest

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.scorers.context_length_aware import ContextLengthAware
from shared.model import Endpoint
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, pool, request

LABEL = "llm-d.ai/context-length-range"


def on(tokens: int, *ranges: str | None, label: str = LABEL) -> Cycle:
    """Endpoints with these labels, and a prompt of so many tokens."""
    members = [
        Endpoint(
            id=f"a{at}", name=f"a{at}", address=f"10.0.0.{at}", port=80, labels={} if text is None else {label: text}
        )
        for at, text in enumerate(ranges)
    ]
    return cycle(pool(*members), request(b"xxxx" * tokens))


def scores(run: Cycle, raw: dict[str, Any] | None = None) -> list[float]:
    made: list[float] = plugin(ContextLengthAware, raw or {}).score(run, run.candidates).tolist()
    return made


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (on(100), []),
        (on(100, None), [0.5]),
        (on(100, "", "x-5", "5-", "-5", "9-5", "1.5-9", "1e3-2e3", "0-99999999999999999"), [0.0] * 8),
        # no width
        (on(100, "100-100"), [1.0]),
        # 0.3 + 0.7·(0.7 / (1 + w / 10000) + 0.3·(max − L) / w)
        (on(100, "100-10100"), [0.3 + 0.7 * (0.7 / 2 + 0.3)]),
        (on(5000, "0-10000"), [0.3 + 0.7 * (0.7 / 2 + 0.3 / 2)]),
        (on(10_000, "0-10000"), [0.3 + 0.7 * 0.35]),
        # outside: 1000, 50 and 1 tokens off
        (on(100, "1100-2000", "0-50", "101-101"), [0.15, 0.3 / 1.05, 0.3 / 1.001]),
        (on(100, " 100 - 100 "), [1.0]),
    ],
)
def test_scores_by_the_range_of_a_label(run: Cycle, expected: list[float]) -> None:
    assert scores(run) == pytest.approx(expected)


def test_a_narrow_range_beats_a_wide_one_and_any_range_beats_being_outside() -> None:
    narrow, wide, unlabelled, outside = scores(on(1000, "0-2000", "0-100000", None, "5000-9000"))
    assert narrow > wide > unlabelled > outside


def test_the_label_can_have_another_name() -> None:
    assert scores(on(5, "5-5", label="len"), {"label": "len"}) == [1.0]
    assert read(ContextLengthAware.Parameters, {"label": ""})[1] == ["at.label: '' is empty"]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [({}, [0, 1, 2, 3, 4]), ({"enableFiltering": True}, [0, 1, 2]), ({"label": "no"}, [0, 1, 2, 3, 4])],
)
def test_as_a_filter_it_keeps_what_has_no_label_and_what_fits(raw: dict[str, Any], expected: list[int]) -> None:
    run = on(100, None, "0-100", "100-200", "101-200", "what")
    assert plugin(ContextLengthAware, raw).filter(run, run.candidates).tolist() == expected


def test_nothing_may_fit() -> None:
    run = on(100, "0-50")
    assert plugin(ContextLengthAware, {"enableFiltering": True}).filter(run, run.candidates).tolist() == []
