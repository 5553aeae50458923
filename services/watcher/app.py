"""The watcher process: a provider of facts, a reconciler for each pool, and the lease that decides who publishes.

Every watcher knows all facts and writes Envoy's file. The leader publishes the facts, and the attributes that follow
from objects.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any

import structlog
from fastapi import APIRouter

from services.watcher.actions import Actions
from services.watcher.eds import EdsWriter
from services.watcher.few import SHOWN, few
from services.watcher.file_provider import FileProvider
from services.watcher.leadership import Leadership
from services.watcher.lookup import Lookup, Lookups, SystemLookup
from services.watcher.metrics import WatcherMetrics
from services.watcher.provider import Provider
from services.watcher.reconciler import PoolReconciler, Publications
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.status import watcher_status
from shared.bus.candidacy import Fitness
from shared.bus.facts import Event, Reset, Upsert
from shared.bus.frame_bucket import FrameBucket
from shared.bus.frame_publisher import FramePublisher
from shared.bus.publishable import fact_limit
from shared.bus.query_messages import ViewQuery
from shared.bus.responder import Document
from shared.bus.subjects import pool_token
from shared.datalayer.events import EventCounts
from shared.model import Endpoint, Fact
from shared.service.admin import encoded
from shared.service.answers import make_responder, status_of
from shared.service.bus import BusMetrics, make_bus
from shared.service.certificates import CertificateMetrics
from shared.service.configured import Configured
from shared.service.pages import json_state
from shared.service.process import Service, run
from shared.service.status import MemberStatus
from shared.service.view import one_endpoint, view_document, view_routes
from shared.tasks import cancel, set_within

log = structlog.get_logger(__name__)

MAX_AGE = 1e9
"""Seconds that stand for never."""
ADOPTION = 2.0
"""Seconds that a start waits for the facts on the bus if a host name can't be resolved: they may have its address."""


