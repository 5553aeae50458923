"""Informers: for each selection in use, the objects as a reflector keeps them.

A specification names kinds from the newest to the oldest version. The informer follows the first that is served, and
another one as soon as discovery says so. Informers of the same objects share a reflector, even if their specifications
differ: a cluster-scoped kind is the same for all namespaces.
"""

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import structlog
from msgspec import Struct

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.discovery import Discovery
from services.watcher.kubernetes.errors import ErrorKind
from services.watcher.kubernetes.reflector import Delete, Event, Failed, Reflector, Reset, Strip, Upsert
from services.watcher.kubernetes.resource import (
    JsonObject,
    ObjectId,
    Resource,
    Selection,
    identity,
    select_parts,
    tidy,
)
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.provider import Spawn
from shared.datalayer.objects import ObjectKind, Parts

log = structlog.get_logger(__name__)

Made = TypeVar("Made")
Handler: TypeAlias = Callable[["Informer", Collection[ObjectId] | None], None]
"""Is called with the objects that may have changed; None: all of them."""
METADATA = frozenset({"metadata"})
SILENCES = 2.0
"""Discovery intervals without an answer after which an open watch confirms nothing."""
SHOWN = 10
"""The most unreadable objects that `/debug/state` shows."""


class InformerSpec(Struct, frozen=True):
    """Objects of one kind, in any of its versions."""

    kinds: tuple[ObjectKind, ...]
    """The newest version first."""
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    strip: Strip = tidy
    """Returns what is kept of each."""
    parts: Parts = None
    """The parts of each that are read. If that is the metadata, nothing else is requested."""
    required: str = ""
    """The problem if no kind of all specifications with this text is installed; empty if that is no problem."""

    def selection(self, resource: Resource) -> Selection:
        namespace = self.namespace if resource.namespaced else ""
        metadata_only = self.parts is not None and self.parts <= METADATA
        return Selection(resource, namespace, self.labels, self.fields, metadata_only=metadata_only)

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        selectors = " and ".join(text for text in (self.labels, self.fields) if text)
        group = self.kinds[0].group or "core"
        return f"{self.kinds[0].kind} of {group}{place}{f' with {selectors}' if selectors else ''}"


