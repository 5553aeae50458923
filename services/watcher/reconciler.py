"""Reconciles one pool: what its sources report becomes facts on the bus, Envoy's file and frames of attributes.

Sources report origins, `State` merges them, `Names` gives addresses to host names, `Notifications` derives attributes
from objects. The reconciler passes on changes only: it publishes an `Upsert` or a `Delete` for each fact that differs.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeAlias, cast

import structlog

from services.watcher.eds import EdsWriter
from services.watcher.few import LISTED, SHOWN, few, few_problems, listed
from services.watcher.lookup import Lookups, Resolver
from services.watcher.metrics import WatcherMetrics
from services.watcher.notifications.attribute_table import Described
from services.watcher.notifications.notifications import Notifications
from services.watcher.resolve import Names
from services.watcher.resources import PoolId
from services.watcher.sources import Event, Source
from services.watcher.state import Changes, Merged, State, collect
from services.watcher.unpublishable import Unpublishable
from shared.bus.facts import Delete, Upsert
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_sender import FrameSender
from shared.bus.subjects import fact_key, named_key, pool_token
from shared.config.defaults import BUILT_IN, revision
from shared.config.problems import More, Problem
from shared.datalayer.events import EventCounts
from shared.model import Configuration, Endpoint, Fact, Pool
from shared.service.configured import Configured
from shared.tasks import exhaust

log = structlog.get_logger(__name__)

LINGER = 0.005
"""Seconds that a changed attribute waits for others to join its frame."""
CONFIRM = 0.5
"""Seconds between two frames that repeat every attribute."""
SLICE = 50
"""Endpoints that are published in one go."""

Publications: TypeAlias = Sequence[Upsert | Delete]


class PoolReconciler:
    """Starts with `accept` once the sources have reported everything. From then on `take` applies their events."""

    def __init__(
        self,
        pool: PoolId,
        sources: Sequence[Source],
        *,
        preferred: str,
        lookups: Lookups,
        resolve_interval: float,
        frames: FramePublisher,
        leads: Callable[[], bool],
        eds: EdsWriter | None,
        event_counts: EventCounts,
        metrics: WatcherMetrics,
        fact_limit: Callable[[], int],
        fact_entries: int,
        published: Callable[[str], Fact | None],
        on_accepted: Callable[["PoolReconciler"], None],
        on_change: Callable[["PoolReconciler", Publications], None],
    ) -> None:
        """`preferred` is the origin whose configuration takes precedence. `fact_limit` gives the largest size of a fact
        in bytes, `fact_entries` is the largest number of its entries. `published` gives the
        fact that a watcher has published under a key. `on_accepted` is called after each change of the
        state, `on_change` with what is to be published."""
        self.pool = pool
        self.token = pool_token(pool.namespace, pool.name)
        self.sources = tuple(sources)
        self.desired = State(preferred=preferred)
        self.notifications = Notifications(event_counts)
        self.names = Names(resolve_interval)
        self.resolver = Resolver(
            self.names,
            lookups,
            self._addresses_changed,
            metrics,
            published=lambda id: cast(Endpoint | None, published(named_key(self.token, "endpoint", id))),
        )
        self.eds = eds
        self.frames = frames
        self.sender = FrameSender(frames, self._attributes, linger=LINGER, refresh=CONFIRM, heartbeat=CONFIRM)
        self.publishes = False
        """Whether the facts are ready to be published."""
        self.facts: dict[str, Fact] = {}
        """By key on the bus."""
        self.unpublishable = Unpublishable(fact_limit, fact_entries)
        self.endpoints: dict[str, Endpoint] = {}
        """Those that have an address, by id."""
        self._others: set[str] = set()
        """Keys of facts that aren't endpoints."""
        self._unknown: tuple[frozenset[tuple[str, str]], dict[tuple[str, str], str]] = frozenset(), {}
        """Facts that aren't known, and their keys."""
        self._leads = leads
        self._metrics = metrics
        self._on_accepted = on_accepted
        self._on_change = on_change
        self._makes_attributes = asyncio.Event()
        self._taking = asyncio.Lock()
        """Held while events are merged."""

    # Input

    async def apply(self, events: Iterable[Event]) -> None:
        """Merge events without publishing."""
        async with self._taking:
            await exhaust(self.desired.apply(events, time.monotonic()))

    async def take(self, events: Sequence[Event]) -> None:
        """Merge events from a source, and publish what has changed: in turns with others, and so in parts."""
        async with self._taking:
            await exhaust(self._take(events))

    def _take(self, events: Sequence[Event]) -> Iterator[None]:
        desired, origins = self.desired, {event.origin for event in events}
        # the origin that takes precedence affects what is said of other configurations
        remarked = {*origins, *desired.configured} if desired.preferred in origins else origins
        problems, unknown = desired.problems(origins), desired.unknown()
        warnings, ignored = desired.warnings(remarked), desired.ignored(remarked)
        changed = yield from desired.apply(events, time.monotonic())
        if changed:
            changes = self.accept()
            yield
            yield from self._refresh(changes)
        elif unknown is not desired.unknown():
            self._on_change(self, [])
        yield from self._log_problems(problems, desired.problems(origins))
        yield from self._log_remarks(remarked, warnings, ignored)

    def accept(self) -> Changes:
        """Put the changed state in force, without publishing."""
        merged, changes = self._merged, self.desired.take_changes()
        self._metrics.changes.inc()
        former, endpoints = changes.endpoints, merged.endpoints
        log.info(
            "facts.changed",
            pool=str(self.pool),
            endpoints=len(endpoints),
            added=few(sorted(id for id, before in former.items() if before is None)),
            removed=few(sorted(id for id in former if id not in endpoints)),
            changed=few(sorted(id for id, before in former.items() if before is not None and id in endpoints)),
            resources=len(merged.resources),
            objects=len(merged.objects),
            configuration=self.configured().origin,
            revision=self.configured().revision,
        )
        self.resolver.follow(self._hosts(former))
        self._on_accepted(self)
        if changes.configuration:
            self.use_configuration()
        if changes.objects:
            self.notifications.set_objects(merged.objects.values())
        if self.notifications.table.makes:
            self._makes_attributes.set()
        return changes

    def _hosts(self, changed: Mapping[str, Endpoint | None]) -> dict[str, tuple[str, str]]:
        """Host name and origin of these endpoints, given with their former versions, where there is or was a name."""
        hosts: dict[str, tuple[str, str]] = {}
        for id, before in changed.items():
            endpoint = self._merged.endpoints.get(id)
            if endpoint is not None and endpoint.host:
                hosts[id] = endpoint.host, self.desired.origin(endpoint)
            elif before is not None and before.host:
                hosts[id] = "", ""
        return hosts

    def raise_problems(self) -> None:
        """Raises `Invalid` with the problems of all origins, if there are any."""
        collect(self.desired.problems()).raise_if_any()

    def use_configuration(self) -> bool:
        """Make the sources report the objects that the configuration's extractors read. Returns whether `load` has to
        report something again."""
        self.notifications.use(self._merged.loaded)
        again = [source.set_object_kinds(self.notifications.kinds) for source in self.sources]
        return any(again)

    async def log_remarks(self) -> None:
        """Log all warnings, and all documents that are left out."""
        await exhaust(self._log_remarks({*self.desired.warnings(), *self.desired.ignored()}, {}, {}))

    def _log_remarks(
        self,
        origins: Iterable[str],
        warnings_before: Mapping[str, Sequence[Problem]],
        ignored_before: Mapping[str, Sequence[str]],
    ) -> Iterator[None]:
        """Log the new warnings, and the documents that are newly left out, of one origin at a time."""
        for origin in sorted(origins):
            warnings, ignored = self.desired.warnings((origin,)), self.desired.ignored((origin,))
            former = {*warnings_before.get(origin, ())}
            if new := [warning for warning in warnings.get(origin, ()) if warning not in former]:
                log.warning("facts.warning", origin=origin, problems=few_problems(new))
            documents = {*ignored.get(origin, ())}.difference(ignored_before.get(origin, ()))
            if documents:
                log.debug("facts.ignored", origin=origin, documents=few(sorted(documents)))
            yield

    def _log_problems(self, before: Mapping[str, list[Problem]], after: Mapping[str, list[Problem]]) -> Iterator[None]:
        for origin, problems in after.items():
            if problems != before.get(origin):
                log.error("facts.rejected", origin=origin, kept="last good", problems=few_problems(problems))
                self._metrics.rejections.inc()
                yield
        for origin in before.keys() - after.keys():
            log.info("facts.accepted", origin=origin)
            yield

    # Output

    async def refresh(self, changes: Changes | None = None) -> None:
        """Publish what has changed, in turns with others; by default, compare everything."""
        await exhaust(self._refresh(changes))

    def _refresh(self, changes: Changes | None) -> Iterator[None]:
        merged = self._merged
        check_again = self.unpublishable.limit_changed()
        if check_again:
            changes = None
        if changes is None:
            ids = [*merged.endpoints, *(self.endpoints.keys() - merged.endpoints.keys())]
        else:
            ids = [*changes.endpoints]
        for some in _slices(ids):
            self._refresh_endpoints(some, check_again)
            yield
        described = [*dict.fromkeys([*ids, *self.endpoints])] if self.notifications.take_stale() else ids
        for some in _slices(described):
            for id in self.notifications.set_endpoints(self.endpoints, some):
                self.sender.note(id, True)
            yield
        if self.eds is not None and ids:
            self.eds.update(self.endpoints.values())
        published: list[Upsert | Delete] = []
        for key, fact in self._other_facts(changes).items():
            self._set(key, fact, published, check_again)
            if fact is None:
                self._others.discard(key)
            else:
                self._others.add(key)
        self._on_change(self, published)

    def _refresh_endpoints(self, ids: Sequence[str], check_again: bool) -> None:
        published: list[Upsert | Delete] = []
        for id in ids:
            endpoint = self._merged.endpoints.get(id)
            endpoint = self.names.resolve(endpoint) if endpoint is not None else None
            if endpoint is None:
                self.endpoints.pop(id, None)
            else:
                self.endpoints[id] = endpoint
            self._set(named_key(self.token, "endpoint", id), endpoint, published, check_again)
        if published:
            self._on_change(self, published)

    def _addresses_changed(self, ids: Sequence[str]) -> None:
        for _ in self._refresh(Changes(endpoints=dict.fromkeys(ids))):
            pass

    def _other_facts(self, changes: Changes | None) -> dict[str, Fact | None]:
        """By key on the bus: facts beside the endpoints that may have changed; None for those that are gone."""
        merged, found = self._merged, dict[str, Fact | None]()
        if changes is None:
            found |= dict.fromkeys(self._others)
            found |= {fact_key(self.token, fact): fact for fact in merged.other_facts(self.pool)}
            return found
        for key, before in changes.resources.items():
            if (resource := merged.resources.get(key) or before) is not None:
                found[fact_key(self.token, resource)] = merged.resources.get(key)
        if changes.configuration:
            former = merged.configuration or Configuration(text="")
            found[fact_key(self.token, former)] = merged.configuration
        if changes.configuration or any(kind is Pool for kind, _ in changes.resources):
            pool = merged.pool(self.pool)
            found[fact_key(self.token, pool)] = pool
        return found

    def _set(self, key: str, fact: Fact | None, published: list[Upsert | Delete], check_again: bool) -> None:
        before = self.facts.get(key)
        if fact is not None and fact == before and not check_again:
            return
        fact = self.unpublishable.check(key, fact)
        if fact is not None and fact != before:
            self.facts[key] = fact
            published.append(Upsert(key, fact))
        elif fact is None and before is not None:
            del self.facts[key]
            published.append(Delete(key))

    @property
    def unmanaged(self) -> list[str]:
        """Keys on the bus that stay as they are: facts that aren't known here and may have been known to an earlier
        watcher, and those that can't be published."""
        unknown = self.desired.unknown()
        if self._unknown[0] is not unknown:
            keys = self._unknown[1]
            self._unknown = unknown, {fact: keys.get(fact) or named_key(self.token, *fact) for fact in unknown}
        return [*self._unknown[1].values(), *self.unpublishable.reasons]

    async def send_attributes(self) -> None:
        """Send what extractors derive for endpoints, once there is an extractor that does. Runs while this watcher
        leads."""
        await self._makes_attributes.wait()
        await self.sender.run()

    def confirmed_at(self, now: float) -> float:
        """When all sources last knew that their reports were current. Seconds of the monotonic clock."""
        return min(source.confirmed_at(now) for source in self.sources)

    def _attributes(self) -> Mapping[str, Described]:
        """What to send. Nothing without the lease, which may expire before that is noticed."""
        return self.notifications.table.described(self.confirmed_at(time.monotonic())) if self._leads() else {}

    # Reports

    @property
    def loaded(self) -> bool:
        """Whether the pool has had a state without conflicts."""
        return self.desired.merged is not None

    @property
    def _merged(self) -> Merged:
        return self.desired.merged or Merged()

    def configured(self) -> Configured:
        """The configuration that the pool's collectors and pickers get."""
        configuration = self._merged.configuration or Configuration(text="", origin=BUILT_IN)
        return Configured(str(self.pool), configuration.origin, revision(configuration.text))

    def last_good_age(self) -> float:
        """Seconds since the state differs from what the origins state; 0 if it doesn't."""
        since = self.desired.since
        return 0.0 if since is None else time.monotonic() - since

    def state(self) -> dict[str, Any]:
        """For `/debug/state`. An iterator is a list whose items are made one by one."""
        merged, desired, ignored = self._merged, self.desired, self.desired.ignored()
        return {
            "pool": str(self.pool),
            "files": desired.origins,
            "problems": listed(_texts(desired.problems(desired.problematic(LISTED))), desired.problematic_count),
            "last_good_age": round(self.last_good_age(), 3),
            "warnings": listed(_texts(desired.warnings(desired.warned(LISTED))), desired.warned_count),
            "ignored": listed(ignored.items(), len(ignored)),
            "endpoints": (
                {
                    "id": id,
                    "address": self.endpoints[id].authority if id in self.endpoints else None,
                    "host": endpoint.host or None,
                    "node": endpoint.node or None,
                    "labels": endpoint.labels,
                    "attributes": self.notifications.table.of(id),
                }
                for id, endpoint in sorted(merged.endpoints.items())
            ),
            "resources": [f"{type(resource).__name__} {resource.name}" for resource in merged.resources.values()],
            "configuration": merged.configuration.origin if merged.configuration else None,
            "names": {
                host: {"addresses": name.addresses, "error": name.error or None, "failures": name.failures}
                for host, name in self.names.names.items()
            },
            "unpublishable": listed(self.unpublishable.reasons.items(), len(self.unpublishable.reasons)),
            "notifications": self.notifications.state(),
            "frames": {"sent": self.sender.frames, "dropped": self.sender.dropped},
            "eds": self.eds.state() if self.eds else None,
        }

    def invalid_origins(self) -> str | None:
        """The problems of origins, whose last valid content is in force."""
        first = collect(self.desired.problems(self.desired.problematic(SHOWN))).errors
        return "; ".join(few_problems(first, self.desired.problem_count)) or None

    def warnings(self, most: int) -> list[str]:
        """The first warnings of all origins."""
        found = self.desired.warnings(self.desired.warned(most))
        texts = (f"{origin}: {each}" for origin, some in found.items() for each in some if not isinstance(each, More))
        return list(islice(texts, most))

    def unpublished(self) -> str | None:
        """The facts that can't be published."""
        reasons = self.unpublishable.reasons
        first = [f"{key}: {why}" for key, why in islice(reasons.items(), SHOWN)]
        return "; ".join(few(first, len(reasons))) or None

    def __repr__(self) -> str:
        return f"<PoolReconciler {self.pool}: {self.desired!r}>"


def _texts(problems: Mapping[str, Iterable[Problem]]) -> Iterator[tuple[str, list[str]]]:
    return ((origin, list(map(str, found))) for origin, found in problems.items())


def _slices(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[at : at + SLICE] for at in range(0, len(ids), SLICE))