class WatcherService(Service):
    """One watcher."""

    tier = "watcher"

    def __init__(self, settings: WatcherSettings, lookup: Lookup | None = None) -> None:
        super().__init__(settings)
        self._settings = settings
        self._lookups = Lookups(
            lookup or SystemLookup(settings.max_lookups), settings.resolve_timeout, settings.max_lookups
        )
        self._event_counts = EventCounts(self.plugin_failures)
        self.metrics = WatcherMetrics(self.registry)
        self.bus, self._subjects, self._pool = make_bus(settings, self.tier, self.id)
        self.leadership = Leadership(
            self.bus,
            self._subjects,
            self._pool,
            self.id,
            self._on_published,
            self._while_leading,
            desired=self._desired,
            age=self._age,
            fitness=self._fitness,
            replicas=settings.nats_replicas,
        )
        self._frame_bucket = FrameBucket(self.bus, self._subjects)
        self._seen = asyncio.Event()
        """Set once the facts of an earlier watcher have arrived."""
        self._leading: asyncio.Task[None] | None = None
        self._scope: tuple[set[str], set[str]] | None = None
        """Of what was last published as a whole."""
        self._provider: Provider
        if settings.kubernetes:
            # imported here, because a watcher of files needn't load the client of Kubernetes
            from services.watcher.kubernetes.provider import KubernetesProvider

            self._provider = KubernetesProvider(
                settings, self.spawn, self.id, self.metrics, leads=lambda: self.leadership.leads
            )
        else:
            self._provider = FileProvider(settings)
        self.reconcilers = tuple(self._reconciler(pool) for pool in self._provider.pools)
        tokens = list(dict.fromkeys([self._pool, *(reconciler.token for reconciler in self.reconcilers)]))
        self.responder = make_responder(self, self.bus, self._subjects, tokens, self.status, {ViewQuery: self._view})
        self._actions = Actions(
            self.bus,
            self._subjects,
            self.id,
            lambda: {reconciler.token: reconciler.endpoints for reconciler in self.reconcilers},
            self._provider.drain,
            leads=lambda: self.leadership.leads,
        )
        self.bus.on_connect(self._connected)
        self._register_metrics()
        self.readiness.require("published", self._published)
        self.readiness.mention("files", lambda: self._join(PoolReconciler.invalid_origins))
        self.readiness.mention("bus", self.bus.malformed.note)
        self.readiness.mention("facts", lambda: self._join(PoolReconciler.unpublished))
        self.readiness.mention("other watchers", lambda: self.leadership.disagreement.reason)
        self.readiness.mention("kubernetes", self._provider.problem)
        self.readiness.mention("status", self._provider.report_problem)

    def _reconciler(self, pool: PoolId) -> PoolReconciler:
        settings = self._settings
        eds = None
        if settings.eds_file:
            eds = EdsWriter(settings.eds_file, settings.eds_cluster, settings.rescan_interval, self.metrics)
        return PoolReconciler(
            pool,
            self._provider.sources(pool),
            preferred=self._provider.preferred,
            lookups=self._lookups,
            resolve_interval=settings.resolve_interval,
            frames=FramePublisher(self.bus, self._subjects, pool_token(pool.namespace, pool.name), self.id),
            leads=lambda: self.leadership.leads,
            eds=eds,
            event_counts=self._event_counts,
            metrics=self.metrics,
            fact_limit=lambda: fact_limit(self.bus.max_payload),
            fact_entries=settings.max_fact_entries,
            published=self._fact_of_leader,
            on_accepted=self._provider.accepted,
            on_change=self._publish,
        )

    async def start(self) -> None:
        """Load the pools. A provider that waits for a server loads in the background.

        Raises `Invalid` with every problem of every file, or if Envoy's file can't be written.
        """
        for reconciler in self.reconcilers:
            if reconciler.eds is not None:
                await reconciler.eds.create()
        await self._provider.open()
        if not self._provider.remote:
            for reconciler in self.reconcilers:
                await self._load(reconciler)
        self._publish_all()
        await self.leadership.start()
        await self._frame_bucket.start()
        await self.responder.start()
        if self._settings.allow_actions:
            await self._actions.start()
            self.spawn(self._actions.run(), "actions")
        await self.bus.start()
        for reconciler in self.reconcilers:
            if self._provider.remote:
                self.spawn(self._load_and_run(reconciler), f"pool {reconciler.pool}")
            else:
                self._run(reconciler)
        self._leading = self.spawn(self.leadership.run(), "leadership")
        self.spawn(self.leadership.compare(), "comparison")

    async def _load(self, reconciler: PoolReconciler) -> None:
        """Read all sources, resolve host names, and write Envoy's file."""
        await self._provider.load(reconciler)
        await reconciler.resolver.look_up_due(within=self._settings.resolve_timeout)
        publishes = not reconciler.names.unresolved
        await self._refresh(reconciler, publishes=publishes)
        if reconciler.eds is not None:
            await reconciler.eds.start(replace=publishes)

    async def _refresh(self, reconciler: PoolReconciler, *, publishes: bool) -> None:
        """Find out all of its facts before any is published: others would be withdrawn."""
        await reconciler.refresh()
        reconciler.publishes = publishes
        self._publish(reconciler, ())

    def _run(self, reconciler: PoolReconciler) -> None:
        for source in reconciler.sources:
            self.spawn(source.run(reconciler.take), source.name)
        self.spawn(reconciler.resolver.run(), "names")
        if reconciler.publishes:
            self._run_eds(reconciler)
        else:
            self.spawn(self._adopt(reconciler), "adoption")

    async def _load_and_run(self, reconciler: PoolReconciler) -> None:
        await self._load(reconciler)
        self._run(reconciler)

    def _run_eds(self, reconciler: PoolReconciler) -> None:
        if reconciler.eds is not None:
            self.spawn(reconciler.eds.run(), "eds")

    async def _adopt(self, reconciler: PoolReconciler) -> None:
        """A start with unresolved host names waits for the addresses that an earlier watcher published, so that their
        endpoints aren't withdrawn. Publishing waits for the connection, too."""
        await set_within(self._seen, ADOPTION)
        await reconciler.refresh()
        self._run_eds(reconciler)
        await self.bus.wait_connected()
        await set_within(self._seen, ADOPTION)
        await self._refresh(reconciler, publishes=True)

    def _fact_of_leader(self, key: str) -> Fact | None:
        entry = self.leadership.replica.entries().get(key)
        return None if entry is None else entry.fact

    def _on_published(self, event: Event) -> None:
        """The leader has published something. What this process itself published isn't adopted: it may come back late,
        after another address has been adopted."""
        match event:
            case Reset(facts=facts):
                self._seen.set()
            case Upsert(key=key, fact=fact):
                facts = {key: fact}
            case _:
                return
        entries, own = self.leadership.replica.entries(), self.leadership.publisher.epoch
        found = [fact for key, fact in facts.items() if isinstance(fact, Endpoint) and entries[key].epoch != own]
        for reconciler in self.reconcilers:
            reconciler.resolver.adopt(found)

    async def drain(self) -> None:
        """Release the lease, so that a standby leads at once."""
        if self._leading is not None:
            await cancel(self._leading)

    async def close(self) -> None:
        for reconciler in self.reconcilers:
            await reconciler.frames.close()
        await self._frame_bucket.close()
        await self.leadership.close()
        await self.responder.close()
        await self.bus.close()
        await self._provider.close()

    # Publishing

    def _publish(self, reconciler: PoolReconciler, events: Publications) -> None:
        """Publish a reconciler's changes."""
        if self._get_scope() != self._scope:
            self._publish_all()
        elif reconciler.publishes and events:
            self.leadership.publisher.apply(events)

    def _publish_all(self) -> None:
        known = [reconciler for reconciler in self.reconcilers if reconciler.publishes]
        facts = {key: fact for reconciler in known for key, fact in reconciler.facts.items()}
        self._scope = self._get_scope()
        self.leadership.publisher.update(facts, *self._scope)

    def _get_scope(self) -> tuple[set[str], set[str]]:
        """The pools that are published, and what stays as it is on the bus: pools that aren't known yet, and single
        facts of the others."""
        known = [reconciler for reconciler in self.reconcilers if reconciler.publishes]
        unknown = {reconciler.token for reconciler in self.reconcilers if not reconciler.publishes}
        return {reconciler.token for reconciler in known}, unknown.union(
            *(reconciler.unmanaged for reconciler in known)
        )

    def _desired(self) -> tuple[Mapping[str, Fact], Collection[str]] | None:
        """What this watcher would publish of the pool that it subscribes to."""
        for reconciler in self.reconcilers:
            if reconciler.token == self._pool and reconciler.publishes:
                return reconciler.facts, reconciler.unmanaged
        return None

    def _connected(self) -> None:
        """The server may have another size limit for messages."""
        for reconciler in self.reconcilers:
            if reconciler.loaded:
                self.spawn(reconciler.refresh(), f"refresh of {reconciler.pool}", essential=False)

    def _fitness(self) -> Fitness:
        """The number of pools that are known, and of those whose sources are in touch."""
        now = time.monotonic()
        known = [reconciler for reconciler in self.reconcilers if reconciler.publishes]
        recently = now - self._settings.release_lease_after
        return len(known), sum(reconciler.confirmed_at(now) > recently for reconciler in known)

    def _age(self, pool: str) -> float:
        """Seconds since the sources of a pool, given by its token, last confirmed its facts."""
        now = time.monotonic()
        reconciler = next(reconciler for reconciler in self.reconcilers if reconciler.token == pool)
        return min(max(0.0, now - reconciler.confirmed_at(now)), MAX_AGE)

    async def _while_leading(self) -> None:
        """Send attributes, and report on resources."""
        async with asyncio.TaskGroup() as group:
            for reconciler in self.reconcilers:
                group.create_task(reconciler.send_attributes(), name=f"attributes of {reconciler.pool}")
            group.create_task(self._provider.report(), name="report")

    # Reports

    def state(self) -> Mapping[str, Any]:
        first, *others = self.reconcilers
        return {
            **first.state(),
            **({"pools": (json_state(pool.state(), encoded) for pool in others)} if others else {}),
            **self._provider.state(),
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "leadership": self.leadership.state(),
        }

    def status(self) -> MemberStatus:
        """The answer to `StatusQuery`."""
        others, watcher = watcher_status(self.reconcilers, self.leadership, time.monotonic())
        return status_of(
            self,
            self.bus,
            [reconciler.token for reconciler in self.reconcilers],
            self.leadership.replica,
            configuration_problem=self._join(PoolReconciler.invalid_origins) or "",
            configuration_warnings=self._warnings(),
            sees={self.tier: others},
            watcher=watcher,
        )

    def _warnings(self) -> tuple[str, ...]:
        """The first warnings of all origins, and the number of the others."""
        first = islice((text for reconciler in self.reconcilers for text in reconciler.warnings(SHOWN)), SHOWN)
        return tuple(few(list(first), sum(reconciler.desired.warning_count for reconciler in self.reconcilers)))

    def configurations(self) -> Sequence[Configured]:
        return tuple(reconciler.configured() for reconciler in self.reconcilers if reconciler.loaded)

    def routes(self) -> APIRouter:
        return view_routes(self._view)

    def _view(self, query: ViewQuery) -> Document:
        """What is published, as this watcher sees it."""
        replica = self.leadership.replica
        if query.endpoint:
            return one_endpoint(replica, query.endpoint, self._about)
        return view_document(self.tier, self._pool, replica, {})

    def _about(self, endpoint: Endpoint) -> dict[str, Any]:
        """Whether this watcher's sources have the endpoint, too, and as it is published."""
        ours = [reconciler.endpoints.get(endpoint.id) for reconciler in self.reconcilers]
        return {"in_sources": any(found is not None for found in ours), "as_published": endpoint in ours}

    def _published(self) -> str | None:
        waiting = [reconciler.pool for reconciler in self.reconcilers if not reconciler.loaded]
        if waiting:
            invalid = "; ".join(reason for pool in waiting if (reason := self._provider.load_problem(pool)))
            reason = invalid or self._provider.problem() or "the lists aren't complete"
            return f"{', '.join(map(str, waiting))}: not loaded yet: {reason}"
        return self.leadership.readiness()

    def _join(self, reason_of: Callable[[PoolReconciler], str | None]) -> str | None:
        return "; ".join(reason for reconciler in self.reconcilers if (reason := reason_of(reconciler))) or None

    def _register_metrics(self) -> None:
        reconcilers, publisher, leadership = self.reconcilers, self.leadership.publisher, self.leadership

        def total(value: Callable[[PoolReconciler], float]) -> Callable[[], float]:
            return lambda: sum(map(value, reconcilers))

        self.metrics.count_facts(lambda: (fact for reconciler in reconcilers for fact in reconciler.facts.values()))
        for name, text, value in (
            (
                "bad_files",
                "Files or cluster resources with an error, whose last good content is active",
                total(lambda pool: pool.desired.problematic_count),
            ),
            (
                "last_good_age_seconds",
                "Seconds the active content has differed from files or cluster; 0 while it matches",
                lambda: max(pool.last_good_age() for pool in reconcilers),
            ),
            ("unresolved_names", "Host names without an address", total(lambda pool: len(pool.names.unresolved))),
            (
                "unpublishable_facts",
                "Facts that are too large for a message, or that NATS rejects",
                total(lambda pool: len(pool.unpublishable.reasons)),
            ),
            ("leader", "1 while this watcher leads", lambda: leadership.leads),
            (
                "objects",
                "Kubernetes objects passed to extractors",
                total(lambda pool: len(pool.desired.merged.objects) if pool.desired.merged else 0),
            ),
        ):
            self.metrics.gauge(name, text, value)
        for name, text, value in (
            ("facts_written", "Facts written to the bus by this watcher", lambda: publisher.written),
            ("facts_deleted", "Facts deleted from the bus by this watcher", lambda: publisher.deleted),
            ("publish_failures", "Failed publications", lambda: publisher.failures),
            ("frames", "Frames of attributes sent to NATS", total(lambda pool: pool.sender.frames)),
        ):
            self.metrics.counter(name, text, value)
        self.registry.register(self._event_counts)
        self.registry.register(BusMetrics(self.bus))
        self.registry.register(CertificateMetrics(self.bus.expirations))


def main(argv: Sequence[str]) -> int:
    """`pointsman watcher`."""
    return run(WatcherSettings, WatcherService, argv, "watcher")