class Informer:
    """The objects of one specification. Made and ended by an `InformerFactory`."""

    def __init__(
        self, spec: InformerSpec, confirmed_until: Callable[[float, float], float] = lambda now, confirmed_at: now
    ) -> None:
        """`confirmed_until(now, confirmed_at)` gives the time until which an answering server confirms what was last
        confirmed at `confirmed_at`."""
        self.spec = spec
        self.objects: dict[ObjectId, JsonObject] = {}
        """The last known ones. An object is replaced, never modified."""
        self.resource: Resource | None = None
        """What is followed; None while none of the kinds is served."""
        self.reflector: Reflector | None = None
        self.discovered = False
        """Whether the server has said which of the kinds it serves."""
        self.was_served = False
        """Whether one of the kinds has ever been served."""
        self.handlers: list[Handler] = []
        self.alternatives: list[Informer] = [self]
        """All with the same `required`: one of them has to be served."""
        self.unreadable: dict[ObjectId, tuple[JsonObject, str]] = {}
        """Objects that can't be read in their current form, with the reason."""
        self._confirmed_until = confirmed_until

    @property
    def synced(self) -> bool:
        """Whether the objects are known: those of a complete list, or none of a kind that isn't served and isn't
        required, or was served before."""
        if self.reflector is not None:
            return self.reflector.listed
        served_before = any(informer.was_served for informer in self.alternatives)
        return self.discovered and (served_before or not self._missing)

    @property
    def problem(self) -> str:
        """Why the current objects are unknown or unreadable; empty if they aren't."""
        if self.reflector is not None and self.reflector.problem is not None:
            return self.reflector.problem.text
        if self._missing:
            return self.spec.required
        for (namespace, name), (_, reason) in self.unreadable.items():
            more = f", and {len(self.unreadable) - 1} more" if len(self.unreadable) > 1 else ""
            return f"{self.spec}: {'/'.join(filter(None, (namespace, name)))} can't be read: {reason}{more}"
        return ""

    @property
    def _missing(self) -> bool:
        """Whether a required kind isn't installed."""
        served = any(informer.resource is not None or not informer.discovered for informer in self.alternatives)
        return bool(self.spec.required) and not served

    def confirmed_at(self, now: float) -> float:
        """When the server last confirmed the objects: `now` while a watch is open and the server answers. Minus
        infinity: never."""
        if not self.discovered:
            return float("-inf")
        if self.reflector is None:
            return self._confirmed_until(now, float("-inf"))
        at = self.reflector.confirmed_at if self.reflector.confirmed_at is not None else float("-inf")
        return self._confirmed_until(now, at) if self.reflector.in_touch else at

    def read(self, item: JsonObject, reader: Callable[[JsonObject], Made], default: Made) -> Made:
        """What `reader` makes of an object. If it fails, `default`, and a problem until the object changes."""
        try:
            return reader(item)
        except Exception as error:  # noqa: BLE001 - an unexpected object doesn't affect the others
            self.note_unreadable(item, error)
            return default

    def note_unreadable(self, item: JsonObject, error: Exception) -> None:
        """Call it in the error's handler: the log has the traceback."""
        namespace, name = id = identity(item)
        reason = f"{type(error).__name__}: {error}"
        self.unreadable[id] = item, reason
        selection = str(self.spec)
        log.exception(
            "kubernetes.object.unreadable", selection=selection, namespace=namespace, name=name, reason=reason
        )

    def notify(self, ids: Collection[ObjectId] | None = None) -> None:
        """Call the handlers: these objects may have changed, or all."""
        for id in self.unreadable.keys() & (self.unreadable if ids is None else ids):
            if self.objects.get(id) is not self.unreadable[id][0]:
                del self.unreadable[id]
        for handler in tuple(self.handlers):
            handler(self, ids)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        reflector = self.reflector
        unreadable = list(self.unreadable.items())[:SHOWN]
        return {
            "selection": str(self.spec),
            "served": None if self.resource is None else str(self.resource.kind),
            "objects": len(self.objects),
            "unreadable": {"/".join(filter(None, id)): reason for id, (_, reason) in unreadable},
            "known": self.synced,
            "in_touch": reflector is not None and reflector.in_touch,
            "problem": self.problem or None,
            "lists": reflector.lists if reflector is not None else 0,
            "events": reflector.events if reflector is not None else 0,
            "resource_version": reflector.resource_version if reflector is not None else "",
        }

    def __repr__(self) -> str:
        return f"<Informer {self.spec}: {len(self.objects)} objects, {'synced' if self.synced else 'not synced'}>"


ShareKey: TypeAlias = tuple[Selection, Strip, Parts]


class _Shared:
    """A reflector, its objects, and the informers that share it."""

    def __init__(self, key: ShareKey) -> None:
        _, self._strip, self._parts = key
        self.objects: dict[ObjectId, JsonObject] = {}
        self.informers: list[Informer] = []
        self.reflector: Reflector | None = None
        self.task: asyncio.Task[None] | None = None

    def strip(self, item: JsonObject, resource: Resource) -> JsonObject:
        """What is kept of an object. Of one that can't be read, only its identity."""
        try:
            return select_parts(self._strip(item, resource), self._parts)
        except Exception as error:  # noqa: BLE001 - an unexpected object doesn't affect the others
            kept = {name: item["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion")}
            stub = tidy({"metadata": kept}, resource)
            for informer in self.informers:
                informer.note_unreadable(stub, error)
            return stub

    def apply(self, event: Event) -> None:
        ids: Collection[ObjectId] | None
        match event:
            case Reset(items):
                self.objects, ids = {identity(item): item for item in items}, None
            case Upsert(item) | Delete(item):
                id = identity(item)
                if isinstance(event, Delete):
                    self.objects.pop(id, None)
                elif self.objects.get(id) == item:
                    return
                else:
                    self.objects[id] = item
                ids = (id,)
            case Failed():
                ids = ()
        for informer in tuple(self.informers):
            if not isinstance(event, Failed):  # then the last known objects stay, even of another version
                informer.objects = self.objects
            informer.notify(ids)


