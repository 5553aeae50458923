"""Replays a picker's last decisions with another configuration, in a process of its own: the document, which others
choose, may take long with each decision.

Only scheduling is replayed: who would wait, or be shed, depends on queues that aren't kept. Producers don't run,
because prompts aren't kept either: what they found out about a request is what the decision has of it, or is missing.
Both configurations, the running one too, begin with plugins that remember nothing.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable
from itertools import islice

import numpy as np
from msgspec import Struct, field, json

from services.picker.pipeline import Pipeline, build
from services.picker.reports.past_records import Records, ReplayTask, Unsent
from services.picker.reports.past_view import PastDecision, PastView, PresentView, UnrecordedInputs, request_of
from services.picker.scheduling.cycle import IN_FLIGHT_LOAD, PREFIX_MATCH, Cycle
from services.picker.state.layout import Layout
from shared.config import load
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid
from shared.plugin import Registry
from shared.service.child import confined_with_plugins
from shared.service.replay import EXAMPLES, Fidelity, Gap, Move, Replay, cut, gaps, moves

SEED = 1
"""Of the replay's random choices."""
MAX_DRAWS = 64
"""Picks to try before the former first choice counts as impossible: with ten tied endpoints, one search in a thousand
misses it."""
UNSCHEDULED = "refused before they were scheduled"
OUT_OF_TIME = "not reached before the timeout"


class _Outcome(Struct, frozen=True):
    """Where one decision would have gone."""

    instead: str
    """The first choice's id; empty if the filters leave none."""
    elsewhere: bool
    by_chance: bool


class Replayer:
    """One configuration, on decisions of the past."""

    def __init__(self, config: LoadedConfig, now: PresentView) -> None:
        """Raises Invalid for a configuration whose plugins can't be made, and what they raise."""
        self.pipeline: Pipeline = build(config, np.random.default_rng(SEED), time.time)
        self._now = now
        self._random = np.random.default_rng(SEED)
        self._views: dict[int, PastView] = {}
        """By the layout, which each keeps."""
        self.unrecorded = UnrecordedInputs()
        self.products = {
            key.wire: key
            for producer in self.pipeline.director.scheduler.producers
            for key in producer.produces(producer.name, producer.parameters)
        }
        self.failures: Counter[str] = Counter()

    def outcome(self, decision: PastDecision) -> _Outcome | None:
        """Where it would have gone, or None if it can't be replayed."""
        inputs, candidates = decision.inputs, decision.candidates
        if inputs is None or candidates is None:
            return None
        self.unrecorded.clear()
        view = self._view(decision.layout)
        view.show(decision, inputs)
        director = self.pipeline.director
        cycle = Cycle(
            request_of(decision, inputs, self.unrecorded),
            view,
            decision.monotonic,
            self._random,
            director.stale,
            model=decision.target_model,
            priority=decision.priority,
            candidates=candidates,
        )
        cycle.prompt_tokens, cycle.ranked_last = inputs.prompt_tokens, inputs.ranked_last
        for wire, key in self.products.items():
            if wire == PREFIX_MATCH.wire and inputs.prefix_match is not None:
                cycle.put(PREFIX_MATCH, inputs.prefix_match)
            elif wire != IN_FLIGHT_LOAD.wire:
                self.unrecorded.missing.add(key.wire)
        runs, plan = director.scheduler.run(cycle)
        self._drop_recorded(decision, cycle)
        run = runs.get(plan.primary)
        before = decision.picked[:1]
        drawn = run.picked[:1] if run is not None else ()
        stays = drawn == before
        if run is not None and before and drawn and not stays:
            for possible in islice(director.scheduler.possible_first(cycle, run), MAX_DRAWS):
                if before[0] in possible:
                    stays = True
                    break
        self.failures.update({failure.plugin for failure in cycle.failures})
        return _Outcome(
            "".join(decision.layout.endpoints[row].id for row in drawn), not stays, stays and drawn != before
        )

    def _drop_recorded(self, decision: PastDecision, cycle: Cycle) -> None:
        """Don't report an attribute as current if the decision kept it for every endpoint that was read."""
        for name in list(self.unrecorded.current):
            read, kept = cycle.samples.get(name), decision.samples.get(name)
            if read is not None and kept is not None and np.isin(read.rows, kept.rows).all():
                self.unrecorded.current.discard(name)

    def _view(self, layout: Layout) -> PastView:
        view = self._views.get(id(layout))
        if view is None:
            view = self._views[id(layout)] = PastView(self._now, layout, self.unrecorded)
        return view

    def __repr__(self) -> str:
        return f"<Replayer of {self.pipeline!r}>"


