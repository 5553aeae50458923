"""From a request and the view to a decision, without I/O, in two steps between which a request may wait.

`prepare` finds out what doesn't depend on the endpoints: model, objective, priority. `schedule` reads everything else
at its own time: candidates, load, metrics, prefix matches. The order is the Go EPP's: model, priority, admission,
candidates, producers, admitters, profiles, conditional decode, pre-request plugins. It differs in two points:
candidates are selected before admission, so an empty pool answers every request with 503; and the ports of a subset
hint count, also for requests without a body.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from services.picker.decision import SHOWN, Decision, Progress, ReplayInputs, RequestSummary, RoleCharge
from services.picker.flow_control.stages import Stages
from services.picker.flow_control.ticket import Ticket
from services.picker.metadata import OBJECTIVE_HEADERS, REJECTED_NO_ENDPOINTS, REJECTED_SATURATED
from services.picker.parsers.parser import ParserFailed
from services.picker.request import RETRY_AFTER, Headers, Refusal, Request, Route
from services.picker.scheduling.cycle import PREFIX_MATCH, Cycle, OnPluginFailure
from services.picker.scheduling.interfaces import Placement, Producer, SaturationDetector
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.scheduler import Scheduler
from services.picker.state.layout import Layout, Rows
from services.picker.state.slow_start import REASON as SLOW_START
from services.picker.state.view import View
from services.picker.target_model import refusal_of_model, target_model
from shared.config.schema import StaleMetrics
from shared.model import join_host_port
from shared.plugin import Plugin, Role

_MAX_PREFER = 1024
"""Characters of all `Prefer` headers that are read."""


class Prepared(Struct):
    """A request, and what doesn't depend on the endpoints."""

    request: Request
    prepared_at: float
    """Monotonic seconds."""
    refusal: Refusal | None
    """Why it can't be scheduled."""
    model: str = ""
    """The target model."""
    rewrite: str = ""
    """The resource whose rule gave it this model."""
    objective: str = ""
    priority: int = 0
    unparsed: Sequence[ParserFailed] = ()
    """Parsers that failed on it."""
    producers: tuple[Producer, ...] = ()
    """Those that may need time before it is scheduled."""
    results: dict[Plugin, Any] = {}
    """What they have prepared."""
    failures: list[tuple[Producer, Exception]] = []
    """Those that couldn't."""
    ticket: Ticket | None = None
    """Its place with flow control, where there is any."""


class SchedulingResult(Struct, frozen=True):
    """What the profiles have chosen, before any plugin is notified."""

    saturation: float | None
    runs: dict[str, ProfileRun]
    plan: Plan
    picked: tuple[int, ...]
    """Of the primary profile, at least one."""


class AdmissionResult(Struct, frozen=True):
    """The outcome of admission and scheduling, and how far the request got."""

    outcome: Route | Refusal
    saturation: float | None = None
    runs: dict[str, ProfileRun] = {}
    primary: str = ""
    tokens: int = 0
    roles: dict[str, RoleCharge] = {}
    placements: tuple[Placement, ...] = ()
    stages: str = ""
    skipped_stages: Mapping[str, str] = {}