class InformerFactory:
    """Informers by specification, and the discovery that they follow."""

    def __init__(
        self, client: Client, settings: KubernetesSettings, spawn: Spawn, timing: Timing | None = None
    ) -> None:
        self.client = client
        self._settings = settings
        self._spawn = spawn
        self._timing = timing or Timing()
        self._informers: dict[InformerSpec, Informer] = {}
        self._shared: dict[ShareKey, _Shared] = {}
        self.discovery = Discovery(client, settings, self._timing)

    def start(self) -> None:
        """Start discovery."""
        self._spawn(self._discover(), "discovery")

    def add(self, spec: InformerSpec, handler: Handler) -> Informer:
        """The informer of this specification. The handler is called after each change, until `remove`."""
        informer = self._informers.get(spec)
        if informer is None:
            informer = self._informers[spec] = Informer(spec, self._confirmed_until)
            self._specs_changed(spec)
            if self.discovery.answered.issuperset(spec.kinds):
                self._serve(informer, self.discovery.find(*spec.kinds))
        informer.handlers.append(handler)
        return informer

    def remove(self, informer: Informer, handler: Handler) -> None:
        """Stop calling the handler. An informer without handlers ends."""
        informer.handlers.remove(handler)
        if not informer.handlers:
            del self._informers[informer.spec]
            self._stop(informer)
            self._specs_changed(informer.spec)

    def problem(self) -> str | None:
        """Why objects are unknown or out of date; the first reason."""
        if self.discovery.problem is not None:
            return self.discovery.problem.text
        return next((informer.problem for informer in self._informers.values() if informer.problem), None)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        problem = self.discovery.problem
        return {
            "discovery": None if problem is None else problem.text,
            "feeds": [informer.state() for informer in self._informers.values()],
        }

    def _confirmed_until(self, now: float, confirmed_at: float) -> float:
        """`now` while the server answers, in a watch (at a time) or to discovery; otherwise when it last did. An open
        watch isn't enough: a kernel acknowledges what a hanging server never reads."""
        responded = self.discovery.last_response_at
        last = confirmed_at if responded is None else max(confirmed_at, responded)
        return now if now - last <= SILENCES * self._settings.kubernetes_discovery_interval else last

    def _specs_changed(self, spec: InformerSpec) -> None:
        """An informer was added or removed."""
        self.discovery.set_kinds(kind for spec in self._informers for kind in spec.kinds)
        if spec.required:
            informers = self._informers.values()
            alternatives = [informer for informer in informers if informer.spec.required == spec.required]
            for informer in alternatives:
                informer.alternatives = alternatives

    async def _discover(self) -> None:
        async for _ in self.discovery.changes():
            for informer in list(self._informers.values()):
                if self.discovery.answered.issuperset(informer.spec.kinds):
                    self._serve(informer, self.discovery.find(*informer.spec.kinds))

    def _serve(self, informer: Informer, resource: Resource | None) -> None:
        """Follow what the server has of the kinds."""
        before, informer.discovered = informer.discovered, True
        if resource == informer.resource and before:
            return
        self._stop(informer)
        informer.resource = resource
        if resource is None:
            informer.objects = {}
            informer.notify()
        else:
            informer.was_served = True
            self._share(informer, resource)

    def _share(self, informer: Informer, resource: Resource) -> None:
        """Use the reflector of these objects, which may have to be started."""
        key = _share_key(informer.spec, resource)
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = _Shared(key)
            shared.reflector = Reflector(self.client, key[0], self._settings, self._timing, shared.strip)
            shared.task = self._spawn(self._run(shared, shared.reflector), f"watch of {informer.spec}")
        shared.informers.append(informer)
        informer.reflector = shared.reflector
        if informer.synced:
            informer.objects = shared.objects
            informer.unreadable |= shared.informers[0].unreadable
            informer.notify()

    async def _run(self, shared: _Shared, reflector: Reflector) -> None:
        async with aclosing(reflector.run()) as events:
            async for event in events:
                if isinstance(event, Failed) and event.problem.kind is ErrorKind.NOT_FOUND:
                    self.discovery.ask()
                shared.apply(event)

    def _stop(self, informer: Informer) -> None:
        informer.reflector = None
        if informer.resource is None:
            return
        key = _share_key(informer.spec, informer.resource)
        shared = self._shared[key]
        shared.informers.remove(informer)
        if not shared.informers:
            del self._shared[key]
            if shared.task is not None:
                shared.task.cancel()

    def __repr__(self) -> str:
        return f"<InformerFactory {len(self._informers)} informers with {len(self._shared)} reflectors>"


def _share_key(spec: InformerSpec, resource: Resource) -> ShareKey:
    """Informers with the same key share a reflector."""
    return spec.selection(resource), spec.strip, spec.parts
