"""A scheduling profile: filters in order, then the weighted sum of its scorers, then its picker."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Picker, Scorer
from services.picker.scheduling.record import FilterStep, ProfileRun, ScoreStep
from services.picker.state.layout import Floats, Rows

Observe = Callable[[str, str, str, float], None]
"""Gets (extension point, plugin type, plugin name, seconds) of every plugin call."""


def nothing(_point: str, _kind: str, _name: str, _seconds: float) -> None:
    """Observes nothing."""


class Profile:
    """Runs its plugins on a cycle's candidates."""

    def __init__(
        self,
        name: str,
        filters: tuple[Filter, ...],
        scorers: tuple[tuple[Scorer, float], ...],
        picker: Picker,
        observe: Observe = nothing,
    ) -> None:
        self.name = name
        self.filters = filters
        self.scorers = scorers
        self.picker = picker
        self._weights = np.array([[weight] for _, weight in scorers]).reshape(-1, 1)
        self._observe = observe

    def run(self, cycle: Cycle, rows: Rows) -> ProfileRun:
        """What the profile makes of these candidates; nothing is picked when its filters leave none."""
        observe = self._observe
        candidates = rows
        filters: list[FilterStep] = []
        started = perf_counter()
        for one in self.filters:
            rows = one.filter(cycle, rows)
            filters.append(FilterStep(one.name, rows))
            ended = perf_counter()
            observe("Filter", one.TYPE, one.name, ended - started)
            started = ended
            if not len(rows):
                break
        if not len(rows):
            return ProfileRun(self.name, candidates, tuple(filters), rows, (), np.zeros(0), self.picker.name, ())
        scores = np.empty((len(self.scorers), len(rows)))
        for position, (scorer, _) in enumerate(self.scorers):
            scores[position] = scorer.score(cycle, rows)
            ended = perf_counter()
            observe("Scorer", scorer.TYPE, scorer.name, ended - started)
            started = ended
        # fmax takes NaN for 0, which no comparison does
        np.fmin(np.fmax(scores, 0.0, out=scores), 1.0, out=scores)
        # not a matrix product: it rounds by position, and endpoints that score alike must tie
        totals: Floats = (self._weights * scores).sum(axis=0)
        steps = tuple(
            ScoreStep(scorer.name, weight, score) for (scorer, weight), score in zip(self.scorers, scores, strict=True)
        )
        started = perf_counter()
        picked = self.picker.pick(cycle, rows, totals)
        observe("Picker", self.picker.TYPE, self.picker.name, perf_counter() - started)
        return ProfileRun(self.name, candidates, tuple(filters), rows, steps, totals, self.picker.name, tuple(picked))

    def __repr__(self) -> str:
        steps = [one.name for one in self.filters]
        steps += [f"{one.name}·{weight:g}" for one, weight in self.scorers]
        return f"<Profile {self.name!r}: {' → '.join([*steps, self.picker.name])}>"
