"""The watcher process: where facts come from, one keeper for each pool, and the lease that says who publishes.

Every watcher knows all facts and writes Envoy's file; the one that leads publishes them, and the attributes that follow
from objects.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from services.watcher.eds_keeper import EdsKeeper
from services.watcher.file_origin import FileOrigin
from services.watcher.keeper import PoolKeeper
from services.watcher.kubernetes.origin import KubernetesOrigin
from services.watcher.leadership import Leadership
from services.watcher.lookup import Lookup, SystemLookup
from services.watcher.metrics import WatcherMetrics
from services.watcher.origin import Origin
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from shared.bus import FramePublisher, replica_state
from shared.bus.candidacy import Fitness
from shared.bus.publishable import most
from shared.bus.subjects import pool_token
from shared.config.problems import Problems
from shared.datalayer.events import Tally
from shared.datalayer.metrics import DataLayerMetrics
from shared.model import Endpoint
from shared.service import Service, run
from shared.service.bus import BusMetrics, make_bus
from shared.service.configured import Configured

log = structlog.get_logger(__name__)

LONGEST_AGE = 1e9
"""Seconds that stand for never."""
ADOPTION = 2.0
"""Seconds that a start waits for the facts on the bus when a host name can't be resolved: they may know its address."""


class WatcherService(Service):
    """One watcher. The one that leads publishes; each writes the EDS file of its machine."""

    tier = "watcher"

    def __init__(self, settings: WatcherSettings, lookup: Lookup | None = None) -> None:
        super().__init__(settings)
        self._settings = settings
        self._lookup = lookup or SystemLookup(settings.resolve_timeout, settings.max_lookups)
        self._tally = Tally(self.plugin_failures)
        self.metrics = WatcherMetrics(self.registry)
        self.bus, self._subjects, token = make_bus(settings, self.tier, self.id)
        self.leadership = Leadership(
            self.bus,
            self._subjects,
            token,
            self.id,
            self._on_published,
            self._send_attributes,
            age=self._age,
            fitness=self._fitness,
            replicas=settings.nats_replicas,
        )
        self._seen = asyncio.Event()
        """What an earlier watcher published has been seen."""
        self._leading: asyncio.Task[None] | None = None
        self._origin = _origin(
            settings,
            lambda: KubernetesOrigin(settings, self.spawn, self.id, self.metrics, leads=lambda: self.leadership.leads),
        )
        self.keepers = tuple(self._keeper(pool) for pool in self._origin.pools)
        self.bus.on_connect(self._connected)
        self._follow_metrics()
        self.readiness.require("published", self._published)
        self.readiness.mention("files", self._amiss)
        self.readiness.mention("bus", self.leadership.malformed.note)
        self.readiness.mention("facts", self._unpublished)
        self.readiness.mention("other watchers", lambda: self.leadership.disagreement.reason)
        self.readiness.mention("kubernetes", self._origin.problem)
        self.readiness.mention("status", self._origin.unreported)

    def _keeper(self, pool: PoolId) -> PoolKeeper:
        settings = self._settings
        eds = None
        if settings.eds_file:
            eds = EdsKeeper(settings.eds_file, settings.eds_cluster, settings.rescan_interval, self.metrics)
        return PoolKeeper(
            pool,
            self._origin.sources(pool),
            preferred=self._origin.preferred,
            lookup=self._lookup,
            resolve_interval=settings.resolve_interval,
            frames=FramePublisher(self.bus, self._subjects, pool_token(pool.namespace, pool.name), self.id),
            leads=lambda: self.leadership.leads,
            eds=eds,
            tally=self._tally,
            metrics=self.metrics,
            most=lambda: most(self.bus.max_payload),
            on_accepted=self._origin.accepted,
            on_change=self._publish,
        )

    async def start(self) -> None:
        """Begin with what the origin knows at once; with what may take longer, such as a cluster's lists, go on while
        it comes.

        Raises `Invalid` with every problem of every file, or when Envoy's file can't be written.
        """
        for keeper in self.keepers:
            if keeper.eds is not None:
                await keeper.eds.create()
        await self._origin.open()
        if not self._origin.patient:
            for keeper in self.keepers:
                await self._load(keeper)
        self._publish()
        await self.leadership.start()
        await self.bus.start()
        for keeper in self.keepers:
            if self._origin.patient:
                self.spawn(self._load_and_run(keeper), f"pool {keeper.pool}")
            else:
                self._run(keeper)
        self._leading = self.spawn(self.leadership.run(), "leadership")
        self.spawn(self.leadership.compare(), "comparison")

    async def _load(self, keeper: PoolKeeper) -> None:
        """All that the sources know, with the addresses of names, and in Envoy's file."""
        await self._origin.load(keeper)
        await keeper.resolver.look_up_due(within=self._settings.resolve_timeout)
        keeper.publishes = not keeper.names.unresolved
        keeper.refresh()
        if keeper.eds is not None:
            await keeper.eds.start(replace=keeper.publishes)

    def _run(self, keeper: PoolKeeper) -> None:
        """Follow what changes."""
        for source in keeper.sources:
            self.spawn(source.run(keeper.take), source.name)
        self.spawn(keeper.resolver.run(), "names")
        if keeper.publishes:
            self._begin_eds(keeper)
        else:
            self.spawn(self._adopt(keeper), "adoption")

    async def _load_and_run(self, keeper: PoolKeeper) -> None:
        await self._load(keeper)
        self._run(keeper)

    async def drain(self) -> None:
        """Give the lease back, so that a standby leads at once."""
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.wait({self._leading})

    async def close(self) -> None:
        for keeper in self.keepers:
            await keeper.frames.close()
        await self.leadership.close()
        await self.bus.close()
        await self._origin.close()

    # What comes out

    def _publish(self) -> None:
        """Let what holds be published. Of what isn't known yet, a pool or a resource of one that is refused and never
        was good here, that stays on the bus which is found there."""
        known = [keeper for keeper in self.keepers if keeper.publishes]
        self.metrics.show([fact for keeper in self.keepers for fact in keeper.facts.values()])
        self.leadership.update(
            {key: fact for keeper in known for key, fact in keeper.facts.items()},
            pools=[keeper.token for keeper in known],
            kept=[
                *(keeper.token for keeper in self.keepers if not keeper.publishes),
                *(key for keeper in known for key in keeper.unknown),
            ],
        )

    def _connected(self) -> None:
        """Another server may take messages of another size."""
        for keeper in self.keepers:
            if keeper.holding.merged is not None and keeper.unpublishable.outdated:
                keeper.refresh()

    def _fitness(self) -> Fitness:
        """How many pools are known, and of how many of these the sources are in touch."""
        now = time.monotonic()
        known = [keeper for keeper in self.keepers if keeper.publishes]
        recently = now - self._settings.give_way_after
        return len(known), sum(keeper.confirmed(now) > recently for keeper in known)

    def _age(self, pool: str) -> float:
        """Seconds since the sources of a pool, given by its token, last confirmed what they said."""
        now = time.monotonic()
        keeper = next(one for one in self.keepers if one.token == pool)
        return min(max(0.0, now - keeper.confirmed(now)), LONGEST_AGE)

    async def _send_attributes(self) -> None:
        """While this watcher leads."""
        async with asyncio.TaskGroup() as group:
            for keeper in self.keepers:
                group.create_task(keeper.send_attributes(), name=f"attributes of {keeper.pool}")
            group.create_task(self._origin.report(), name="report")

    async def _adopt(self, keeper: PoolKeeper) -> None:
        """A start with names that can't be resolved: wait for the addresses that an earlier watcher published, lest
        its endpoints be withdrawn. Envoy's file waits a moment; what is published waits for a connection, too."""
        await self._wait_for_published()
        self._begin_eds(keeper)
        await self.bus.wait_connected()
        await self._wait_for_published()
        keeper.publishes = True
        keeper.refresh()

    def _begin_eds(self, keeper: PoolKeeper) -> None:
        if keeper.eds is not None:
            self.spawn(keeper.eds.run(), "eds")

    async def _wait_for_published(self) -> None:
        try:
            async with asyncio.timeout(ADOPTION):
                await self._seen.wait()
        except TimeoutError:
            pass  # there is nothing, or nobody to tell: begin with what is known

    def _on_published(self, event: replica_state.Event) -> None:
        """What the watcher that leads has published."""
        match event:
            case replica_state.Reset(facts=facts):
                found = [fact for fact in facts.values() if isinstance(fact, Endpoint)]
                self._seen.set()
            case replica_state.Upsert(fact=Endpoint() as endpoint):
                found = [endpoint]
            case _:
                return
        for keeper in self.keepers:
            if keeper.names.adopt(found):
                log.info("name.adopted", unresolved=len(keeper.names.unresolved))
                keeper.refresh()

    # What it says of itself

    def state(self) -> Mapping[str, Any]:
        first, *others = (keeper.state() for keeper in self.keepers)
        return {
            **first,
            **({"pools": others} if others else {}),
            **self._origin.state(),
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "leadership": self.leadership.state(),
        }

    def configurations(self) -> Sequence[Configured]:
        return tuple(keeper.configured() for keeper in self.keepers if keeper.holding.merged is not None)

    def _published(self) -> str | None:
        waiting = [keeper.pool for keeper in self.keepers if keeper.holding.merged is None]
        if waiting:
            refused = "; ".join(reason for pool in waiting if (reason := self._origin.awaited(pool)))
            reason = refused or self._origin.problem() or "the lists aren't complete"
            return f"what there is of {', '.join(map(str, waiting))} isn't known yet: {reason}"
        return self.leadership.readiness()

    def _amiss(self) -> str | None:
        return "; ".join(reason for keeper in self.keepers if (reason := keeper.amiss())) or None

    def _unpublished(self) -> str | None:
        return "; ".join(reason for keeper in self.keepers if (reason := keeper.unpublished())) or None

    def _follow_metrics(self) -> None:
        show, total = self.metrics.follow, self.metrics.follow_total
        publisher, keepers = self.leadership.publisher, self.keepers
        lead = "pointsman_watcher_"
        show(
            lead + "bad_files",
            "Files or cluster resources with an error, whose last good content is active",
            lambda: sum(len(one.holding.problems()) for one in keepers),
        )
        show(
            lead + "last_good_age_seconds",
            "Seconds the active content has differed from files or cluster; 0 while it matches",
            lambda: max(one.last_good_age() for one in keepers),
        )
        show(
            lead + "unresolved_names",
            "Host names without an address",
            lambda: sum(len(one.names.unresolved) for one in keepers),
        )
        show(
            lead + "unpublishable_facts",
            "Facts that are too large for a message, or that NATS rejects",
            lambda: sum(len(one.unpublishable.reasons) for one in keepers),
        )
        show(lead + "leader", "1 while this watcher leads", lambda: self.leadership.leads)
        total(lead + "facts_written", "Facts written to the bus by this watcher", lambda: publisher.written)
        total(lead + "facts_deleted", "Facts deleted from the bus by this watcher", lambda: publisher.deleted)
        total(lead + "publish_failures", "Failed publications", lambda: publisher.failures)
        show(
            lead + "objects",
            "Kubernetes objects passed to extractors",
            lambda: sum(len(one.holding.merged.objects) for one in keepers if one.holding.merged),
        )
        total(
            lead + "frames",
            "Frames of attributes sent to NATS",
            lambda: sum(one.sender.frames for one in keepers),
        )
        self.registry.register(DataLayerMetrics(self._tally))
        self.registry.register(BusMetrics(self.bus, malformed=self.leadership.malformed))


def _origin(settings: WatcherSettings, cluster: Callable[[], Origin]) -> Origin:
    """Where things come from. `cluster` makes it of a cluster. Raises `Invalid` for settings that don't go together."""
    if settings.kubernetes:
        return cluster()
    problems = Problems()
    for flag, given in (
        ("--pools", settings.pools),
        ("--config-map", settings.config_map),
        ("--endpoint-selector", settings.endpoint_selector),
        ("--endpoint-target-ports", settings.endpoint_target_ports),
        ("--endpoint-slices", settings.endpoint_slices),
    ):
        if given:
            problems.error(flag, "has no effect without --kubernetes")
    problems.raise_if_any()
    return FileOrigin(settings)


def main(argv: Sequence[str]) -> int:
    """`pointsman watcher`."""
    return run(WatcherSettings, WatcherService, argv, "watcher")
