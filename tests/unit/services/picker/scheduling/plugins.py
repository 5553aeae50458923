"""Scheduling plugins whose behaviour a test writes down."""

from collections.abc import Callable, Sequence

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Scorer
from services.picker.state.layout import Floats, Rows


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
