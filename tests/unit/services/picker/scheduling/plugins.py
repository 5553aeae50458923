"""Scheduling plugins whose behaviour a test writes down, and what tests of real ones share."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Scorer
from services.picker.state.layout import Floats, Rows
from shared.attributes import AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from tests.unit.services.picker.world import cycle, pool, report


class Keeps(Filter):
    """Keeps the endpoints with these ids."""

    TYPE = "keeps"

    def __init__(self, *ids: str) -> None:
        super().__init__("keeps " + " ".join(ids))
        self.ids = ids

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        kept: Rows = rows[[cycle.layout.endpoints[row].id in self.ids for row in rows]]
        return kept


class Scores(Scorer):
    """Gives these scores, in the rows' order."""

    TYPE = "scores"

    def __init__(self, scores: Sequence[float] | Callable[[Rows], Floats], name: str = "scores") -> None:
        super().__init__(name)
        self.scores = scores
        self.seen: list[list[int]] = []

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        self.seen.append(rows.tolist())
        if callable(self.scores):
            return self.scores(rows)
        return np.array(self.scores, np.float64)


def read(parameters: type[Any], raw: dict[str, Any]) -> tuple[Any, list[str]]:
    """(the parameters, or None; what is wrong with them)."""
    problems = Problems()
    made = decode(raw, parameters, "at", problems, ignore_case=True)
    return (None if made is MISSING else made), [str(problem) for problem in problems.errors]


def plugin(kind: type[Any], raw: dict[str, Any], **inputs: AttributeKey[float]) -> Any:
    """A plugin with these parameters, whose inputs are bound to these attributes."""
    parameters, errors = read(kind.Parameters, raw)
    assert parameters is not None, errors
    made = kind("plugin", parameters)
    made.inputs = inputs
    return made


def over(
    key: AttributeKey[Any],
    values: Sequence[float | None],
    ages: float | Sequence[float] = 0.0,
    policy: str = "saturated",
) -> Cycle:
    """A cycle on endpoints a0, a1, … that report these values."""
    view = pool(*(f"a{number}" for number in range(len(values))))
    report(view, {key: values}, ages)
    return cycle(view, policy=policy)
