"""A scheduling profile: filters in order, then the weighted sum of its scorers, then its picker."""

from collections.abc import Callable
from time import perf_counter

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import Filter, Picker, Scorer
from services.picker.scheduling.ranking import pick_healthy_first
from services.picker.scheduling.record import FilterStep, ProfileRun, ScoreStep
from services.picker.state.layout import Floats, Rows

Observe = Callable[[str, str, str], Callable[[float], None]]
"""Makes of (extension point, plugin type, plugin name) what takes the seconds of every call of that plugin."""


def nothing(_point: str, _kind: str, _name: str) -> Callable[[float], None]:
    """Observes nothing."""
    return lambda _seconds: None


class _Weighed(Struct, frozen=True):
    """A scorer's scores, brought between 0 and 1, and as they count."""

    given: Floats
    """As the scorer gave them."""
    step: ScoreStep
    weighted: Floats


class _Scoring:
    """A scorer at its place in a profile.

    Scores that depend on nothing but metrics are the same array for many requests. What is made of such a one is kept,
    and so is the sum up to it, until another array comes.
    """

    __slots__ = ("_before", "_kept", "_sum", "observe", "scorer", "weight")

    def __init__(self, scorer: Scorer, weight: float, observe: Callable[[float], None]) -> None:
        self.scorer = scorer
        self.weight = weight
        self.observe = observe
        self._kept: _Weighed | None = None
        self._before: Floats | None = None
        self._sum: Floats | None = None

    def score(self, cycle: Cycle, rows: Rows) -> _Weighed:
        """The scores of these rows."""
        given = self.scorer.score(cycle, rows)
        kept = self._kept
        if kept is not None and kept.given is given:
            return kept
        scores = given
        # a NaN is the least and the most; fmax takes it for 0, which no comparison does
        if not self.scorer.BOUNDED and not (given[given.argmin()] >= 0.0 and given[given.argmax()] <= 1.0):
            scores = np.fmin(np.fmax(given, 0.0), 1.0)
        weighed = _Weighed(given, ScoreStep(self.scorer.name, self.weight, scores), self.weight * scores)
        if not given.flags.writeable:
            self._kept, self._before = weighed, None
        return weighed

    def add(self, totals: Floats, weighed: _Weighed) -> Floats:
        """The sum of this scorer's share and those before it."""
        kept = weighed is self._kept
        if kept and totals is self._before and self._sum is not None:
            return self._sum
        # not a matrix product: it rounds by position, and endpoints that score alike must tie
        added: Floats = totals + weighed.weighted
        if kept:
            self._before, self._sum = totals, added
        return added


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
        self._filtering = [(one, observe("Filter", one.TYPE, one.name)) for one in filters]
        self._scoring = [_Scoring(one, weight, observe("Scorer", one.TYPE, one.name)) for one, weight in scorers]
        self._observe_picker = observe("Picker", picker.TYPE, picker.name)

    def run(self, cycle: Cycle, rows: Rows) -> ProfileRun:
        """What the profile makes of these candidates; nothing is picked when its filters leave none."""
        candidates = rows
        filters: list[FilterStep] = []
        started = perf_counter()
        for one, observe in self._filtering:
            rows = one.filter(cycle, rows)
            filters.append(FilterStep(one.name, rows))
            ended = perf_counter()
            observe(ended - started)
            started = ended
            if not len(rows):
                break
        if not len(rows):
            return ProfileRun(self.name, candidates, tuple(filters), rows, (), np.zeros(0), self.picker.name, ())
        steps: list[ScoreStep] = []
        totals: Floats | None = None
        for scoring in self._scoring:
            weighed = scoring.score(cycle, rows)
            steps.append(weighed.step)
            totals = weighed.weighted if totals is None else scoring.add(totals, weighed)
            ended = perf_counter()
            scoring.observe(ended - started)
            started = ended
        if totals is None:
            totals = np.zeros(len(rows))
        picked, unhealthy = pick_healthy_first(self.picker, cycle, rows, totals)
        self._observe_picker(perf_counter() - started)
        return ProfileRun(
            self.name, candidates, tuple(filters), rows, tuple(steps), totals, self.picker.name, picked, unhealthy
        )

    def __repr__(self) -> str:
        steps = [one.name for one in self.filters]
        steps += [f"{one.name}·{weight:g}" for one, weight in self.scorers]
        return f"<Profile {self.name!r}: {' → '.join([*steps, self.picker.name])}>"