@dataclass(kw_only=True, repr=False, eq=False)
class Director:
    """Decides with one configuration's scheduler and detector. Randomness and the wall clock are passed in."""

    scheduler: Scheduler
    detector: SaturationDetector
    stale: StaleMetrics
    random: np.random.Generator
    wall_clock: Callable[[], float]
    honour_subset: bool = True
    named_models_only: bool = False
    emit_scores: bool = False
    """Whether routes tell the proxy the total scores."""
    revision: str = ""
    """Of the configuration, for explanations."""
    on_failure: OnPluginFailure = lambda *_: None
    _stages: Stages | None = field(init=False, default=None)
    """Of the last layout."""

    def decide(self, request: Request, view: View, now: float, unparsed: Sequence[ParserFailed] = ()) -> Decision:
        """Both steps at the monotonic time `now`, for a request that waits for nothing."""
        return self.schedule(self.prepare(request, view, now, unparsed), view, now)

    def prepare(self, request: Request, view: View, now: float, unparsed: Sequence[ParserFailed] = ()) -> Prepared:
        """What is known of the request before it is scheduled. `unparsed` has the parsers that failed on it."""
        rewrites = view.rewrites
        model, rewrite = target_model(request, rewrites)
        objective = request.headers.first_of(OBJECTIVE_HEADERS)
        known = view.objectives.get(objective)
        return Prepared(
            request,
            now,
            refusal_of_model(request, model, rewrite, rewrites, named_only=self.named_models_only),
            model,
            rewrite,
            objective,
            known.priority if known is not None else rewrites.priority(request.content.model),
            unparsed,
            self.scheduler.preparing,
        )

    def schedule(self, prepared: Prepared, view: View, now: float) -> Decision:
        """Decides where the request goes at the monotonic time `now`. Producers learn of it; nothing is charged yet."""
        started = perf_counter()
        cycle = self._cycle(prepared, view, now, self.random, self.on_failure)
        result = self._admit(cycle, prepared)
        outcome, acting = result.outcome, self.scheduler.response_plugins
        hooks = None
        if acting is not None:
            refusal = outcome if isinstance(outcome, Refusal) else None
            hooks = acting.begin(cycle, result.runs, result.primary, refusal)
        progress = Progress(placements=result.placements, hooks=hooks)
        return self._decision(cycle, prepared, result, progress, started)

    def rehearse(
        self, prepared: Prepared, view: View, now: float, *, queues: bool
    ) -> tuple[Decision, Iterator[Sequence[int]]]:
        """(the decision that `schedule` would make with the same random choices; the rows that could be its first
        choice with others, as far as they are known after each trial). No plugin learns of it. With `queues`, flow
        control would admit the request."""
        started = perf_counter()
        random = deepcopy(self.random)
        cycle = self._cycle(prepared, view, now, random, lambda *_: None)
        found = self._choose(cycle, prepared, sheds=not queues)
        if isinstance(found, AdmissionResult):
            return self._decision(cycle, prepared, found, Progress(), started), iter(())
        plan, primary = found.plan, found.runs[found.plan.primary]
        tokens = self.scheduler.tokens(cycle, found.picked[0])
        result = AdmissionResult(
            self._route(cycle, found, plan.set_headers),
            found.saturation,
            found.runs,
            plan.primary,
            tokens,
            self._roles(cycle, found),
            stages=plan.stages,
            skipped_stages=plan.skipped,
        )
        decision = self._decision(cycle, prepared, result, Progress(), started)
        return decision, self.scheduler.possible_first(cycle, primary)

    def _cycle(
        self, prepared: Prepared, view: View, now: float, random: np.random.Generator, failed: OnPluginFailure
    ) -> Cycle:
        candidates = self._candidates(prepared.request, view.layout)
        cycle = Cycle(
            prepared.request,
            view,
            now,
            random,
            self.stale,
            model=prepared.model,
            priority=prepared.priority,
            candidates=candidates,
            failed=failed,
            tokens=0 if prepared.ticket is None else prepared.ticket.tokens,
        )
        for failure in prepared.unparsed:
            cycle.plugin_failed(failure.parser, Role.PARSER, failure.error)
        if prepared.producers:
            cycle.prepared = prepared.results
            cycle.unprepared = [producer.name for producer, _ in prepared.failures]
            for producer, error in prepared.failures:
                cycle.plugin_failed(producer, Role.DATA_PRODUCER, error)
        return cycle

    def _decision(
        self, cycle: Cycle, prepared: Prepared, result: AdmissionResult, progress: Progress, started: float
    ) -> Decision:
        return Decision(
            request=RequestSummary.of(prepared.request),
            configuration=self.revision,
            outcome=result.outcome,
            layout=cycle.layout,
            target_model=prepared.model[:SHOWN],
            rewrite=prepared.rewrite,
            objective=prepared.objective[:SHOWN],
            priority=prepared.priority,
            saturation=result.saturation,
            candidates=cycle.candidates,
            runs=result.runs,
            primary=result.primary,
            samples=cycle.samples,
            replay_inputs=ReplayInputs.of(cycle) if result.runs else None,
            tokens=result.tokens,
            roles=result.roles,
            stages=result.stages,
            skipped_stages=result.skipped_stages,
            tokens_until_end=self.scheduler.tokens_until_end,
            failures=tuple(cycle.failures),
            at=self.wall_clock(),
            monotonic=cycle.now,
            waited=cycle.now - prepared.prepared_at,
            queued=None if prepared.ticket is None else prepared.ticket.wait(),
            seconds=perf_counter() - started,
            progress=progress,
        )

    def _admit(self, cycle: Cycle, prepared: Prepared) -> AdmissionResult:
        """Admits and schedules the request."""
        found = self._choose(cycle, prepared, sheds=prepared.ticket is None)
        if isinstance(found, AdmissionResult):
            return found
        scheduler, plan, runs, picked = self.scheduler, found.plan, found.runs, found.picked
        set_headers = scheduler.pre_request(cycle, picked)
        if isinstance(set_headers, Refusal):
            return AdmissionResult(set_headers, found.saturation, runs, plan.primary)
        headers = {**plan.set_headers, **set_headers} if plan.set_headers else set_headers
        route = self._route(cycle, found, headers)
        tokens = scheduler.tokens(cycle, picked[0])  # before producers learn that the prompt goes there
        roles = self._roles(cycle, found)
        placements = scheduler.picked(cycle, picked[0])
        for wanted in plan.roles.values():
            if wanted.reads_prompt:
                placements += scheduler.computed(cycle, runs[wanted.profile].picked[0])
        saturation, primary = found.saturation, plan.primary
        return AdmissionResult(route, saturation, runs, primary, tokens, roles, placements, plan.stages, plan.skipped)

    def _choose(self, cycle: Cycle, prepared: Prepared, *, sheds: bool) -> SchedulingResult | AdmissionResult:
        """The endpoints for the request, or its refusal. `sheds`: a sheddable request is refused when the pool is
        full."""
        candidates = cycle.candidates
        if prepared.refusal is not None:
            return AdmissionResult(prepared.refusal)
        if not len(candidates):
            return AdmissionResult(_no_candidates(cycle.layout))
        saturation = self._saturation(cycle) if cycle.priority < 0 and sheds else None
        if saturation is not None and saturation >= 1.0:
            return AdmissionResult(_SHED, saturation)
        scheduler = self.scheduler
        if cycle.view.slow_start.active:
            self._hold_back(cycle)
        if (denial := scheduler.produce(cycle) or scheduler.admit(cycle)) is not None:
            return AdmissionResult(denial, saturation)
        runs, plan = scheduler.run(cycle)
        primary = plan.primary
        picked = runs[primary].picked if primary in runs else ()
        if not picked:
            return AdmissionResult(cycle.refusal or _FILTERED, saturation, runs, primary)
        if _only_if_cached(cycle.request.headers):
            picked = _holders(cycle, picked)
            if not picked:
                return AdmissionResult(_NOT_CACHED, saturation, runs, primary)
            runs = {**runs, primary: replace(runs[primary], picked=picked)}
        return SchedulingResult(saturation, runs, plan, picked)

    def _route(self, cycle: Cycle, result: SchedulingResult, set_headers: Mapping[str, str]) -> Route:
        model, port, picked, layout = cycle.request.content.model, result.plan.port, result.picked, cycle.layout
        authorities = layout.authorities
        return Route(
            destinations=tuple([authorities[row] for row in picked])
            if port is None
            else (join_host_port(layout.endpoints[picked[0]].address, port),),
            set_headers=set_headers,
            scores=_scores(result.runs[result.plan.primary], layout) if self.emit_scores else {},
            target_model=cycle.model if cycle.model != model else None,
            client_model=model,
        )

    def _roles(self, cycle: Cycle, result: SchedulingResult) -> dict[str, RoleCharge]:
        if not result.plan.roles:
            return {}
        return {
            role: RoleCharge(row, self.scheduler.tokens(cycle, row), wanted.until_response, wanted.others)
            for role, wanted in result.plan.roles.items()
            for row in result.runs[wanted.profile].picked[:1]
        }

    def _hold_back(self, cycle: Cycle) -> None:
        """Rank new endpoints that have their share of the load behind all others."""
        view, rows = cycle.view, cycle.candidates
        held, weights = view.slow_start.held_back(rows, view.in_flight.requests, view.health.unhealthy, cycle.now)
        cycle.note("SlowStartWeight", rows, weights)
        if len(held):
            cycle.ranked_last = {**dict.fromkeys(held.tolist(), SLOW_START), **view.health.unhealthy}

    def _stages_among(self, cycle: Cycle) -> Stages:
        """The stages of the candidates."""
        if self._stages is None or self._stages.every is not cycle.layout.candidates:
            self._stages = Stages.of(cycle.layout)
        return self._stages.among(cycle.candidates)

    def _saturation(self, cycle: Cycle) -> float | None:
        """The saturation of the candidates; of the fuller stage where they have some. None if the detector fails: then
        nothing is shed."""
        try:
            saturation = self._stages_among(cycle).saturation(self.detector, cycle)
            if saturation != saturation:
                raise ValueError("the saturation is NaN")
        except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
            cycle.plugin_failed(self.detector, Role.SATURATION_DETECTOR, error)
            return None
        return saturation

    def _candidates(self, request: Request, layout: Layout) -> Rows:
        if request.subset is None or not self.honour_subset:
            return layout.candidates
        return layout.subset(request.subset)

    def __repr__(self) -> str:
        return f"<Director {self.scheduler!r}>"


