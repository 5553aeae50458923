"""A scheduling profile: filters in order, then the weighted sum of its scorers, then its picker."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import index
from time import perf_counter
from typing import Any

import numpy as np
from msgspec import Struct

from services.picker.scheduling.cycle import FLOAT, Cycle
from services.picker.scheduling.interfaces import Filter, Picker, PickerParameters, Scorer, is_bounded
from services.picker.scheduling.record import FilterStep, ProfileRun, ScoreStep
from services.picker.state.layout import Floats, Rows
from shared.plugin import Role

ROW = np.dtype(np.intp)

SILENT_TRIALS = 16
"""How often a picker is asked again, for each row that it has named and once more, before it is taken to name no other
by chance."""
MAX_TRIALS = 256

Pick = Callable[[Cycle, Rows, Floats], Sequence[int]]
"""Chooses some of these rows, which have these totals."""

LAST = 1e15
"""More requests than any endpoint has in flight."""
NONE: Mapping[int, str] = {}

Observe = Callable[[str, str, str], Callable[[float], None]]
"""Makes of (extension point, plugin type, plugin name) what takes the seconds of every call of that plugin."""


def untimed(*_: str) -> Callable[[float], None]:
    """Observes nothing."""
    return lambda _: None


class _Weighed(Struct, frozen=True):
    """A scorer's scores, brought between 0 and 1, and as they count."""

    given: Floats
    """As the scorer gave them."""
    step: ScoreStep
    weighted: Floats


class _Filtering:
    """A filter at its place in a profile. What it made of some rows isn't checked again if it returns the same array,
    and nobody can have changed either."""

    __slots__ = ("_bounded", "_given", "_kept", "filter", "observe")

    def __init__(self, filter: Filter, observe: Callable[[float], None]) -> None:
        self.filter = filter
        self.observe = observe
        self._bounded = is_bounded(filter)
        self._given: Rows | None = None
        self._kept: FilterStep | None = None

    def keep(self, cycle: Cycle, rows: Rows) -> FilterStep:
        """What the filter leaves of these rows; all of them where it fails."""
        reads = len(cycle.reads)
        try:
            found = self.filter.filter(cycle, rows)
            kept = self._kept
            if kept is not None and kept.kept is found and self._given is rows:
                return kept
            checked = found if self._bounded else _kept(found, cycle, rows)
            # the same array where nothing is left out: what is kept of all endpoints' scores is found by it
            everything = len(checked) == len(rows)
            name = self.filter.name
            step = FilterStep(name, rows) if everything else FilterStep(name, checked, tuple(cycle.reads[reads:]))
            if not (found.flags.writeable or rows.flags.writeable):
                self._given, self._kept = rows, step
            return step
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            cycle.plugin_failed(self.filter, Role.FILTER, error)
            return FilterStep(self.filter.name, rows)


class _Scoring:
    """A scorer at its place in a profile.

    Scores that depend on nothing but metrics are the same array for many requests. Their weighted scores are kept until
    another array comes.
    """

    __slots__ = ("_bounded", "_kept", "_sum", "observe", "scorer", "weight")

    def __init__(self, scorer: Scorer, weight: float, observe: Callable[[float], None]) -> None:
        self.scorer = scorer
        self.weight = weight
        self.observe = observe
        self._bounded = is_bounded(scorer)
        self._kept: _Weighed | None = None
        self._sum: tuple[Floats, Floats] | None = None
        """The totals to which the kept scores were added last, and what they came to."""

    def score(self, cycle: Cycle, rows: Rows) -> _Weighed:
        """The scores of these rows; 0 for all where the scorer fails."""
        try:
            given = self.scorer.score(cycle, rows)
            kept = self._kept
            if kept is not None and kept.given is given and len(given) == len(rows):
                return kept
            return self._weigh(cycle, given, len(rows))
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            cycle.plugin_failed(self.scorer, Role.SCORER, error)
            nothing = np.zeros(len(rows))
            return _Weighed(nothing, ScoreStep(self.scorer.name, self.weight, nothing), nothing)

    def added(self, totals: Floats, weighed: _Weighed) -> Floats:
        """These totals with the weighted scores."""
        if weighed is not self._kept:
            return totals + weighed.weighted
        known = self._sum
        if known is None or known[0] is not totals:
            known = self._sum = totals, totals + weighed.weighted
        return known[1]

    def _weigh(self, cycle: Cycle, given: Floats, size: int) -> _Weighed:
        """Raises ValueError for what are no scores."""
        scores = given
        if type(given) is not np.ndarray or given.dtype is not FLOAT or given.shape != (size,):
            scores = _numbers(given, size)
        # a NaN is the least and the most
        if not self._bounded and not (scores[scores.argmin()] >= 0.0 and scores[scores.argmax()] <= 1.0):
            if unknown := int(np.isnan(scores).sum()):
                error = ValueError(f"the scores of {unknown} of {size} endpoints are NaN")
                cycle.plugin_failed(self.scorer, Role.SCORER, error)
                given = np.array(given)  # not to be kept: the next request has the failure too
            scores = np.fmin(np.fmax(scores, 0.0), 1.0)
        weighed = _Weighed(given, ScoreStep(self.scorer.name, self.weight, scores), self.weight * scores)
        if not given.flags.writeable:
            self._kept, self._sum = weighed, None
        return weighed


