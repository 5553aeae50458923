"""Says in the cluster what the watcher makes of its resources: conditions by server-side apply, and Events.

What is to be said follows from what the sources know, so nothing is queued: who begins to lead compares that with what
is there and writes what is missing. What can't be written, because a role doesn't grant it, because another controller
owns the condition or because the server is away, is told in the notes of `/readyz`, in `/debug/state` and by metrics;
endpoints and resources are published all the same.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

import structlog

from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.contested import Contested
from services.watcher.kubernetes.errors import Conflict, Kind, KubernetesError, NotFound
from services.watcher.kubernetes.events import EVENTS, event_name, event_of
from services.watcher.kubernetes.resource import JsonObject, Resource, identity
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.status import (
    FIELD_MANAGER,
    SUBRESOURCE,
    accepted_of,
    arrive,
    body_of,
    takes_conditions,
)
from services.watcher.kubernetes.verdicts import Finding, PoolView, Verdict, verdicts
from services.watcher.kubernetes.watching import SLOW
from services.watcher.metrics import WatcherMetrics

log = structlog.get_logger(__name__)

INTERVAL = 1.0
"""Seconds between two looks: what changes meanwhile is said once, in its last form."""
NEVER = float("inf")
MINUTE = 60.0
SHOWN = 50
"""Findings, and resources of others, that `/debug/state` shows at most."""


class Writer(Protocol):
    """What reporting needs of the API; see `Client`."""

    async def apply(
        self,
        resource: Resource,
        name: str,
        body: Mapping[str, Any],
        *,
        namespace: str = "",
        field_manager: str,
        force: bool = False,
        subresource: str = "",
    ) -> JsonObject: ...

    async def create(self, resource: Resource, body: Mapping[str, Any], namespace: str = "") -> JsonObject: ...


class Budget:
    """At most so many in any minute; 0 is none ever."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken: deque[float] = deque()

    def take(self, now: float) -> float:
        """Take one, if one is left; else when there will be."""
        while self._taken and self._taken[0] <= now - MINUTE:
            self._taken.popleft()
        if len(self._taken) < self._limit:
            self._taken.append(now)
            return now
        return self._taken[0] + MINUTE if self._taken else NEVER

    def __repr__(self) -> str:
        return f"<Budget {len(self._taken)} of {self._limit} a minute>"


class Target:
    """A resource of a namespace that is written to, and how well that goes: where that fails, all of them are left
    alone for a while. A role may grant it in one namespace and not in another."""

    def __init__(self, name: str, settings: KubernetesSettings, timing: Timing) -> None:
        self._name = name
        self._settings = settings
        self._timing = timing
        self._backoff = Backoff(settings.kubernetes_first_backoff, settings.kubernetes_longest_backoff, timing)
        self.closed_until = 0.0
        """Seconds of the clock."""
        self.problem = ""

    def succeed(self) -> None:
        self._backoff.reset()
        if self.problem:
            log.info("status.recovered", target=self._name)
            self.problem = ""

    def fail(self, error: KubernetesError) -> None:
        """Not before a pause again."""
        pause = self._backoff.next()
        if error.kind in SLOW:
            pause = self._timing.spread(self._settings.kubernetes_refused_interval)
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._settings.kubernetes_longest_retry_after))
        self.closed_until = self._timing.clock() + pause
        if self.problem != str(error):
            self.problem = str(error)
            log.warning("status.failed", target=self._name, reason=self.problem, retry_in=round(pause, 3))

    def __repr__(self) -> str:
        return f"<Target {self._name}: {self.problem or 'well'}>"


