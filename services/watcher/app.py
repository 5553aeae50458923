"""The watcher process: sources, names, Envoy's file, the facts on the bus, and attributes that follow from objects.

What is bound together here is pure elsewhere: events from the sources go through `State`, host names through `Names`,
objects through `Notifications`, and what comes out is written to Envoy's file by every watcher, and published by the
one that leads.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from services.watcher.configuration import discovery, installed
from services.watcher.eds_keeper import EdsKeeper
from services.watcher.files import FileReader, FileSource, Limits, Root
from services.watcher.leadership import Leadership
from services.watcher.lookup import Lookup, Resolver, SystemLookup
from services.watcher.metrics import WatcherMetrics
from services.watcher.notifications.board import Described
from services.watcher.notifications.notifications import Notifications
from services.watcher.resolve import Names
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Event, Reset, Source
from services.watcher.state import Merged, State, collect
from shared.bus import FramePublisher, replica_state
from shared.bus.frame_sender import FrameSender
from shared.bus.subjects import fact_key
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.datalayer.events import Tally
from shared.datalayer.metrics import DataLayerMetrics
from shared.model import Endpoint
from shared.service import Service, run
from shared.service.bus import BusMetrics, make_bus

log = structlog.get_logger(__name__)

ADOPTION = 2.0
"""Seconds that a start waits for the facts on the bus when a host name can't be resolved: they may know its address."""
GATHER = 0.005
"""Seconds that a changed attribute waits for others to join it in a frame."""
CONFIRM = 0.5
"""Seconds between two frames that say every attribute again."""
NAMED = 10
"""Endpoints that a log line names at most."""