class Profile:
    """Runs its plugins on a cycle's candidates."""

    def __init__(
        self,
        name: str,
        filters: tuple[Filter, ...],
        scorers: tuple[tuple[Scorer, float], ...],
        picker: Picker,
        observe: Observe = untimed,
    ) -> None:
        self.name = name
        self.filters = filters
        self.scorers = scorers
        self.picker = picker
        self._filtering = [_Filtering(plugin, observe("Filter", plugin.TYPE, plugin.name)) for plugin in filters]
        self._scoring = [
            _Scoring(scorer, weight, observe("Scorer", scorer.TYPE, scorer.name)) for scorer, weight in scorers
        ]
        self._observe_picker = observe("Picker", picker.TYPE, picker.name)
        self._count = picker.parameters.count if isinstance(picker.parameters, PickerParameters) else 1
        self._prefers = any(plugin.PREFERS for plugin in filters)

    def run(self, cycle: Cycle, rows: Rows) -> ProfileRun:
        """What the profile makes of these candidates; nothing is picked when its filters leave none."""
        candidates = rows
        filters: list[FilterStep] = []
        started = perf_counter()
        for filtering in self._filtering:
            step = filtering.keep(cycle, rows)
            rows = step.kept
            filters.append(step)
            ended = perf_counter()
            filtering.observe(ended - started)
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
            # not a matrix product: it rounds by position, and endpoints that score alike must tie
            totals = weighed.weighted if totals is None else scoring.added(totals, weighed)
            ended = perf_counter()
            scoring.observe(ended - started)
            started = ended
        if totals is None:
            totals = np.zeros(len(rows))
        totals.setflags(write=False)  # some are kept for the next request
        picked, ranked_last = self._pick_first(cycle, rows, totals)
        if self._prefers and len(rows) == len(picked) < min(self._count, len(candidates)):
            picked += self._fallbacks(cycle, candidates, filters, picked)
        self._observe_picker(perf_counter() - started)
        return ProfileRun(
            self.name, candidates, tuple(filters), rows, tuple(steps), totals, self.picker.name, picked, ranked_last
        )

    def possible_first(self, cycle: Cycle, run: ProfileRun) -> Iterator[tuple[int, ...]]:
        """The rows that the picker could have named first with other random choices, as far as they are known after
        each trial; the run's own pick is among them. It is asked again until nothing new comes, or the endpoints
        change, so of very many there may be more."""
        found = set(run.picked[:1])
        yield tuple(found)
        trials = silent = 0
        while trials < MAX_TRIALS and silent < SILENT_TRIALS * (1 + len(found)):
            if cycle.view.layout is not cycle.layout:
                break
            before = cycle.random.bit_generator.state
            first = self._pick_first(cycle, run.rows, run.totals)[0][:1]
            if cycle.random.bit_generator.state == before:
                break  # it draws no lots
            silent = silent + 1 if found.issuperset(first) else 0
            found.update(first)
            trials += 1
            yield tuple(sorted(found))

    def _fallbacks(
        self, cycle: Cycle, candidates: Rows, steps: Sequence[FilterStep], picked: tuple[int, ...]
    ) -> tuple[int, ...]:
        """The endpoints with the fewest requests in flight of those that would be left if no filter preferred any; at
        random among equals. They have no scores."""
        rows, before = candidates, candidates
        for filtering, step in zip(self._filtering, steps, strict=True):
            if not filtering.filter.PREFERS:
                rows = step.kept if rows is before else filtering.keep(cycle, rows).kept
            before = step.kept
        load = cycle.view.in_flight.expected_requests(rows) + cycle.random.random(len(rows))
        if cycle.ranked_last:
            load[np.isin(rows, list(cycle.ranked_last))] += LAST
        for row in picked:
            load[rows == row] = np.inf
        found: list[int] = []
        while len(found) < self._count - len(picked) and load.item(least := load.argmin()) < np.inf:
            found.append(rows.item(least))
            load[least] = np.inf
        return tuple(found)

    def _pick_first(self, cycle: Cycle, rows: Rows, totals: Floats) -> tuple[tuple[int, ...], Mapping[int, str]]:
        """As `pick_first`."""
        if cycle.ranked_last:
            return pick_first(self._pick, cycle, rows, totals)
        return self._pick(cycle, rows, totals), NONE

    def _pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> tuple[int, ...]:
        """What the picker plugin chooses; a random choice where it fails."""
        try:
            return _picked(self.picker.pick(cycle, rows, totals), cycle, rows)
        except Exception as error:  # noqa: BLE001 - as in `_Scoring.score`: chance picks
            cycle.plugin_failed(self.picker, Role.PICKER, error)
            return _any(self.picker, cycle, rows)

    def __repr__(self) -> str:
        steps = [plugin.name for plugin in self.filters]
        steps += [f"{scorer.name}·{weight:g}" for scorer, weight in self.scorers]
        return f"<Profile {self.name!r}: {' → '.join([*steps, self.picker.name])}>"