class Reporter:
    """Writes while `run` does, which is for as long as this watcher leads. `start` first."""

    def __init__(
        self,
        settings: KubernetesSettings,
        identity: str,
        metrics: WatcherMetrics,
        views: Callable[[], Sequence[PoolView]],
        revision: Callable[[], int],
        leads: Callable[[], bool],
        timing: Timing | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`views` is what the sources know, `revision` another number whenever that has changed. `wall` is the time in
        Unix seconds. The process that writes is called `identity`."""
        self._settings = settings
        self._identity = identity
        self._metrics = metrics
        self._views = views
        self._revision = revision
        self._leads = leads
        self._timing = timing or Timing()
        self._wall = wall
        self._api: Writer | None = None
        self._conditions = Budget(settings.kubernetes_conditions_per_minute)
        self._events = Budget(settings.kubernetes_events_per_minute)
        self._forget()

    def start(self, api: Writer) -> None:
        """There is something to write to."""
        self._api = api

    def _forget(self) -> None:
        """Begin from what is there."""
        self._targets: dict[str, Target] = {}
        self._pending: set[str] = set()
        """Targets for which something is left to be written."""
        self._seen = -1
        self._due = 0.0
        self._verdicts: tuple[Verdict, ...] = ()
        self._since: dict[str, float] = {}
        """Since when there is each finding, by its Event's name."""
        self._said: dict[str, float] = {}
        """When each was said last."""
        self._written: dict[str, JsonObject] = {}
        """By uid: the resource as it was after the last write, until the watch has brought that."""
        self._failures: Counter[str] = Counter()
        """By uid: those of which most failed come last, so that one which an admission webhook denies doesn't keep the
        others waiting."""
        self._left: dict[str, tuple[object, str]] = {}
        """By uid: what is left alone until it is another, and why."""
        self._contested = Contested()

    async def run(self) -> None:
        """Until cancelled. What goes wrong is told, never raised."""
        self._forget()
        while True:
            pause = INTERVAL
            try:
                await self.look()
            except Exception:  # the top of a task: what is published mustn't end because something can't be said
                log.exception("status.crashed")
                self._metrics.report_failures.inc()
                self._seen = -1
                pause = self._settings.kubernetes_longest_backoff
            await self._timing.sleep(pause)

    # What is to be said

    async def look(self) -> None:
        """Write all that is due now."""
        now = self._timing.clock()
        revision = self._revision()
        if self._api is None or (revision == self._seen and now < self._due):
            return
        if revision != self._seen:
            self._verdicts = verdicts(self._views())
            self._prune(now)
            self._seen = revision
        self._due = NEVER
        self._pending.clear()
        ordered = sorted(self._verdicts, key=lambda one: self._failures[_uid(one.item)])
        for verdict in ordered:
            await self._say_condition(self._api, verdict)
        for verdict in ordered:
            for finding in verdict.findings:
                await self._say_event(self._api, verdict, finding)
        self._targets = {name: one for name, one in self._targets.items() if name in self._pending}

    def _prune(self, now: float) -> None:
        """Forget what is no more, and note what is new."""
        found = {event_name(one.item, finding) for one in self._verdicts for finding in one.findings}
        self._since = {name: self._since.get(name, now) for name in found}
        self._said = {name: at for name, at in self._said.items() if name in found}
        there = {_uid(one.item): one.item for one in self._verdicts}
        self._left = {uid: left for uid, left in self._left.items() if uid in there}
        self._contested.keep(there)
        self._failures = Counter({uid: count for uid, count in self._failures.items() if uid in there})
        self._written = {uid: one for uid, one in self._written.items() if uid in there and _newer(one, there[uid])}

    def _later(self, at: float) -> None:
        self._due = min(self._due, at)

    def _target(self, resource: str, namespace: str) -> Target:
        name = f"{resource} in namespace {namespace}"
        self._pending.add(name)
        if name not in self._targets:
            self._targets[name] = Target(name, self._settings, self._timing)
        return self._targets[name]

    def _may(self, target: Target, budget: Budget) -> bool:
        """Whether one more may be written now; else it is tried later."""
        now = self._timing.clock()
        if not self._leads():
            return False
        at = target.closed_until if now < target.closed_until else budget.take(now)
        if at > now:
            self._later(at)
        return at <= now

    # Conditions

    async def _say_condition(self, api: Writer, verdict: Verdict) -> None:
        if not takes_conditions(verdict.resource) or not self._settings.kubernetes_conditions_per_minute:
            return
        uid = _uid(verdict.item)
        item = self._written.get(uid, verdict.item)
        body = body_of(item, verdict.condition, self._time("seconds"))
        form = (item["metadata"].get("generation"), accepted_of(item), verdict.condition)
        if body is None or self._left.get(uid, (None, ""))[0] == form:
            return
        namespace, name = identity(item)
        what = item["metadata"].get("generation"), verdict.condition
        if (due := self._contested.due(uid, what)) > self._timing.clock():
            self._later(due)
            return
        target = self._target(f"{verdict.resource}/{SUBRESOURCE}", namespace)
        if not self._may(target, self._conditions):
            return
        try:
            answer = await api.apply(
                *(verdict.resource, name, body),
                namespace=namespace,
                field_manager=FIELD_MANAGER,
                subresource=SUBRESOURCE,
            )
        except KubernetesError as error:
            self._condition_failed(error, verdict, form, target)
            return
        target.succeed()
        self._written[uid] = arrive(answer, verdict.resource)
        self._metrics.conditions.inc()
        if self._contested.wrote(uid, what, self._timing.clock()):
            log.warning("status.contested", resource=_name(verdict), reason="somebody removes the condition each time")
        reason = verdict.condition.reason if verdict.condition else "withdrawn"
        log.info("status.written", resource=_name(verdict), reason=reason)

    def _condition_failed(self, error: KubernetesError, verdict: Verdict, form: object, target: Target) -> None:
        uid = _uid(verdict.item)
        if isinstance(error, NotFound):  # it was deleted, and the watch is about to say so
            self._left[uid] = form, "it is there no longer"
        elif isinstance(error, Conflict):
            self._left[uid] = form, "another controller owns the condition"
            self._metrics.condition_conflicts.inc()
            log.info("status.conflict", resource=_name(verdict), reason=str(error))
        elif error.kind is Kind.REFUSED:
            self._left[uid] = form, str(error)
            self._metrics.report_failures.inc()
            log.warning("status.refused", resource=_name(verdict), reason=str(error))
        else:
            self._metrics.report_failures.inc()
            self._fail(error, verdict, target)

    def _fail(self, error: KubernetesError, verdict: Verdict, target: Target) -> None:
        """It is to be tried again."""
        self._failures[_uid(verdict.item)] += 1
        target.fail(error)
        self._later(target.closed_until)

    # Events

    async def _say_event(self, api: Writer, verdict: Verdict, finding: Finding) -> None:
        if not self._settings.kubernetes_events_per_minute:
            return
        now = self._timing.clock()
        name = event_name(verdict.item, finding)
        at = self._since[name] + (self._settings.kubernetes_event_grace if finding.patient else 0.0)
        if name in self._said:
            at = self._said[name] + self._settings.kubernetes_event_interval
        if now < at:
            self._later(at)
            return
        target = self._target(str(EVENTS), identity(verdict.item)[0])
        if not self._may(target, self._events):
            return
        body = event_of(verdict.item, finding, self._identity, self._time("microseconds"))
        try:
            await api.create(EVENTS, body, body["metadata"]["namespace"])
        except Conflict:
            pass  # it is there: said by another watcher, or not over yet
        except KubernetesError as error:
            self._metrics.report_failures.inc()
            if error.kind is not Kind.REFUSED:
                self._fail(error, verdict, target)
                return
            log.warning("event.refused", resource=_name(verdict), finding=finding.reason, reason=str(error))
        else:
            self._metrics.events.inc()
            log.info("event.created", resource=_name(verdict), finding=finding.reason, note=finding.note)
        target.succeed()
        self._said[name] = now
        self._later(now + self._settings.kubernetes_event_interval)

    def _time(self, precision: str) -> str:
        """Now, in RFC 3339."""
        return datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec=precision).replace("+00:00", "Z")

    # What it says of itself

    def problem(self) -> str | None:
        """What can't be said in the cluster; None when all could, and for who doesn't lead."""
        return next((one.problem for one in self._targets.values() if one.problem and self._leads()), None)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`: as of when this watcher led last."""
        names = {_uid(one.item): _name(one) for one in self._verdicts}
        findings = [(_name(one), finding) for one in self._verdicts for finding in one.findings]
        return {
            "findings": [f"{name}: {one.reason}: {one.note}" for name, one in findings[:SHOWN]],
            "contested": {names.get(uid, uid): times for uid, times in list(self._contested.state().items())[:SHOWN]},
            "left_alone": {names.get(uid, uid): why for uid, (_, why) in list(self._left.items())[:SHOWN]},
            "problems": {name: one.problem for name, one in self._targets.items() if one.problem},
        }

    def __repr__(self) -> str:
        return f"<Reporter {len(self._verdicts)} resources, {self._targets}>"


def _uid(item: JsonObject) -> str:
    return str(item["metadata"].get("uid") or identity(item))


def _name(verdict: Verdict) -> str:
    return f"{verdict.resource.kind.kind} {'/'.join(identity(verdict.item))}"


def _newer(one: JsonObject, other: JsonObject) -> bool:
    """Whether the first is a later form of the object. Versions of a resource are numbers that grow."""
    versions = [str(item["metadata"].get("resourceVersion") or "") for item in (one, other)]
    return all(version.isdecimal() for version in versions) and int(versions[0]) > int(versions[1])
