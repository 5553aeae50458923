"""Reports on resources in the cluster: conditions by server-side apply, and Events.

Reports follow from what the sources know, so nothing is queued: a new leader compares them with what is there, and
writes what is missing. What can't be written (a role doesn't allow it, another controller owns the condition, the
server is down) appears in the notes of `/readyz`, in `/debug/state` and in metrics. Endpoints and resources are
published all the same.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import structlog

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import Conflict, ErrorKind, KubernetesError, NotFound
from services.watcher.kubernetes.events import EVENTS, event_name, event_of
from services.watcher.kubernetes.reports import Finding, PoolView, Report, ResourceResult, iterate_reports
from services.watcher.kubernetes.resource import JsonObject, identity
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.status import (
    FIELD_MANAGER,
    SUBRESOURCE,
    accepted_of,
    body_of,
    strip,
    takes_conditions,
)
from services.watcher.kubernetes.write_limits import NEVER, ContestedWrites, RateLimiter, WriteTarget
from services.watcher.metrics import WatcherMetrics
from shared.tasks import in_turns

log = structlog.get_logger(__name__)

INTERVAL = 1.0
"""Seconds between two rounds. What changes in between is reported once, in its last form."""
SHOWN = 50
"""The most findings, and other resources, that `/debug/state` shows."""


class Reporter:
    """Writes while `run` runs, which is while this watcher leads. Call `start` first."""

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
        """`views` is what the sources know; `revision` changes whenever that does. `wall` is the time in Unix seconds.
        `identity` names this process."""
        self._settings = settings
        self._identity = identity
        self._metrics = metrics
        self._views = views
        self._revision = revision
        self._leads = leads
        self._timing = timing or Timing()
        self._wall = wall
        self._api: Client | None = None
        self._condition_limiter = RateLimiter(settings.kubernetes_conditions_per_minute)
        self._event_limiter = RateLimiter(settings.kubernetes_events_per_minute)
        self._forget()

    def start(self, api: Client) -> None:
        self._api = api

    def _forget(self) -> None:
        """Start from what is in the cluster."""
        self._targets: dict[str, WriteTarget] = {}
        self._pending: set[str] = set()
        """Targets with something left to write."""
        self._seen_revision = -1
        self._due = 0.0
        self._reports: tuple[Report, ...] = ()
        self._found_at: dict[str, float] = {}
        """When each finding appeared, by its Event's name."""
        self._created_at: dict[str, float] = {}
        """When each Event was last created."""
        self._written: dict[str, JsonObject] = {}
        """By uid: the resource after the last write, until the watch brings it."""
        self._failures: Counter[str] = Counter()
        """By uid, since a write last succeeded. Resources with the most failures come last, so that one which an
        admission webhook denies doesn't block the others."""
        self._skipped: dict[str, tuple[object, str]] = {}
        """By uid: what isn't written until it changes, and why."""
        self._contested = ContestedWrites()
        self._crashed: dict[str, JsonObject] = {}
        """By uid: the forms of resources for which something failed unexpectedly, in this revision and the last."""
        self._crashed_before: dict[str, JsonObject] = {}

    async def run(self) -> None:
        """Write until cancelled. Failures are reported, never raised."""
        self._forget()
        while True:
            pause = INTERVAL
            try:
                await self.write_due()
            except Exception:  # the top of a task: a defect in reporting mustn't end publishing
                log.exception("status.crashed")
                self._metrics.report_failures.inc()
                self._seen_revision = -1
                pause = self._settings.kubernetes_max_backoff
            await self._timing.sleep(pause)

    async def write_due(self) -> None:
        """Write everything that is due."""
        now = self._timing.clock()
        revision = self._revision()
        if self._api is None or (revision == self._seen_revision and now < self._due):
            return
        self._due = NEVER
        if revision != self._seen_revision or self._crashed:
            self._crashed_before, self._crashed = self._crashed, {}
            steps = iterate_reports(self._views(), self._guard)
            self._reports = tuple([report async for report in in_turns(steps) if report is not None])
            await self._prune(now)
            self._seen_revision = revision
        self._pending.clear()
        ordered = self._ordered()
        async for report in in_turns(ordered):
            with self._guard(report):
                await self._write_condition(self._api, report)
        async for report in in_turns(ordered):
            with self._guard(report):
                for finding in report.findings:
                    await self._create_event(self._api, report, finding)
        self._targets = {name: target for name, target in self._targets.items() if name in self._pending}

    @contextmanager
    def _guard(self, about: Report | ResourceResult) -> Iterator[None]:
        """A defect in what is done for one resource doesn't affect the others. It is logged once for each form."""
        try:
            yield
        except Exception as error:
            self._metrics.report_failures.inc()
            uid = _uid(about.item)
            if self._crashed.get(uid, self._crashed_before.get(uid)) is not about.item:
                log.exception("report.crashed", resource=_name(about), reason=f"{type(error).__name__}: {error}")
            self._crashed[uid] = about.item
            self._retry_at(self._timing.clock() + self._settings.kubernetes_max_backoff)

    def _ordered(self) -> Sequence[Report]:
        """The reports, those with the most failures last."""
        if not self._failures:
            return self._reports
        failed = [report for report in self._reports if _uid(report.item) in self._failures]
        others = [report for report in self._reports if _uid(report.item) not in self._failures]
        return [*others, *sorted(failed, key=lambda report: self._failures[_uid(report.item)])]

    async def _prune(self, now: float) -> None:
        """Forget what is gone, and note what is new."""
        names: set[str] = set()
        items: dict[str, JsonObject] = {}
        async for report in in_turns(self._reports):
            items[_uid(report.item)] = report.item
            with self._guard(report):
                names.update(event_name(report.item, finding) for finding in report.findings)
        self._found_at = {name: self._found_at.get(name, now) for name in names}
        self._created_at = {name: at for name, at in self._created_at.items() if name in names}
        self._skipped = {uid: skipped for uid, skipped in self._skipped.items() if uid in items}
        self._contested.keep(items)
        self._failures = Counter({uid: count for uid, count in self._failures.items() if uid in items})
        self._written = {uid: item for uid, item in self._written.items() if uid in items and _newer(item, items[uid])}

    def _retry_at(self, at: float) -> None:
        self._due = min(self._due, at)

    def _target(self, resource: str, namespace: str) -> WriteTarget:
        name = f"{resource} in namespace {namespace}"
        self._pending.add(name)
        if name not in self._targets:
            self._targets[name] = WriteTarget(name, self._settings, self._timing)
        return self._targets[name]

    def _may_write(self, target: WriteTarget, limiter: RateLimiter) -> bool:
        """Whether one more write is allowed now. If not, it is retried later."""
        now = self._timing.clock()
        if not self._leads():
            return False
        at = target.closed_until if now < target.closed_until else limiter.take(now)
        if at > now:
            self._retry_at(at)
        return at <= now

    # Conditions

    async def _write_condition(self, api: Client, report: Report) -> None:
        if not takes_conditions(report.resource) or not self._settings.kubernetes_conditions_per_minute:
            return
        uid = _uid(report.item)
        item = self._written.get(uid, report.item)
        body = body_of(item, report.condition, self._time("seconds"))
        form = (item["metadata"].get("generation"), accepted_of(item), report.condition)
        if body is None or self._skipped.get(uid, (None, ""))[0] == form:
            return
        namespace, name = identity(item)
        what = item["metadata"].get("generation"), report.condition
        if (due := self._contested.due(uid, what)) > self._timing.clock():
            self._retry_at(due)
            return
        target = self._target(f"{report.resource}/{SUBRESOURCE}", namespace)
        if not self._may_write(target, self._condition_limiter):
            return
        try:
            applied = await api.apply(
                report.resource,
                name,
                body,
                namespace=namespace,
                field_manager=FIELD_MANAGER,
                subresource=SUBRESOURCE,
            )
        except KubernetesError as error:
            self._condition_failed(error, report, form, target)
            return
        self._succeed(report, target)
        self._written[uid] = strip(applied, report.resource)
        self._metrics.conditions.inc()
        if self._contested.wrote(uid, what, self._timing.clock()):
            log.warning(
                "status.contested", resource=_name(report), reason="another writer removes the condition each time"
            )
        reason = report.condition.reason if report.condition else "withdrawn"
        log.info("status.written", resource=_name(report), reason=reason)

    def _condition_failed(self, error: KubernetesError, report: Report, form: object, target: WriteTarget) -> None:
        uid = _uid(report.item)
        if isinstance(error, NotFound):  # it was deleted, and the watch is about to say so
            self._skipped[uid] = form, "it no longer exists"
        elif isinstance(error, Conflict):
            self._skipped[uid] = form, "another controller owns the condition"
            self._metrics.condition_conflicts.inc()
            log.info("status.conflict", resource=_name(report), reason=str(error))
        elif error.kind is ErrorKind.REFUSED:
            self._skipped[uid] = form, str(error)
            self._metrics.report_failures.inc()
            log.warning("status.refused", resource=_name(report), reason=str(error))
        else:
            self._retry(error, report, target)

    def _succeed(self, report: Report, target: WriteTarget) -> None:
        self._failures.pop(_uid(report.item), None)
        target.succeed()

    def _retry(self, error: KubernetesError, report: Report, target: WriteTarget) -> None:
        self._metrics.report_failures.inc()
        self._failures[_uid(report.item)] += 1
        target.fail(error)
        self._retry_at(target.closed_until)

    # Events

    async def _create_event(self, api: Client, report: Report, finding: Finding) -> None:
        if not self._settings.kubernetes_events_per_minute:
            return
        now = self._timing.clock()
        name = event_name(report.item, finding)
        at = self._found_at[name] + (self._settings.kubernetes_event_grace if finding.transient else 0.0)
        if name in self._created_at:
            at = self._created_at[name] + self._settings.kubernetes_event_interval
        if now < at:
            self._retry_at(at)
            return
        target = self._target(str(EVENTS), identity(report.item)[0])
        if not self._may_write(target, self._event_limiter):
            return
        body = event_of(report.item, finding, self._identity, self._time("microseconds"))
        try:
            await api.create(EVENTS, body, body["metadata"]["namespace"])
        except Conflict:
            pass  # it exists: another watcher created it, or it hasn't expired
        except KubernetesError as error:
            if error.kind is not ErrorKind.REFUSED:
                self._retry(error, report, target)
                return
            self._metrics.report_failures.inc()
            log.warning("event.refused", resource=_name(report), finding=finding.reason, reason=str(error))
        else:
            self._metrics.events.inc()
            log.info("event.created", resource=_name(report), finding=finding.reason, note=finding.note)
        self._succeed(report, target)
        self._created_at[name] = now
        self._retry_at(now + self._settings.kubernetes_event_interval)

    def _time(self, precision: str) -> str:
        """Now, in RFC 3339."""
        return datetime.fromtimestamp(self._wall(), UTC).isoformat(timespec=precision).replace("+00:00", "Z")

    # What it reports about itself

    def problem(self) -> str | None:
        """Why not everything could be written. None on a standby."""
        return next((target.problem for target in self._targets.values() if target.problem and self._leads()), None)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`: as of when this watcher last led."""
        findings = ((_name(report), finding) for report in self._reports for finding in report.findings)
        contested = dict(islice(self._contested.state().items(), SHOWN))
        left_alone = {uid: why for uid, (_, why) in islice(self._skipped.items(), SHOWN)}
        shown = contested.keys() | left_alone.keys()
        names = {uid: _name(report) for report in self._reports if (uid := _uid(report.item)) in shown} if shown else {}
        return {
            "findings": [f"{name}: {finding.reason}: {finding.note}" for name, finding in islice(findings, SHOWN)],
            "contested": {names.get(uid, uid): times for uid, times in contested.items()},
            "left_alone": {names.get(uid, uid): why for uid, why in left_alone.items()},
            "problems": {name: target.problem for name, target in self._targets.items() if target.problem},
        }

    def __repr__(self) -> str:
        return f"<Reporter {len(self._reports)} resources, {self._targets}>"


def _uid(item: JsonObject) -> str:
    return str(item["metadata"].get("uid") or identity(item))


def _name(about: Report | ResourceResult) -> str:
    return f"{about.resource.kind.kind} {'/'.join(identity(about.item))}"


def _newer(item: JsonObject, other: JsonObject) -> bool:
    """Whether the first is a later version of the object. Resource versions are increasing numbers."""
    versions = [str(metadata.get("resourceVersion") or "") for metadata in (item["metadata"], other["metadata"])]
    return all(version.isdecimal() for version in versions) and int(versions[0]) > int(versions[1])