def pick_first(
    pick: Pick, cycle: Cycle, rows: Rows, totals: Floats, last: Mapping[int, str] | None = None
) -> tuple[tuple[int, ...], Mapping[int, str]]:
    """(the chosen rows, the rows that rank behind all others and why they do).

    `pick` chooses among the other rows first. Where it wants more than there are, the `last` ones follow, in the order
    in which it would have chosen them. When all rows rank last, or none does, they are all alike; but endpoints that
    are only held back still come before unhealthy ones.
    """
    unhealthy = cycle.view.health.unhealthy
    if last is None:
        last = cycle.ranked_last
    if not last:
        return tuple(pick(cycle, rows, totals)), NONE
    everywhere = np.ones(len(cycle.layout), np.bool_)
    everywhere[list(last)] = False
    first = everywhere[rows]
    count = int(np.count_nonzero(first))
    if count == 0 and last is not unhealthy:
        return pick_first(pick, cycle, rows, totals, unhealthy)
    if count in (0, len(rows)):
        return tuple(pick(cycle, rows, totals)), NONE
    picked = pick(cycle, rows[first], totals[first])
    if len(picked) == count:
        among_all = pick(cycle, rows, totals)
        left = [row for row in among_all if row in last]
        picked = [*picked, *left[: len(among_all) - count]]
    return tuple(picked), last


def _kept(kept: object, cycle: Cycle, rows: Rows) -> Rows:
    """What a filter left of the rows. Raises ValueError for what aren't some of them."""
    if kept is rows:
        return rows
    if type(kept) is not np.ndarray or kept.dtype is not ROW or kept.ndim != 1:
        raise ValueError(f"expected an array of rows, got {_shown(kept)}")
    found: Rows = kept
    size = len(cycle.layout)
    known = not len(found) or (found[found.argmin()] >= 0 and found[found.argmax()] < size and len(found) <= len(rows))
    if known and rows is not cycle.layout.all_rows:
        given = np.zeros(size, np.bool_)
        given[rows] = True
        known = bool(np.logical_and.reduce(given.take(found)))
    if not known:
        raise ValueError("some returned rows aren't candidates")
    return found


def _numbers(given: Any, size: int) -> Floats:
    """Scores that aren't what nearly all are, as such. Raises ValueError for what isn't one number a row."""
    if not isinstance(given, np.ndarray) or given.shape != (size,) or given.dtype.kind not in "fiub":
        raise ValueError(f"expected {size} numbers, got {_shown(given)}")
    scores: Floats = given.astype(np.float64)
    return scores


def _picked(picked: Iterable[int], cycle: Cycle, rows: Rows) -> tuple[int, ...]:
    """The rows that a picker named. Raises ValueError or TypeError for what aren't some of the candidates."""
    chosen = tuple(picked)
    size = len(cycle.layout.endpoints)
    everything = rows is cycle.layout.all_rows
    for row in chosen:
        if type(row) is not int:
            return _picked(map(index, chosen), cycle, rows)
        if not 0 <= row < size or not (everything or rows[(rows == row).argmax()] == row):
            raise ValueError(f"row {row} was picked but isn't a candidate")
    if not chosen:
        raise ValueError("nothing was picked")
    return chosen


def _any(picker: Picker, cycle: Cycle, rows: Rows) -> tuple[int, ...]:
    """As many as the picker should have picked, as far as that can be told, by chance."""
    parameters = picker.parameters
    count = parameters.count if isinstance(parameters, PickerParameters) else 1
    return tuple(cycle.random.permutation(rows)[:count].tolist())


def _shown(result: object) -> str:
    if isinstance(result, np.ndarray):
        return f"an array of {result.dtype} of shape {result.shape}"
    return f"a {type(result).__name__}"
