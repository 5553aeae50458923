"""`load-aware-scorer`: queues on a fixed scale."""

from typing import Any

import pytest

from services.picker.scheduling.scorers.scraped_load import LoadAwareScorer
from shared.attributes import WAITING_QUEUE_SIZE
from tests.unit.services.picker.scheduling.plugins import over, plugin


@pytest.mark.parametrize(
    ("raw", "queues", "ages", "policy", "expected"),
    [
        ({}, [], 0.0, "saturated", []),
        ({}, [0], 0.0, "saturated", [0.5]),
        ({}, [0, 32, 64, 128, 500], 0.0, "saturated", [0.5, 0.375, 0.25, 0, 0]),
        ({"threshold": 10}, [0, 1, 5, 10], 0.0, "saturated", [0.5, 0.45, 0.25, 0]),
        ({"threshold": 0}, [64], 0.0, "saturated", [0.25]),
        ({"threshold": -5}, [64], 0.0, "saturated", [0.25]),
        ({}, [7, 7], 0.0, "saturated", [0.5 * 121 / 128] * 2),
        ({}, [0, None], 0.0, "saturated", [0.5, 0]),
        ({}, [0, 64, 0], [0, 0, 9], "saturated", [0.5, 0.25, 0]),
        ({}, [0, 64, 0], [0, 0, 9], "ignore", [0.5, 0.25, 0.375]),
        ({}, [0, 64, 0], [0, 0, 9], "lastKnown", [0.5, 0.25, 0.5]),
    ],
)
def test_scores(raw: dict[str, Any], queues: list[Any], ages: Any, policy: str, expected: list[float]) -> None:
    run = over(WAITING_QUEUE_SIZE, queues, ages, policy)
    assert plugin(LoadAwareScorer, raw).score(run, run.candidates) == pytest.approx(expected)