class _Tally(Struct):
    """What has been found so far."""

    skipped: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    elsewhere: int = 0
    by_chance: int = 0
    moves: dict[tuple[str, str], list[str]] = {}
    """Request ids by (chosen, instead)."""
    current: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    same_replayed: int = 0
    same_elsewhere: int = 0

    def count(self, decision: PastDecision, outcome: _Outcome | None, unrecorded: UnrecordedInputs) -> None:
        if outcome is None:
            self.skipped[UNSCHEDULED] += 1
            return
        self.replayed += 1
        self.elsewhere += outcome.elsewhere
        self.by_chance += outcome.by_chance
        self.current.update(unrecorded.current)
        self.missing.update(unrecorded.missing)
        if outcome.elsewhere:
            chosen = decision.layout.endpoints[decision.picked[0]].id if decision.picked else ""
            self.moves.setdefault((chosen, outcome.instead), []).append(decision.request.id)

    def count_same(self, outcome: _Outcome | None) -> None:
        """Of the running configuration."""
        if outcome is not None:
            self.same_replayed += 1
            self.same_elsewhere += outcome.elsewhere

    def report(self, replayer: Replayer, decisions: int) -> Replay:
        config = replayer.pipeline.config
        return Replay(
            revision=config.revision,
            warnings=tuple(map(str, config.warnings)),
            decisions=decisions,
            skipped=dict(self.skipped.most_common()),
            replayed=self.replayed,
            elsewhere=self.elsewhere,
            by_chance=self.by_chance,
            moves=moves(
                Move(chosen=chosen, instead=instead, decisions=len(ids), examples=tuple(ids[:EXAMPLES]))
                for (chosen, instead), ids in self.moves.items()
            ),
            gaps=gaps(
                [Gap(input=name, used="current", decisions=count) for name, count in self.current.items()]
                + [Gap(input=name, used="nothing", decisions=count) for name, count in self.missing.items()]
            ),
            failures=dict(replayer.failures.most_common()),
            fidelity=Fidelity(replayed=self.same_replayed, elsewhere=self.same_elsewhere),
        )


def replay(records: Records, registry: Registry, clock: Callable[[], float] = time.monotonic) -> Replay:
    """Raises EOFError when they end too early."""
    task = records.task()
    try:
        config = _loaded(task, task.text, registry)
    except Invalid as error:
        return Replay(errors=tuple(error.lines()))
    now = records.present()
    try:
        replayer = Replayer(config, now)
    except Invalid as error:
        return Replay(errors=tuple(error.lines()))
    running = Replayer(config if task.running == task.text else _loaded(task, task.running, registry), now)
    revision = running.pipeline.config.revision
    found = _Tally()
    decisions = 0
    for decision in records.decisions():
        if isinstance(decision, Unsent):
            decisions += decision.decisions
            if decision.decisions:
                found.skipped[OUT_OF_TIME] += decision.decisions
            continue
        decisions += 1
        if clock() >= task.until:
            found.skipped[OUT_OF_TIME] += 1
            continue
        found.count(decision, replayer.outcome(decision), replayer.unrecorded)
        if decision.configuration == revision:
            found.count_same(running.outcome(decision))
    return cut(found.report(replayer, decisions))


def _loaded(task: ReplayTask, text: str, registry: Registry) -> LoadedConfig:
    """Raises `Invalid`."""
    return load(text, registry, allow_experimental=task.allow_experimental, bounds=task.bounds)


def main() -> None:
    """Replay what comes on stdin."""
    registry, answers = confined_with_plugins()
    answers.buffer.write(json.encode(replay(Records(sys.stdin.buffer), registry)))
    answers.flush()


if __name__ == "__main__":
    main()
