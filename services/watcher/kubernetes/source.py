"""What a cluster says of one pool, as a source: its resource, its pods, what refers to it, and its configuration.

Each resource is an origin of its own (`services.watcher.kubernetes.pool_resources`): a bad one doesn't hold up others.
The pods together are one origin, because they are listed as one. Bursts are put together: a watch that lists again, or
a deployment that scales, is one change or a few.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import structlog
from msgspec import Struct

from services.watcher.documents import Documents
from services.watcher.kubernetes.cluster import Cluster, Feed, Wanted
from services.watcher.kubernetes.pods import arrive, endpoints_of, selector_text
from services.watcher.kubernetes.pool_resources import PoolResources, origin_of
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.kubernetes.settings import IpFamily
from services.watcher.kubernetes.slices import SERVICE_LABEL, endpoints_of_slice
from services.watcher.kubernetes.status import arrive as arrive_with_status
from services.watcher.kubernetes.verdicts import POOL, PoolView, Reading
from services.watcher.resources import GROUPS, KINDS, PoolId
from services.watcher.sources import Emit, Event, Rejected, Removed, Reset, first
from shared.bus.publishable import fault
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem
from shared.datalayer.objects import KubernetesObject, ObjectKind, Parts
from shared.model import Configuration, Endpoint, Pool

log = structlog.get_logger(__name__)

PODS = "pods"
"""The origin of the endpoints."""
COALESCE = 0.005
"""Seconds in which changes are put together."""
_POD = (ObjectKind("", "v1", "Pod"),)
_SLICE = (ObjectKind("discovery.k8s.io", "v1", "EndpointSlice"),)
_CONFIG_MAP = (ObjectKind("", "v1", "ConfigMap"),)
_REFERRING = tuple(kind for kind in KINDS if kind != "InferencePool")

Validate = Callable[[Configuration], LoadedConfig]
"""Loads a configuration with every tier's plugins. Raises `Invalid`."""


class ConfigMapKey(Struct, frozen=True):
    """Where the EndpointPickerConfig is."""

    namespace: str
    name: str
    key: str = ""
    """Empty: the only one, or the first that ends in `.yaml`."""

    def __str__(self) -> str:
        return f"ConfigMap {self.namespace}/{self.name}"


class Plan(Struct, frozen=True, kw_only=True):
    """What of a cluster is one pool's."""

    pool: PoolId
    stand_alone: Pool | None = None
    """The pool itself, where no InferencePool says what it is; nothing refers to it then."""
    config_map: ConfigMapKey | None = None
    slices_of: str = ""
    """The Service whose EndpointSlices say where the pool's servers are, instead of its pods."""
    ip_family: IpFamily = "any"
    """Which of a pod's addresses is taken; `any` is its primary one."""


