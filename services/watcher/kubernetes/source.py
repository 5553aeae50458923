"""What a cluster says about one pool, as a source: its resource, its pods, what refers to it, and its configuration.

Each resource is an origin of its own (`services.watcher.kubernetes.pool_resources`): an invalid one doesn't affect
others. All pods are one origin. Changes within a few milliseconds are reported together, and if there are more and
more, those within 50.

Informers report which objects have changed. A pod that changes is an `Upsert` or a `Delete` of its endpoints; others
aren't read.
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

import structlog
from msgspec import Struct

from services.watcher.documents import Documents
from services.watcher.few import few_problems
from services.watcher.kubernetes.config_map import ConfigMapKey, ConfigMapReader, Validate
from services.watcher.kubernetes.endpoints import (
    SERVICE_LABEL,
    EndpointIndex,
    endpoints_of,
    endpoints_of_slice,
    is_unreachable,
    selector_text,
    strip_pod,
)
from services.watcher.kubernetes.informers import Informer, InformerFactory, InformerSpec
from services.watcher.kubernetes.pool_resources import PoolResources, origin_of
from services.watcher.kubernetes.reports import POOL, PoolView, ResourceResult
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.kubernetes.settings import IpFamily
from services.watcher.kubernetes.status import strip as strip_resource
from services.watcher.problem_budget import ProblemBudget
from services.watcher.resources import GROUPS, KINDS, PoolId
from services.watcher.sources import Delete, Emit, Event, Rejected, Removed, Reset, Upsert
from services.watcher.state import collect
from shared.config.problems import Problem
from shared.datalayer.objects import KubernetesObject, ObjectKind, Parts
from shared.model import Endpoint, Pool
from shared.tasks import exhaust, in_turns

log = structlog.get_logger(__name__)

PODS = "pods"
"""The origin of the endpoints."""
COALESCE = 0.005
"""Seconds in which changes are collected."""
GAP = 0.05
"""Seconds from one report to the next: each makes every picker and collector look at all endpoints, and who may label a
pod could change it a thousand times a second. What changes after a while is reported at once."""
MAX_CHANGES = 500
"""Resources that are reported together; of more that have changed, the others follow."""
_POD = (ObjectKind("", "v1", "Pod"),)
_SLICE = (ObjectKind("discovery.k8s.io", "v1", "EndpointSlice"),)
_CONFIG_MAP = (ObjectKind("", "v1", "ConfigMap"),)
_UNREACHABLE = (Problem("status", "no pod is ready; the pods on unreachable nodes are used"),)


class PoolOptions(Struct, frozen=True, kw_only=True):
    """Where in a cluster a pool is."""

    pool: PoolId
    stand_alone: Pool | None = None
    """The pool itself, if there is no InferencePool. Then nothing refers to it."""
    config_map: ConfigMapKey | None = None
    slices_of: str = ""
    """The Service whose EndpointSlices are read instead of pods."""
    ip_family: IpFamily = "any"
    """Which of a pod's addresses is used; `any` is its primary one."""
    keep_unreachable: bool = False
    """Whether the pods on unreachable nodes are used while no pod is ready."""