class WatcherService(Service):
    """One watcher. The one that leads publishes; each writes the EDS file of its machine."""

    tier = "watcher"

    def __init__(self, settings: WatcherSettings, lookup: Lookup | None = None) -> None:
        super().__init__(settings)
        self._settings = settings
        self._pool = PoolId(settings.pool_namespace, settings.pool_name)
        self._config_root: Root | None = None
        if settings.config_file:
            self._config_root = Root(settings.config_file, "--config-file", configures=True)
        self._discovered: Root | None = None
        self.holding = State(preferred=self._config_root.origin if self._config_root else "")
        self.files = FileSource(
            FileReader(self._pool, installed, allow_experimental=settings.allow_experimental_plugins),
            settings.rescan_interval,
            Limits(file_size=settings.max_file_size, files=settings.max_files),
        )
        self._sources: tuple[Source, ...] = (self.files,)
        self._tally = Tally()
        self.notifications = Notifications(self._tally)
        self._makes_attributes = asyncio.Event()
        self._asides: set[tuple[str, str, str]] = set()
        self.metrics = WatcherMetrics(self.registry)
        self.names = Names(settings.resolve_interval)
        self._resolver = Resolver(
            self.names, lookup or SystemLookup(settings.resolve_timeout), self._refresh, self.metrics
        )
        self._eds: EdsKeeper | None = None
        if settings.eds_file:
            self._eds = EdsKeeper(settings.eds_file, settings.eds_cluster, settings.rescan_interval, self.metrics)
        self._endpoints: tuple[Endpoint, ...] = ()
        """Those that have an address."""
        self._publish = False
        self._seen = asyncio.Event()
        """What an earlier watcher published has been seen."""
        self.bus, subjects, self._pool_token = make_bus(settings, self.tier, self.id)
        self.leadership = Leadership(
            self.bus, subjects, self._pool_token, self.id, self._on_published, self._send_attributes
        )
        self.frames = FramePublisher(self.bus, subjects, self._pool_token, self.id)
        self._frames_started = False
        self.sender = FrameSender(self.frames, self._attributes, gather=GATHER, refresh=CONFIRM, heartbeat=CONFIRM)
        self._leading: asyncio.Task[None] | None = None
        self._follow_metrics()
        self.readiness.require("published", self.leadership.readiness)
        self.readiness.mention("files", self._amiss)

    async def start(self) -> None:
        """Read the files, resolve the names, write Envoy's file; then begin with all the rest.

        Raises `Invalid` with every problem of every file, or when Envoy's file can't be written.
        """
        await self._load()
        await self._resolver.look_up_due()
        self._publish = not self.names.unresolved
        self._refresh()
        if self._eds is not None:
            await self._eds.start(replace=self._publish)
        await self.leadership.replica.start()
        await self.bus.start()
        for source in self._sources:
            self.spawn(source.run(self._take), source.name)
        self.spawn(self._resolver.run(), "names")
        if self._publish:
            self._begin_eds()
        else:
            self.spawn(self._adopt(), "adoption")
        self._leading = self.spawn(self.leadership.run(), "leadership")

    async def drain(self) -> None:
        """Give the lease back, so that a standby leads at once."""
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.wait({self._leading})

    async def close(self) -> None:
        await self.frames.close()
        await self.leadership.replica.close()
        await self.bus.close()

    # Sources

    async def _load(self) -> None:
        """The first reading of the sources. Raises `Invalid` unless all that they have is good."""
        self.files.follow(self._roots())
        events = [event for source in self._sources for event in await source.load()]
        for event in events:
            if isinstance(event, Reset) and self._discover(event.loaded):
                self.files.follow(self._roots())
                events += await self.files.load()
                break
        self.holding.apply(events, time.monotonic())
        if not self._settings.endpoints_file and not self._discovered and self.holding.merged is None:
            collect(self.holding.rejected).raise_if_any()
            missing = "required, and missing (or a configuration whose dataLayer.discovery names a file-discovery)"
            raise Invalid([Problem("--endpoints-file", missing)])
        collect(self.holding.problems()).raise_if_any()
        if self._want():
            self.holding.apply([event for source in self._sources for event in await source.load()], time.monotonic())
            collect(self.holding.problems()).raise_if_any()
        self._accepted(Merged())
        self._say_asides()

    def _roots(self) -> list[Root]:
        """What is read: flags first, else what the configuration names."""
        roots = [self._config_root] if self._config_root else []
        if self._settings.endpoints_file:
            return [*roots, Root(self._settings.endpoints_file, "--endpoints-file")]
        return [*roots, self._discovered] if self._discovered else roots

    def _discover(self, loaded: LoadedConfig | None) -> bool:
        """Note where the configuration says that endpoints are; whether that is new. A path is never forgotten: what
        endpoints there are doesn't become unknown because a configuration no longer says where to look."""
        plugin = discovery(loaded)
        if plugin is None:
            return False
        before, self._discovered = self._discovered, Root(plugin.path, f"plugin {plugin.name!r}", plugin.watch_file)
        return before != self._discovered

    def _want(self) -> bool:
        """Have the sources report the objects that the configuration's extractors hear of; whether they have to report
        something again for it."""
        merged = self.holding.merged
        self.notifications.use(merged.loaded if merged else None)
        again = [source.want(self.notifications.kinds) for source in self._sources]
        return any(again)

    def _take(self, events: Sequence[Event]) -> None:
        """Events from a source: merge them, and pass on what changed."""
        before, problems = self.holding.merged or Merged(), self.holding.problems()
        changed = self.holding.apply(events, time.monotonic())
        self._compare(problems, self.holding.problems())
        self._say_asides()
        if changed:
            self._accepted(before)
            self._refresh()

    def _accepted(self, before: Merged) -> None:
        """Another set holds."""
        merged = self.holding.merged
        assert merged is not None
        self.metrics.changes.inc()
        old, new = ({one.id: one for one in merged.endpoints} for merged in (before, merged))
        log.info(
            "facts.changed",
            endpoints=len(new),
            added=_some(new.keys() - old.keys()),
            removed=_some(old.keys() - new.keys()),
            changed=_some(id for id in new.keys() & old.keys() if new[id] != old[id]),
            resources=len(merged.resources),
            objects=len(merged.objects),
            configuration=merged.configuration.origin if merged.configuration else None,
        )
        self._resolver.follow(merged.endpoints)
        if self._discover(merged.loaded) and not self._settings.endpoints_file:
            self.files.follow(self._roots())
        self._want()
        self.notifications.tell(merged.objects)
        if self.notifications.makes:
            self._makes_attributes.set()

    def _compare(self, before: Mapping[str, list[Problem]], after: Mapping[str, list[Problem]]) -> None:
        """Say what became bad and what is good again."""
        for origin, problems in after.items():
            if problems != before.get(origin):
                self.metrics.rejections.inc()
                log.error("file.rejected", file=origin, kept="last good", problems=[str(one) for one in problems])
        for origin in before.keys() - after.keys():
            log.info("file.accepted", file=origin)

    def _say_asides(self) -> None:
        """Say, once, what is odd without being wrong, and what was left out."""
        asides = {("warning", file, str(one)) for file, found in self.holding.warnings().items() for one in found}
        asides |= {("debug", file, one) for file, found in self.holding.ignored().items() for one in found}
        for level, file, text in sorted(asides - self._asides):
            if level == "warning":
                log.warning("file.warning", file=file, problem=text)
            else:
                log.debug("document.ignored", file=file, document=text)
        self._asides = asides

    # What comes out

    async def _adopt(self) -> None:
        """A start with names that can't be resolved: wait for the addresses that an earlier watcher published, lest
        its endpoints be withdrawn. Envoy's file waits a moment; what is published waits for a connection, too."""
        await self._wait_for_published()
        self._begin_eds()
        await self.bus.wait_connected()
        await self._wait_for_published()
        self._publish = True
        self._refresh()

    def _begin_eds(self) -> None:
        if self._eds is not None:
            self.spawn(self._eds.run(), "eds")

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
        if self.names.adopt(found):
            log.info("name.adopted", unresolved=len(self.names.unresolved))
            self._refresh()

    def _refresh(self) -> None:
        """Work out what holds now; write and publish it where it is another set."""
        merged = self.holding.merged
        assert merged is not None
        self._endpoints = self.names.apply(merged.endpoints)
        facts = merged.facts(self._endpoints, self._pool)
        self.metrics.show(facts)
        if self._eds is not None:
            self._eds.update(self._endpoints)
        if self._publish:
            self.leadership.update({fact_key(self._pool_token, one): one for one in facts}, [self._pool_token])
        for id in self.notifications.follow(self._endpoints):
            self.sender.note(id, True)

    async def _send_attributes(self) -> None:
        """While this watcher leads: send what extractors say of endpoints, if there is one that makes attributes."""
        await self._makes_attributes.wait()
        if not self._frames_started:
            self._frames_started = True
            await self.frames.start()
        await self.sender.run()

    def _attributes(self) -> Mapping[str, Described]:
        """What is to be sent: nothing without the lease, which may be lost before that is noticed."""
        if not self.leadership.leads:
            return {}
        now = time.monotonic()
        return self.notifications.described(min(source.confirmed(now) for source in self._sources))

    # What it says of itself

    def state(self) -> Mapping[str, Any]:
        merged = self.holding.merged or Merged()
        since = self.holding.since
        addresses = {one.id: one.authority for one in self._endpoints}
        return {
            "pool": str(self._pool),
            "files": self.holding.origins,
            "problems": {file: [str(one) for one in found] for file, found in self.holding.problems().items()},
            "last_good_age": 0.0 if since is None else round(time.monotonic() - since, 3),
            "warnings": {file: [str(one) for one in found] for file, found in self.holding.warnings().items()},
            "ignored": self.holding.ignored(),
            "endpoints": [
                {
                    "id": one.id,
                    "address": addresses.get(one.id),
                    "host": one.host or None,
                    "node": one.node or None,
                    "labels": one.labels,
                    "attributes": self.notifications.of(one.id),
                }
                for one in merged.endpoints
            ],
            "resources": [f"{type(one).__name__} {one.name}" for one in merged.resources],
            "configuration": merged.configuration.origin if merged.configuration else None,
            "names": {
                host: {"addresses": name.addresses, "error": name.error or None, "failures": name.failures}
                for host, name in self.names.names.items()
            },
            "notifications": self.notifications.state(),
            "frames": {"sent": self.sender.frames, "dropped": self.sender.dropped},
            "eds": self._eds.state() if self._eds else None,
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "leadership": self.leadership.state(),
        }

    def _amiss(self) -> str | None:
        """What is wrong with the files, whose last good content holds."""
        lines = [str(problem) for problem in collect(self.holding.problems()).errors]
        more = len(lines) - NAMED
        return "; ".join([*lines[:NAMED], *([f"… and {more} more"] if more > 0 else [])]) or None

    def _follow_metrics(self) -> None:
        show, total = self.metrics.follow, self.metrics.follow_total
        publisher, holding = self.leadership.publisher, self.holding
        lead = "pointsman_watcher_"
        show(lead + "bad_files", "Files whose last good content holds", lambda: len(holding.problems()))
        show(
            lead + "last_good_age_seconds",
            "Time since what holds stopped being what the files say; 0 while it is",
            lambda: 0.0 if holding.since is None else time.monotonic() - holding.since,
        )
        show(lead + "unresolved_names", "Host names without an address", lambda: len(self.names.unresolved))
        show(lead + "leader", "1 while this watcher is the active one", lambda: self.leadership.leads)
        total(lead + "facts_written", "Facts that this watcher has written to the bus", lambda: publisher.written)
        total(lead + "facts_deleted", "Facts that this watcher has deleted from the bus", lambda: publisher.deleted)
        total(lead + "publish_failures", "Publications that failed", lambda: publisher.failures)
        show(
            lead + "objects",
            "Kubernetes objects that extractors were told of",
            lambda: len(holding.merged.objects) if holding.merged else 0,
        )
        total(lead + "frames", "Frames of attributes that NATS was given", lambda: self.sender.frames)
        self.registry.register(DataLayerMetrics(self._tally))
        self.registry.register(BusMetrics(self.bus))


def _some(ids: Iterable[str]) -> list[str]:
    """A few of them, and how many more there are."""
    ordered = sorted(ids)
    more = len(ordered) - NAMED
    return ordered if more <= 0 else [*ordered[:NAMED], f"… and {more} more"]


def main(argv: Sequence[str]) -> int:
    """`pointsman watcher`."""
    return run(WatcherSettings, WatcherService, argv, "watcher")
