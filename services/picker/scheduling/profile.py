"""A scheduling profile: filters in order, then the weighted sum of its scorers, then its picker."""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Picker, Scorer
from services.picker.scheduling.record import FilterStep, ProfileRun, ScoreStep
from services.picker.state.layout import Floats, Rows

Observe = Callable[[str, str, str], Callable[[float], None]]
"""Makes of (extension point, plugin type, plugin name) what takes the seconds of every call of that plugin."""


def nothing(_point: str, _kind: str, _name: str) -> Callable[[float], None]:
    """Observes nothing."""
    return lambda _seconds: None


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
        self._observe_filter = [observe("Filter", one.TYPE, one.name) for one in filters]
        self._observe_scorer = [observe("Scorer", one.TYPE, one.name) for one, _ in scorers]
        self._observe_picker = observe("Picker", picker.TYPE, picker.name)

    def run(self, cycle: Cycle, rows: Rows) -> ProfileRun:
        """What the profile makes of these candidates; nothing is picked when its filters leave none."""
        candidates = rows
        filters: list[FilterStep] = []
        started = perf_counter()
        for one, observe in zip(self.filters, self._observe_filter, strict=True):
            rows = one.filter(cycle, rows)
            filters.append(FilterStep(one.name, rows))
            ended = perf_counter()
            observe(ended - started)
            started = ended
            if not len(rows):
                break
        if not len(rows):
            return ProfileRun(self.name, candidates, tuple(filters), rows, (), np.zeros(0), self.picker.name, ())
        scores = np.empty((len(self.scorers), len(rows)))
        for position, ((scorer, _), observe) in enumerate(zip(self.scorers, self._observe_scorer, strict=True)):
            scores[position] = scorer.score(cycle, rows)
            ended = perf_counter()
            observe(ended - started)
            started = ended
        # fmax takes NaN for 0, which no comparison does
        np.fmin(np.fmax(scores, 0.0, out=scores), 1.0, out=scores)
        # not a matrix product: it rounds by position, and endpoints that score alike must tie
        totals: Floats = np.add.reduce(self._weights * scores, axis=0)
        steps = tuple(
            ScoreStep(scorer.name, weight, score) for (scorer, weight), score in zip(self.scorers, scores, strict=True)
        )
        started = perf_counter()
        picked = self.picker.pick(cycle, rows, totals)
        self._observe_picker(perf_counter() - started)
        return ProfileRun(self.name, candidates, tuple(filters), rows, steps, totals, self.picker.name, tuple(picked))

    def __repr__(self) -> str:
        steps = [one.name for one in self.filters]
        steps += [f"{one.name}·{weight:g}" for one, weight in self.scorers]
        return f"<Profile {self.name!r}: {' → '.join([*steps, self.picker.name])}>"