class KubernetesSource:
    """Follows one pool. Call `load` before `run`."""

    name = "kubernetes"

    def __init__(self, options: PoolOptions, validate: Validate) -> None:
        self._factory: InformerFactory | None = None
        self._options = options
        self._validate = validate
        self._changed = asyncio.Event()
        self._dirty: dict[Informer, set[ObjectId] | None] = {}
        """Informers with changes, and their changed objects; None: all."""
        self._reported: dict[str, Event] = {}
        """The last event of each origin; of the pods, their last `Reset`."""
        self._budget = ProblemBudget()
        self._resources = PoolResources(options.pool, self._budget)
        self._objects: dict[ObjectKind, _Objects] = {}
        """Those that the configuration's extractors read."""
        self._left_objects: set[ObjectKind] = set()
        """Kinds whose objects are no longer followed, or by another informer."""
        self._config: ConfigMapReader | None = None
        self._pods: Informer | None = None
        self._next_pods: Informer | None = None
        """Those of a changed selector, until it is synced."""
        self._index: EndpointIndex | None = None
        """None: all pods have to be read."""
        self._replaced = False
        """Whether all pods were read since the last report."""
        self._unreported: set[str] = set()
        """The ids of further endpoints that may have changed since."""
        self._endpoints: dict[str, Endpoint] = {}
        """Those that were reported."""
        self._unreachable = False
        """Whether those are of pods with whose nodes Kubernetes has lost contact."""
        self._pool: Pool | None = None
        """As its resource states it."""
        self._pods_pool: Pool | None = None
        """The pool whose pods are read: after a change of the selector the former one, until its pods are replaced."""
        self._settled = False
        """Whether it has been known what the pool is, or that there is none."""
        self._loaded = False
        """Whether there has been a complete reading."""
        self._collected_at = float("-inf")
        """When changes were last reported."""
        self.revision = 0
        """Grows with each change."""

    # What is followed

    def start(self, factory: InformerFactory) -> None:
        """Start to follow the pool."""
        self._factory = factory
        namespace = self._options.pool.namespace
        if self._options.stand_alone is not None:
            self._use(self._options.stand_alone)
        else:
            for kind in KINDS:
                required = f"InferencePool isn't installed, and {self._options.pool} is one" if kind == POOL else ""
                for group in GROUPS:
                    kinds = tuple(ObjectKind(group, version, kind) for version in KINDS[kind].specs)
                    spec = InformerSpec(kinds, namespace, strip=strip_resource, required=required)
                    self._resources.follow(kind, group, self._follow(spec))
        if (config := self._options.config_map) is not None:
            spec = InformerSpec(_CONFIG_MAP, config.namespace, fields=f"metadata.name={config.name}")
            informer = self._follow(spec)
            self._config = ConfigMapReader(config, informer, self._validate, partial(self._note, informer))

    def set_object_kinds(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        specs = {
            kind: InformerSpec(
                (kind,),
                self._options.pool.namespace,
                parts=parts,
                required=f"{kind} isn't installed, and a source of the configuration names it",
            )
            for kind, parts in kinds.items()
        }
        for kind in [kind for kind, objects in self._objects.items() if objects.informer.spec != specs.get(kind)]:
            self._leave(self._objects.pop(kind).informer)
            self._left_objects.add(kind)
        for kind in specs.keys() - self._objects.keys():
            self._objects[kind] = _Objects(kind, self._follow(specs[kind]))
        return False

    def _follow(self, spec: InformerSpec) -> Informer:
        assert self._factory is not None, "started"
        informer = self._factory.add(spec, self._note)
        self._note(informer)  # it may be synced already, for another pool
        return informer

    def _leave(self, informer: Informer) -> None:
        assert self._factory is not None, "started"
        self._factory.remove(informer, self._note)
        self._dirty.pop(informer, None)

    def _note(self, informer: Informer, ids: Collection[ObjectId] | None = None) -> None:
        """An informer has changed."""
        self._resources.note(informer, ids)
        noted = self._dirty.setdefault(informer, set())
        if ids is None:
            self._dirty[informer] = None
        elif noted is not None:
            noted.update(ids)
        self._changed.set()

    # Reading

    async def load(self) -> Sequence[Event]:
        """Wait until everything that is required is known, for as long as that takes. A further call reports everything
        again, after the changes since the last report: the reported state alone doesn't say what is gone."""
        changes: list[Event] = []
        while True:
            found = await self._collect()
            if self._loaded:
                changes += found
            if self._resources.waiting:
                continue
            if self._complete():
                self._loaded = True
                if PODS in self._reported:
                    self._reported[PODS] = self._reset_pods()
                return [*changes, *self._reported.values()]
            await self._changed.wait()
            self._changed.clear()

    async def changes(self) -> Sequence[Event]:
        """Wait for changes."""
        await self._changed.wait()
        self._changed.clear()
        await asyncio.sleep(max(COALESCE, self._collected_at + GAP - time.monotonic()))
        self._collected_at = time.monotonic()
        events = await self._collect()
        if self._resources.waiting:
            self._changed.set()
        return events

    async def run(self, emit: Emit) -> None:
        while True:
            if events := await self.changes():
                await emit(events)

    def confirmed_at(self, now: float) -> float:
        return min((informer.confirmed_at(now) for informer in self._required()), default=float("-inf"))

    def _complete(self) -> bool:
        """Whether everything is known. Optional kinds are waited for unless there is a problem with them."""
        if not self._settled or not all(informer.synced for informer in self._required()):
            return False
        if self._pods is None and self._pool is not None:
            return False
        if self._config is not None and not isinstance(self._reported.get(str(self._options.config_map)), Reset):
            return False
        optional = (*self._resources.other_informers, *(objects.informer for objects in self._objects.values()))
        return all(informer.synced or informer.problem for informer in optional)

    def _required(self) -> Iterator[Informer]:
        yield from self._resources.pool_informers
        if self._pods is not None:
            yield self._pods
        if self._config is not None:
            yield self._config.informer

    def load_problem(self) -> str | None:
        """What has to be corrected before there is a complete reading."""
        if self._loaded:
            return None
        pool = self._options.pool
        origins = origin_of(POOL, (pool.namespace, pool.name)), str(self._options.config_map)
        rejected = {
            origin: list(event.problems)
            for origin in origins
            if isinstance(event := self._reported.get(origin), Rejected)
        }
        return "; ".join(few_problems(collect(rejected).errors)) or None

    async def _collect(self) -> list[Event]:
        """The events for all changes since the last call, read in turns with others: a list has thousands of pods. The
        configuration's event comes when it has been validated."""
        await exhaust(self._resources.read_ahead(MAX_CHANGES))
        await exhaust(self._read_objects())
        events = self._collect_resources()
        await exhaust(self._index_pods())
        return events + await self._pod_events()

    def _collect_resources(self) -> list[Event]:
        events: list[Event] = []
        found, orphans = self._resources.read(MAX_CHANGES)
        events += [Removed(origin) for origin in orphans if self._reported.pop(origin, None) is not None]
        events += self._report(found)
        if self._take(*self._resources.pool_informers, *self._resources.other_informers):
            self._choose_pool()
        if (alone := self._options.stand_alone) is not None:
            origin = origin_of(POOL, (alone.namespace, alone.name))
            events += self._report({origin: Reset(origin, Documents(resources=(alone,)))})
        events += self._report(self._state_objects())
        if self._config is not None and self._take(self._config.informer):
            outcome = self._config.read()
            if outcome is not None:
                origin = str(self._options.config_map)
                events += self._report({origin: self._budget.fit(origin, outcome)})
        if self._next_pods is not None and self._next_pods.synced:
            self._use_next_pods()
        self.revision += 1
        return events

    def _take(self, *informers: Informer) -> bool:
        """Whether one of these has changed since the last call."""
        taken = self._dirty.keys() & {*informers}
        for informer in taken:
            del self._dirty[informer]
        return bool(taken)

    def _report(self, found: Mapping[str, Event | None]) -> list[Event]:
        """The events by which these origins (None: they state nothing any more) differ from what was reported."""
        removed = [origin for origin, event in found.items() if event is None and origin in self._reported]
        for origin in removed:
            del self._reported[origin]
        changed = {
            origin: event
            for origin, event in found.items()
            if event is not None and event != self._reported.get(origin)
        }
        self._reported |= changed
        return [*map(Removed, removed), *changed.values()]

    def _read_objects(self) -> Iterator[None]:
        """Read the objects that have changed, one at a time."""
        for objects in [*self._objects.values()]:
            if objects.informer in self._dirty and objects.informer.synced:
                yield from objects.read(self._dirty.pop(objects.informer))

    def _state_objects(self) -> Mapping[str, Event | None]:
        """What has changed in the objects, by origin."""
        left, self._left_objects = self._left_objects - self._objects.keys(), set()
        changed = (objects for objects in self._objects.values() if objects.changed)
        return {_origin(kind): None for kind in left} | {_origin(objects.kind): objects.state() for objects in changed}

    # Endpoints

    def _choose_pool(self) -> None:
        """Use the pool that the resource states. An invalid one leaves the former pool in place."""
        origin = origin_of(POOL, (self._options.pool.namespace, self._options.pool.name))
        event = self._reported.get(origin)
        resources = event.documents.resources if isinstance(event, Reset) else ()
        pool = next((resource for resource in resources if isinstance(resource, Pool)), None)
        if pool is not None:
            self._use(pool)
        elif not self._resources.holds(origin) and self._resources.pools_known:
            self._settled = self._settled or event is None
            self._pool = self._pods_pool = self._index = None
            for informer in (self._pods, self._next_pods):
                if informer is not None:
                    self._leave(informer)
            self._pods = self._next_pods = None

    def _use(self, pool: Pool) -> None:
        self._settled = True
        if pool == self._pool:
            return
        self._pool = pool
        if self._options.slices_of:
            spec = InformerSpec(_SLICE, pool.namespace, f"{SERVICE_LABEL}={self._options.slices_of}")
        else:
            spec = InformerSpec(_POD, pool.namespace, selector_text(pool.selector), strip=strip_pod)
        if self._next_pods is not None:
            self._leave(self._next_pods)
            self._next_pods = None
        if self._pods is None or self._pods.spec != spec:
            self._next_pods = self._follow(spec)
        else:
            self._pods_pool, self._index = pool, None

    def _use_next_pods(self) -> None:
        """It is known what the new selector selects."""
        if self._pods is not None:
            self._leave(self._pods)
        self._pods, self._next_pods = self._next_pods, None
        self._pods_pool, self._index = self._pool, None

    def _index_pods(self) -> Iterator[None]:
        """Read the pods that have changed, one at a time."""
        informer, pool = self._pods, self._pods_pool
        if pool is None or informer is None:
            return
        make = endpoints_of_slice if self._options.slices_of else endpoints_of
        read = partial(make, pool=pool, family=self._options.ip_family)
        reads = [read, partial(read, serves=is_unreachable)] if self._options.keep_unreachable else [read]
        none: tuple[Endpoint, ...] = ()
        while informer.synced and (self._index is None or informer in self._dirty):
            noted = self._dirty.pop(informer, set())
            ids = None if self._index is None else noted  # None: all
            index = EndpointIndex() if self._index is None or ids is None else self._index
            for id in [*informer.objects] if ids is None else ids:
                found = informer.objects.get(id)
                made = [none if found is None else informer.read(found, read, none) for read in reads]
                changed = index.set(id, *(tuple(map(self._known, endpoints)) for endpoints in made))
                if ids is not None:
                    self._unreported |= changed
                yield
            self._index = index
            self._replaced |= ids is None

    def _known(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint as it was reported, if it hasn't changed: what is the same object needs no comparison."""
        reported = self._endpoints.get(endpoint.id)
        return reported if reported == endpoint else endpoint

    async def _pod_events(self) -> list[Event]:
        """The events for the pods that were read. While it is unknown what the pool selects, nothing changes."""
        informer, index = self._pods, self._index
        if self._pool is None:
            complete = self._settled and all(informer.synced for informer in self._required())
            return await self._replace_endpoints(EndpointIndex()) if complete else []
        if informer is None or not informer.synced or index is None:
            return []
        if self._replaced or self._unreachable != index.unreachable:
            return await self._replace_endpoints(index)
        ids, self._unreported = self._unreported, set()
        events: list[Event] = []
        for endpoint_id in sorted(ids):
            endpoint = index.get(endpoint_id)
            if endpoint is None and self._endpoints.pop(endpoint_id, None) is not None:
                events.append(Delete(PODS, endpoint_id))
            elif endpoint is not None and endpoint != self._endpoints.get(endpoint_id):
                self._endpoints[endpoint_id] = endpoint
                events.append(Upsert(PODS, endpoint))
        return events

    async def _replace_endpoints(self, index: EndpointIndex) -> list[Event]:
        endpoints = {endpoint.id: endpoint async for endpoint in in_turns(index.all())}
        unreachable = index.unreachable
        self._replaced, self._unreported = False, set()
        if PODS in self._reported and (endpoints, unreachable) == (self._endpoints, self._unreachable):
            return []
        self._endpoints, self._unreachable = endpoints, unreachable
        reset = self._reported[PODS] = self._reset_pods()
        return [reset]

    def _reset_pods(self) -> Reset:
        endpoints = tuple(self._endpoints[id] for id in sorted(self._endpoints))
        return Reset(PODS, Documents(endpoints=endpoints, warnings=_UNREACHABLE if self._unreachable else ()))

    # Reports

    def ignored(self) -> Iterator[tuple[str, str]]:
        """Resources that aren't for this pool, each with the reason."""
        return self._resources.ignored()

    def view(self) -> PoolView:
        """What is known of the pool. Later changes don't change it."""
        selects = self._pool is not None and self._pods is not None and self._pods.synced and self._next_pods is None
        return PoolView(
            pool=self._options.pool,
            results=self._resources.results(published=self._loaded),
            pools=self._resources.pools(),
            selected=dict(self._pods.objects) if selects and self._pods is not None else None,
            slices_of=self._options.slices_of,
            configuration=self._configuration(),
        )

    def _configuration(self) -> ResourceResult | None:
        config = self._config
        if config is None or config.informer.resource is None or config.item is None or config.outcome is None:
            return None
        return ResourceResult(config.informer.resource, config.item, config.outcome)

    def __repr__(self) -> str:
        return f"<KubernetesSource {self._options.pool}: {len(self._reported)} origins>"


class _Objects:
    """The objects of a kind."""

    def __init__(self, kind: ObjectKind, informer: Informer) -> None:
        self.kind = kind
        self.informer = informer
        self.changed = False
        """Whether they differ from what `state` returned last. At first once they are known."""
        self._known: dict[ObjectId, KubernetesObject] | None = None

    def read(self, ids: Collection[ObjectId] | None) -> Iterator[None]:
        """Read these, or all, one at a time."""
        if self._known is None:
            self._known, self.changed = {}, True
        known = self._known
        for id in dict.fromkeys((*known, *self.informer.objects)) if ids is None else ids:
            item, before = self.informer.objects.get(id), known.get(id)
            if item is None:
                self.changed |= known.pop(id, None) is not None
            elif before is None or before.content != item:
                known[id] = _object(self.kind, item)
                self.changed = True
            yield

    def state(self) -> Reset:
        self.changed = False
        return Reset(_origin(self.kind), Documents(objects=tuple((self._known or {}).values())))


def _origin(kind: ObjectKind) -> str:
    return f"objects {kind}"


def _object(kind: ObjectKind, item: JsonObject) -> KubernetesObject:
    metadata = item["metadata"]
    return KubernetesObject(kind, metadata["name"], item, metadata.get("namespace") or "")