class KubernetesSource:
    """Follows one pool. `run` is to follow `load`."""

    name = "kubernetes"

    def __init__(self, plan: Plan, validate: Validate) -> None:
        self._cluster: Cluster | None = None
        self._plan = plan
        self._validate = validate
        self._changed = asyncio.Event()
        self._dirty: set[Feed] = set()
        self._told: dict[str, Event] = {}
        self._resources = PoolResources(plan.pool)
        self._objects: dict[ObjectKind, Feed] = {}
        """Those that the configuration's extractors hear of."""
        self._config: Feed | None = None
        self._config_read: tuple[JsonObject | None, Event] | None = None
        """What the configuration's ConfigMap came to, in this form."""
        self._pods: Feed | None = None
        self._next_pods: Feed | None = None
        """Of a selector that has changed, until it is known what it selects."""
        self._endpoints: dict[ObjectId, tuple[JsonObject, tuple[Endpoint, ...]]] = {}
        self._pool: Pool | None = None
        self._settled = False
        """It has been known once what the pool is, or that there is none."""
        self._loaded = False
        """There has been a complete reading."""
        self.revision = 0
        """Grows with everything that is taken in."""

    # What is asked for

    def start(self, cluster: Cluster) -> None:
        """Begin to follow."""
        self._cluster = cluster
        namespace = self._plan.pool.namespace
        if self._plan.stand_alone is not None:
            self._use(self._plan.stand_alone)
        else:
            for kind in KINDS:
                needed = f"InferencePool isn't installed, and {self._plan.pool} is one" if kind == POOL else ""
                for group in GROUPS:
                    kinds = tuple(ObjectKind(group, version, kind) for version in KINDS[kind].specs)
                    wanted = Wanted(kinds, namespace, arrive=arrive_with_status, needed=needed)
                    self._resources.feeds[kind, group] = self._follow(wanted)
        if (config := self._plan.config_map) is not None:
            self._config = self._follow(Wanted(_CONFIG_MAP, config.namespace, fields=f"metadata.name={config.name}"))

    def want(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        namespace = self._plan.pool.namespace
        wanted = {
            kind: Wanted(
                (kind,),
                namespace,
                parts=parts,
                needed=f"{kind} isn't installed, and a source of the configuration names it",
            )
            for kind, parts in kinds.items()
        }
        for kind in [kind for kind, feed in self._objects.items() if feed.wanted != wanted.get(kind)]:
            self._leave(self._objects.pop(kind))
        for kind in wanted.keys() - self._objects.keys():
            self._objects[kind] = self._follow(wanted[kind])
        return False

    def confirmed(self, now: float) -> float:
        return min((feed.confirmed(now) for feed in self._required()), default=float("-inf"))

    async def load(self) -> Sequence[Event]:
        """Waits until all that is required is known, for as long as that takes."""
        while True:
            await self._read_ahead()
            events = self._collect()
            if self._complete():
                self._loaded = True
                return [*self._told.values()] or events
            await self._wait()

    async def changes(self) -> Sequence[Event]:
        """Waits for a change; what it is."""
        await self._wait()
        await asyncio.sleep(COALESCE)
        await self._read_ahead()
        return self._collect()

    async def run(self, emit: Emit) -> None:
        while True:
            if events := await self.changes():
                emit(events)

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    def _complete(self) -> bool:
        """Whether it is known what there is. What isn't required is waited for unless there is trouble with it."""
        if not self._settled or not all(feed.known for feed in self._required()):
            return False
        if self._pods is None and self._pool is not None:
            return False
        if self._config is not None and not isinstance(self._told.get(str(self._plan.config_map)), Reset):
            return False
        return all(feed.known or feed.problem for feed in (*self._resources.other_feeds, *self._objects.values()))

    def _required(self) -> Iterator[Feed]:
        yield from self._resources.pool_feeds
        yield from (feed for feed in (self._pods, self._config) if feed is not None)

    def awaited(self) -> str | None:
        """What has to be put right before there is a first complete reading; None when that isn't what is missing."""
        if self._loaded:
            return None
        refused = (event for event in self._told.values() if isinstance(event, Rejected))
        needed = (event for event in refused if event.origin.startswith((f"{POOL} ", "ConfigMap ")))
        return "; ".join(f"{event.origin}: {problem}" for event in needed for problem in event.problems) or None

    # What comes

    def _listen(self, feed: Feed) -> None:
        self._dirty.add(feed)
        self._changed.set()

    def _follow(self, wanted: Wanted) -> Feed:
        assert self._cluster is not None, "started"
        feed = self._cluster.follow(wanted, self._listen)
        self._listen(feed)  # it may be known already, to another pool
        return feed

    def _leave(self, feed: Feed) -> None:
        assert self._cluster is not None, "started"
        self._cluster.leave(feed, self._listen)
        self._dirty.discard(feed)

    def _collect(self) -> list[Event]:
        """What is to be told of all that has changed."""
        events: list[Event] = []
        dirty, self._dirty = self._dirty, set()
        for kind in self._resources.touched(dirty):
            found, orphans = self._resources.read(kind)
            events += [Removed(origin) for origin in orphans if self._told.pop(origin, None) is not None]
            if kind == POOL:
                self._choose(found)
            self._differ(f"{kind} ", found, events)
        if (alone := self._plan.stand_alone) is not None:
            origin = origin_of(POOL, (alone.namespace, alone.name))
            self._differ(origin, {origin: Reset(origin, Documents(resources=(alone,)))}, events)
        self._differ("objects ", {**self._wanted_objects, **self._read_objects(dirty)}, events)
        if self._config is not None and self._config in dirty and self._config.known:
            origin = str(self._plan.config_map)
            if self._config_read is None or self._config_read[0] is not self._config_item:
                self._config_read = self._config_item, self._read_config(origin, self._config_item)
            self._differ(origin, {origin: self._config_read[1]}, events)
        if self._next_pods is not None and self._next_pods.known:
            self._take_next_pods()
        self._differ(PODS, self._read_pods(), events)
        self.revision += 1
        return events

    def _read_objects(self, dirty: set[Feed]) -> dict[str, Event]:
        found: dict[str, Event] = {}
        for kind, feed in self._objects.items():
            if feed in dirty and feed.known:
                origin = f"objects {kind}"
                objects = tuple(_object(kind, one) for _, one in sorted(feed.objects.items()))
                found[origin] = Reset(origin, Documents(objects=objects))
        return found

    @property
    def _wanted_objects(self) -> dict[str, Event]:
        """What was told of the objects that are wanted."""
        return {origin: self._told[origin] for kind in self._objects if (origin := f"objects {kind}") in self._told}

    def _differ(self, lead: str, told: Mapping[str, Event], events: list[Event]) -> None:
        """Note what of the origins that begin with `lead` is to be told."""
        for origin in [one for one in self._told if one.startswith(lead) and one not in told]:
            del self._told[origin]
            events.append(Removed(origin))
        for origin, event in told.items():
            if self._told.get(origin) != event:
                self._told[origin] = event
                events.append(event)

    # Endpoints

    def _choose(self, found: Mapping[str, Event]) -> None:
        """Which the pool is now, of what there is. One that is refused stays as it was."""
        stated = [one for event in found.values() if isinstance(event, Reset) for one in event.documents.resources]
        pool = next((one for one in stated if isinstance(one, Pool)), None)
        if pool is not None:
            self._use(pool)
        elif not any(map(self._resources.holds, found)) and all(feed.known for feed in self._resources.pool_feeds):
            self._settled = self._settled or not found
            self._pool = None
            for feed in (self._pods, self._next_pods):
                if feed is not None:
                    self._leave(feed)
            self._pods = self._next_pods = None

    def _use(self, pool: Pool) -> None:
        self._settled = True
        if pool == self._pool:
            return
        self._pool = pool
        self._endpoints.clear()
        if self._plan.slices_of:
            wanted = Wanted(_SLICE, pool.namespace, f"{SERVICE_LABEL}={self._plan.slices_of}")
        else:
            wanted = Wanted(_POD, pool.namespace, selector_text(pool.selector), arrive=arrive)
        if self._next_pods is not None:
            self._leave(self._next_pods)
            self._next_pods = None
        if self._pods is None or self._pods.wanted != wanted:
            self._next_pods = self._follow(wanted)

    def _take_next_pods(self) -> None:
        """It is known what the new selector selects."""
        if self._pods is not None:
            self._leave(self._pods)
        self._pods, self._next_pods = self._next_pods, None

    def _read_pods(self) -> dict[str, Event]:
        """The endpoints; while it isn't known what the pool selects, those that are told last."""
        feed, pool = self._pods, self._pool
        if pool is None:
            complete = self._settled and all(one.known for one in self._required())
            return {PODS: Reset(PODS, Documents(endpoints=()))} if complete else self._unchanged
        if feed is None or not feed.known:
            return self._unchanged
        make = endpoints_of_slice if self._plan.slices_of else endpoints_of
        read = partial(make, pool=pool, family=self._plan.ip_family)
        before, self._endpoints = self._endpoints, {}
        found: dict[str, Endpoint] = {}
        for id, item in feed.objects.items():
            known = before.get(id)
            if known is None or known[0] is not item:
                known = item, feed.make(item, read, ())
            self._endpoints[id] = known
            for one in known[1]:  # a server that moves from one slice to another is in both; so is one of two families
                other = found.setdefault(one.id, one)
                if (":" in one.address, one.address) < (":" in other.address, other.address):
                    found[one.id] = one
        return {PODS: Reset(PODS, Documents(endpoints=tuple(found[id] for id in sorted(found))))}

    @property
    def _unchanged(self) -> dict[str, Event]:
        return {PODS: self._told[PODS]} if PODS in self._told else {}

    # Configuration

    @property
    def _config_item(self) -> JsonObject | None:
        """The ConfigMap as it is now."""
        config, feed = self._plan.config_map, self._config
        return None if config is None or feed is None else feed.objects.get((config.namespace, config.name))

    async def _read_ahead(self) -> None:
        """Read the configuration in a thread: a large one takes seconds, for which a lease doesn't wait."""
        if self._config is None or self._config not in self._dirty or not self._config.known:
            return
        while self._config_read is None or self._config_read[0] is not self._config_item:
            item = self._config_item
            self._config_read = item, await asyncio.to_thread(self._read_config, str(self._plan.config_map), item)

    def _read_config(self, origin: str, item: JsonObject | None) -> Event:
        config = self._plan.config_map
        assert config is not None
        if item is None:
            return Rejected(origin, (Problem("", "there is none, and --config-map names it"),))
        data: dict[str, str] = item.get("data") or {}
        key = config.key or next((one for one in sorted(data) if len(data) == 1 or one.endswith(".yaml")), "")
        if key not in data:
            there = ", ".join(sorted(data)) or "none"
            return Rejected(origin, (Problem("data", f"{config.key or '*.yaml'!r} isn't among its keys: {there}"),))
        configuration = Configuration(text=data[key], origin=f"{origin} {key}")
        if reason := fault(configuration):
            return Rejected(origin, (Problem(f"data.{key}", reason),))
        try:
            loaded = self._validate(configuration)
        except Invalid as error:
            return Rejected(origin, first(error.problems))
        except Exception as error:  # a plugin that nobody foresaw: what it makes of a document must not end the watcher
            log.exception("configuration.unloadable", origin=origin)
            return Rejected(origin, (Problem("", f"it can't be loaded: {type(error).__name__}: {error}"),))
        return Reset(origin, Documents(configuration=configuration), loaded)

    def not_ours(self) -> dict[str, str]:
        """Resources that are there and aren't for this pool, each with the reason."""
        return self._resources.not_ours()

    def view(self) -> PoolView:
        """What is known of the pool."""
        selects = self._pool is not None and self._pods is not None and self._pods.known and self._next_pods is None
        return PoolView(
            pool=self._plan.pool,
            readings=tuple(self._resources.readings(published=self._loaded)),
            pools=self._resources.pools(),
            selected=self._pods.objects if selects and self._pods is not None else None,
            slices_of=self._plan.slices_of,
            configuration=self._configuration(),
        )

    def _configuration(self) -> Reading | None:
        config, feed = self._plan.config_map, self._config
        if config is None or feed is None or feed.resource is None:
            return None
        item, outcome = feed.objects.get((config.namespace, config.name)), self._told.get(str(config))
        return Reading(feed.resource, item, outcome) if item and isinstance(outcome, Reset | Rejected) else None

    def __repr__(self) -> str:
        return f"<KubernetesSource {self._plan.pool}: {len(self._told)} origins>"


def _object(kind: ObjectKind, item: JsonObject) -> KubernetesObject:
    metadata = item["metadata"]
    return KubernetesObject(kind, metadata["name"], item, metadata.get("namespace") or "")
