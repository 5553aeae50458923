"""The watcher process: sources, names, Envoy's file, and the facts on the bus.

What is bound together here is pure elsewhere: events from the sources go through `State`, host names through `Names`,
and what comes out is written to Envoy's file by every watcher, and published by the one that leads.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from services.watcher.configuration import discovery, installed
from services.watcher.eds import EdsFile, render
from services.watcher.files import FileReader, FileSource, Limits, Root
from services.watcher.leadership import Leadership
from services.watcher.metrics import WatcherMetrics
from services.watcher.resolve import Lookup, Names, SystemLookup
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from services.watcher.sources import Event, Reset
from services.watcher.state import Merged, State, collect
from shared.bus import replica_state
from shared.bus.subjects import fact_key
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.model import Endpoint
from shared.service import Service, run
from shared.service.bus import make_bus

log = structlog.get_logger(__name__)

ADOPTION = 2.0
"""Seconds that a start waits for the facts on the bus when a host name can't be resolved: they may know its address."""
LOOKUPS = 16
"""Host names that are looked up at a time."""
EDS_RETRY = 1.0
"""Seconds until a file that could not be written is tried again."""
NAMED = 10
"""Endpoints that a log line names at most."""


class WatcherService(Service):
    """One watcher. The one that leads publishes; each writes the EDS file of its machine."""

    tier = "watcher"

    def __init__(self, settings: WatcherSettings, lookup: Lookup | None = None) -> None:
        super().__init__(settings)
        self._settings = settings
        self._pool = PoolId(settings.pool_namespace, settings.pool_name)
        self._lookup = lookup or SystemLookup(settings.resolve_timeout)
        self._config_root: Root | None = None
        if settings.config_file:
            self._config_root = Root(settings.config_file, "--config-file", configures=True)
        self._discovered: Root | None = None
        self.holding = State(preferred=self._config_root.origin if self._config_root else "")
        self.names = Names(settings.resolve_interval)
        self.files = FileSource(
            FileReader(self._pool, installed, allow_experimental=settings.allow_experimental_plugins),
            settings.rescan_interval,
            Limits(file_size=settings.max_file_size, files=settings.max_files),
        )
        self._asides: set[tuple[str, str, str]] = set()
        self._names_wake = asyncio.Event()
        self._endpoints: tuple[Endpoint, ...] = ()
        """Those that have an address."""
        self._eds = EdsFile(settings.eds_file) if settings.eds_file else None
        self._eds_error = ""
        self._eds_wake = asyncio.Event()
        self._write_eds = False
        self._publish = False
        self._seen = asyncio.Event()
        """What an earlier watcher published has been seen."""
        self.bus, subjects, self._pool_token = make_bus(settings, self.tier, self.id)
        self.leadership = Leadership(self.bus, subjects, self._pool_token, self.id, self._on_published)
        self._leading: asyncio.Task[None] | None = None
        self.metrics = WatcherMetrics(self.registry)
        self._follow_metrics()
        self.readiness.require("published", self.leadership.readiness)

    async def start(self) -> None:
        """Read the files, resolve the names, write Envoy's file; then begin with all the rest.

        Raises `Invalid` with every problem of every file, or when Envoy's file can't be written.
        """
        await self._load()
        await self._look_up(self.names.due(time.monotonic()))
        self._write_eds = self._publish = not self.names.unresolved
        self._refresh()
        if self._eds is not None:
            await self._start_eds(self._eds)
        await self.leadership.replica.start()
        await self.bus.start()
        self.spawn(self.files.run(self._take), "files")
        self.spawn(self._resolve(), "names")
        if not self._publish:
            self.spawn(self._adopt(), "adoption")
        self._leading = self.spawn(self.leadership.run(), "leadership")

    async def _start_eds(self, file: EdsFile) -> None:
        """Envoy doesn't start without the file, so it is written even when names are unresolved and there is none."""
        try:
            await asyncio.to_thread(file.check)
            if self._write_eds or not file.exists():
                await self._replace_eds(file)
        except OSError as error:
            problem = Problem("--eds-file", f"{self._settings.eds_file!r} can't be written: {error.strerror or error}")
            raise Invalid([problem]) from error
        self.spawn(self._keep_eds(file), "eds")

    async def drain(self) -> None:
        """Give the lease back, so that a standby leads at once."""
        if self._leading is not None:
            self._leading.cancel()
            await asyncio.wait({self._leading})

    async def close(self) -> None:
        await self.leadership.replica.close()
        await self.bus.close()

    # Sources

    async def _load(self) -> None:
        """The first reading of the files. Raises `Invalid` unless they are all good."""
        self.files.follow(self._roots())
        events = await self.files.load()
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
            configuration=merged.configuration.origin if merged.configuration else None,
        )
        self.names.follow(merged.endpoints)
        self._names_wake.set()
        if self._discover(merged.loaded) and not self._settings.endpoints_file:
            self.files.follow(self._roots())

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

    # Host names

    async def _resolve(self) -> None:
        """Look names up when they are due, for ever."""
        while True:
            self._names_wake.clear()
            due = self.names.next_due()
            try:
                async with asyncio.timeout(None if due is None else max(due - time.monotonic(), 0.0)):
                    await self._names_wake.wait()
            except TimeoutError:
                pass
            if await self._look_up(self.names.due(time.monotonic())):
                self._refresh()

    async def _look_up(self, hosts: Sequence[str]) -> bool:
        """Look these names up; whether an address changed."""
        slots = asyncio.Semaphore(LOOKUPS)

        async def one(host: str) -> bool:
            async with slots:
                try:
                    addresses = await self._lookup(host)
                except (OSError, UnicodeError, TimeoutError) as error:
                    return self._not_resolved(host, str(error) or "no answer in time")
            return self._resolved(host, addresses)

        return any(await asyncio.gather(*map(one, hosts)))

    def _resolved(self, host: str, addresses: Sequence[str]) -> bool:
        changed = self.names.answered(host, addresses, time.monotonic())
        name = self.names.names.get(host)
        if changed and name is not None:
            log.info("name.resolved", host=host, address=name.address, all=list(name.addresses))
            if len(name.addresses) > 1:
                log.warning("name.ambiguous", host=host, used=name.address, all=list(name.addresses))
        return changed

    def _not_resolved(self, host: str, reason: str) -> bool:
        self.metrics.lookup_failures.inc()
        known = self.names.names.get(host)
        changed = self.names.failed(host, reason, time.monotonic())
        if known is not None and known.error != reason:
            log.warning("name.not_resolved", host=host, reason=reason, kept=known.address or None)
        return changed

    async def _adopt(self) -> None:
        """A start with names that can't be resolved: wait for the addresses that an earlier watcher published, lest
        its endpoints be withdrawn. Envoy's file waits a moment; what is published waits for a connection, too."""
        await self._wait_for_published()
        self._write_eds = True
        self._refresh()
        await self.bus.wait_connected()
        await self._wait_for_published()
        self._publish = True
        self._refresh()

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

    # What comes out

    def _refresh(self) -> None:
        """Work out what holds now; write and publish it where it is another set."""
        merged = self.holding.merged
        assert merged is not None
        self._endpoints = self.names.apply(merged.endpoints)
        facts = merged.facts(self._endpoints, self._pool)
        self.metrics.show(facts)
        if self._write_eds:
            self._eds_wake.set()
        if self._publish:
            self.leadership.update({fact_key(self._pool_token, one): one for one in facts}, [self._pool_token])

    async def _keep_eds(self, file: EdsFile) -> None:
        """Write Envoy's file when the endpoints change, again after a failure, and again when somebody removed it."""
        wait = self._settings.rescan_interval
        while True:
            try:
                async with asyncio.timeout(wait):
                    await self._eds_wake.wait()
            except TimeoutError:
                pass
            self._eds_wake.clear()
            if not self._write_eds:
                continue
            wait = self._settings.rescan_interval
            try:
                await self._replace_eds(file)
            except OSError as error:
                wait = min(EDS_RETRY, wait)
                self.metrics.eds_failures.inc()
                if self._eds_error != str(error):
                    log.error("eds.not_written", file=self._settings.eds_file, reason=str(error))
                self._eds_error = str(error)

    async def _replace_eds(self, file: EdsFile) -> None:
        """Raises OSError."""
        endpoints = self._endpoints
        if await asyncio.to_thread(file.write, render(endpoints, self._settings.eds_cluster)):
            self.metrics.eds_writes.inc()
            log.info("eds.written", file=self._settings.eds_file, endpoints=len(endpoints))
        self._eds_error = ""

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
                {"id": one.id, "address": addresses.get(one.id), "host": one.host or None, "labels": one.labels}
                for one in merged.endpoints
            ],
            "resources": [f"{type(one).__name__} {one.name}" for one in merged.resources],
            "configuration": merged.configuration.origin if merged.configuration else None,
            "names": {
                host: {"addresses": name.addresses, "error": name.error or None, "failures": name.failures}
                for host, name in self.names.names.items()
            },
            "eds": self._eds
            and {"file": self._settings.eds_file, "writes": self._eds.writes, "error": self._eds_error or None},
            "bus": {"connected": self.bus.connected, "problem": self.bus.readiness()},
            "leadership": self.leadership.state(),
        }

    def _follow_metrics(self) -> None:
        publisher, holding = self.leadership.publisher, self.holding
        for name, text, value in (
            (
                "watcher_bad_files",
                "Files and directories of which the last good content holds",
                lambda: len(holding.problems()),
            ),
            (
                "watcher_last_good_age_seconds",
                "Time since what holds stopped being what the files say, or 0",
                lambda: 0.0 if holding.since is None else time.monotonic() - holding.since,
            ),
            ("watcher_unresolved_names", "Host names without an address", lambda: len(self.names.unresolved)),
            ("watcher_leader", "1 while this watcher is the active one", lambda: self.leadership.leads),
            ("watcher_facts_written", "Facts that this watcher has written to the bus", lambda: publisher.written),
            ("watcher_facts_deleted", "Facts that this watcher has deleted from the bus", lambda: publisher.deleted),
            ("watcher_publish_failures", "Publications that failed", lambda: publisher.failures),
            ("bus_connected", "1 while there is a connection to NATS", lambda: self.bus.connected),
        ):
            self.metrics.follow(f"pointsman_{name}", text, value)


def _some(ids: Iterable[str]) -> list[str]:
    """A few of them, and how many more there are."""
    ordered = sorted(ids)
    more = len(ordered) - NAMED
    return ordered if more <= 0 else [*ordered[:NAMED], f"… and {more} more"]


def main(argv: Sequence[str]) -> int:
    """`pointsman watcher`."""
    return run(WatcherSettings, WatcherService, argv, "watcher")