def _only_if_cached(headers: Headers) -> bool:
    """Whether the client wants an answer only from a cached prompt (`Prefer: if-available`, RFC 7240). Clients try this
    before they request a prefill elsewhere."""
    if "prefer" not in headers:
        return False
    preferences = ",".join(headers.all("prefer"))[:_MAX_PREFER].split(",")
    return any(
        preference.partition(";")[0].partition("=")[0].strip().lower() == "if-available" for preference in preferences
    )


def _holders(cycle: Cycle, picked: tuple[int, ...]) -> tuple[int, ...]:
    """The picked endpoints that hold part of the prompt; none unless the first choice does."""
    match = cycle.get(PREFIX_MATCH)
    if match is None or not match.matched[picked[0]]:
        return ()
    return tuple(row for row in picked if match.matched[row])


def _scores(run: ProfileRun, layout: Layout) -> Mapping[str, float]:
    """Total scores by `address:port`; none where nothing scores."""
    if not run.scores:
        return {}
    return dict(zip([layout.authorities[row] for row in run.rows.tolist()], run.totals.tolist(), strict=True))


def _no_candidates(layout: Layout) -> Refusal:
    """The refusal of a request without candidates."""
    if len(layout.candidates):
        return _NONE_IN_SUBSET
    return _ALL_DRAINING if len(layout) else _EMPTY


_NOT_CACHED = Refusal(status=412, message="no decode worker has the requested KV cache", kind="precondition_failed")
_EMPTY = Refusal(
    status=503,
    message="no endpoints: no model server of the pool is ready",
    kind="service_unavailable",
    reason=REJECTED_NO_ENDPOINTS,
    retry_after=RETRY_AFTER,
)
_ALL_DRAINING = replace(_EMPTY, message="no endpoints: every model server of the pool is draining")
_NONE_IN_SUBSET = replace(
    _EMPTY, message="no endpoints: the gateway's subset hint names no model server of the pool that takes requests"
)
_FILTERED = Refusal(
    status=429,
    message="no endpoints available for the given request: the scheduling filters left none",
    kind="rate_limit_exceeded",
    reason=REJECTED_SATURATED,
    retry_after=RETRY_AFTER,
)
_SHED = replace(_FILTERED, message="system saturated, sheddable request dropped")
