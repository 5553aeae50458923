"""What a watcher knows of a cluster: for each selection that somebody needs its objects, as a watch keeps them.

A selection names kinds from the newest to the oldest version; the first one that is served is followed, another one
from the moment on at which discovery says so. Those who need the same share a watch, also where they ask for it in
other words: a kind without namespaces is the same in all of them.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeAlias, TypeVar

import structlog
from msgspec import Struct

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.discovery import Discovery
from services.watcher.kubernetes.errors import Kind
from services.watcher.kubernetes.resource import JsonObject, ObjectId, Resource, Selection, cut, identity, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.unreadable import Unreadable
from services.watcher.kubernetes.watching import Changed, Gone, Listed, Report, Troubled, Watch
from services.watcher.origin import Spawn
from shared.datalayer.objects import ObjectKind, Parts

log = structlog.get_logger(__name__)

Arrive: TypeAlias = Callable[[JsonObject, Resource], JsonObject]
Made = TypeVar("Made")
Key: TypeAlias = tuple[Selection, Arrive, Parts]
"""What makes two watches the same."""
METADATA = frozenset({"metadata"})
SILENCES = 2.0
"""Looks of discovery that may fail to come before a silent watch is no longer believed in."""


class Wanted(Struct, frozen=True):
    """Objects of one kind, in any of its versions."""

    kinds: tuple[ObjectKind, ...]
    """The newest version first."""
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    arrive: Arrive = tidy
    """What is kept of each."""
    parts: Parts = None
    """What is read of each, beside its kind; where that is its metadata, nothing else is sent."""
    needed: str = ""
    """What is wrong while none is installed of all kinds that are wanted with these words; empty: nothing is."""

    def of(self, resource: Resource) -> Selection:
        namespace = self.namespace if resource.namespaced else ""
        alone = self.parts is not None and self.parts <= METADATA
        return Selection(resource, namespace, self.labels, self.fields, metadata_only=alone)

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        chosen = " and ".join(text for text in (self.labels, self.fields) if text)
        return f"{self.kinds[0].kind} of {self.kinds[0].group or 'core'}{place}{f' with {chosen}' if chosen else ''}"


class Feed:
    """The objects of one selection. Made and ended by a `Cluster`."""

    def __init__(self, wanted: Wanted, heard: Callable[[float, float], float] = lambda now, at: now) -> None:
        """`heard` says when all that is confirmed by a server that answers was confirmed, of something that was last
        confirmed by itself at a time."""
        self.wanted = wanted
        self.objects: dict[ObjectId, JsonObject] = {}
        """The last known ones; each is replaced, never changed."""
        self.resource: Resource | None = None
        """What is followed; None while none of the kinds is served."""
        self.watch: Watch | None = None
        self.looked_for = False
        """Whether the server has said which of the kinds it serves."""
        self.was_served = False
        """Whether one of the kinds was served, ever."""
        self.listeners: list[Callable[[Feed], None]] = []
        self.alternatives: list[Feed] = [self]
        """All that are needed in the same words: one of them has to be served."""
        self.unreadable = Unreadable(str(wanted))
        self._heard = heard

    @property
    def known(self) -> bool:
        """Whether it is known what there is: the objects of a complete list, or none of a kind that isn't served and
        needn't be, or was."""
        if self.watch is not None:
            return self.watch.listed
        return self.looked_for and not (self._missing and not any(one.was_served for one in self.alternatives))

    @property
    def problem(self) -> str:
        """Why what there is isn't known now, or can't be made use of; empty when it is."""
        if self.watch is not None and self.watch.problem is not None:
            return self.watch.problem.text
        return self.wanted.needed if self._missing else self.unreadable.problem

    @property
    def _missing(self) -> bool:
        """Whether nothing is installed of what has to be."""
        served = any(one.resource is not None or not one.looked_for for one in self.alternatives)
        return bool(self.wanted.needed) and not served

    def confirmed(self, now: float) -> float:
        """When the server last confirmed the objects: `now` while a watch is open and the server answers. Minus
        infinity: never."""
        if not self.looked_for:
            return float("-inf")
        if self.watch is None:
            return self._heard(now, float("-inf"))
        at = self.watch.confirmed_at if self.watch.confirmed_at is not None else float("-inf")
        return self._heard(now, at) if self.watch.in_touch else at

    def make(self, item: JsonObject, read: Callable[[JsonObject], Made], nothing: Made) -> Made:
        """What `read` makes of one of the objects; where it fails, `nothing`, and a problem until there is another form
        of the object."""
        try:
            return read(item)
        except Exception as error:  # noqa: BLE001 - one object that nobody foresaw isn't the end of all others
            self.unreadable.note(item, error)
            return nothing

    def tell(self) -> None:
        """Let the listeners know that something is another now."""
        self.unreadable.keep(self.objects)
        for listener in tuple(self.listeners):
            listener(self)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        watch = self.watch
        return {
            "selection": str(self.wanted),
            "served": None if self.resource is None else str(self.resource.kind),
            "objects": len(self.objects),
            "unreadable": self.unreadable.state(),
            "known": self.known,
            "in_touch": watch is not None and watch.in_touch,
            "problem": self.problem or None,
            "lists": watch.lists if watch is not None else 0,
            "events": watch.events if watch is not None else 0,
            "resource_version": watch.resource_version if watch is not None else "",
        }

    def __repr__(self) -> str:
        return f"<Feed {self.wanted}: {len(self.objects)} objects, {'known' if self.known else 'not known'}>"


class Stream:
    """One watch, and the feeds that live by it."""

    def __init__(self, key: Key) -> None:
        self._selection, self._arrive, self._parts = key
        self.objects: dict[ObjectId, JsonObject] = {}
        self.feeds: list[Feed] = []
        self.watch: Watch | None = None
        self.task: asyncio.Task[None] | None = None

    def arrive(self, item: JsonObject, resource: Resource) -> JsonObject:
        """What is kept of an object; of one that can't be understood, what every object has."""
        try:
            return cut(self._arrive(item, resource), self._parts)
        except Exception as error:  # noqa: BLE001 - one object that nobody foresaw isn't the end of all others
            kept = {name: item["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion")}
            stub = tidy({"metadata": kept}, resource)
            for feed in self.feeds:
                feed.unreadable.note(stub, error)
            return stub

    def take(self, report: Report) -> bool:
        """What the watch says; whether anything is another now."""
        match report:
            case Listed(items=items):
                self.objects = {identity(one): one for one in items}
            case Changed(object=one):
                if self.objects.get(identity(one)) == one:
                    return False
                self.objects[identity(one)] = one
            case Gone(object=one):
                self.objects.pop(identity(one), None)
            case Troubled():
                return True  # the objects stay: they are the last that is known
        for feed in self.feeds:
            feed.objects = self.objects
        return True

    def __repr__(self) -> str:
        return f"<Stream {self._selection}: {len(self.objects)} objects for {len(self.feeds)}>"


class Cluster:
    """Feeds by selection, and the discovery that they go by."""

    def __init__(
        self, client: Client, settings: KubernetesSettings, spawn: Spawn, timing: Timing | None = None
    ) -> None:
        self.client = client
        self._settings = settings
        self._spawn = spawn
        self._timing = timing or Timing()
        self._feeds: dict[Wanted, Feed] = {}
        self._streams: dict[Key, Stream] = {}
        self.discovery = Discovery(client, settings, self._timing)

    def start(self) -> None:
        """Begin to ask."""
        self._spawn(self._discover(), "discovery")

    def follow(self, wanted: Wanted, listener: Callable[[Feed], None]) -> Feed:
        """The objects of a selection from now on. The listener is told of every change; `leave` ends it."""
        feed = self._feeds.get(wanted)
        if feed is None:
            feed = self._feeds[wanted] = Feed(wanted, self._heard)
            self._group(wanted.needed)
            self._want()
            if self.discovery.answered.issuperset(wanted.kinds):
                self._serve(feed, self.discovery.find(*wanted.kinds))
        feed.listeners.append(listener)
        return feed

    def leave(self, feed: Feed, listener: Callable[[Feed], None]) -> None:
        """The listener needs it no longer."""
        feed.listeners.remove(listener)
        if not feed.listeners:
            del self._feeds[feed.wanted]
            self._group(feed.wanted.needed)
            self._stop(feed)
            self._want()

    def problem(self) -> str | None:
        """What of all that is asked for isn't known, or no longer; the first reason."""
        if self.discovery.problem is not None:
            return self.discovery.problem.text
        return next((feed.problem for feed in self._feeds.values() if feed.problem), None)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        problem = self.discovery.problem
        return {
            "discovery": None if problem is None else problem.text,
            "feeds": [feed.state() for feed in self._feeds.values()],
        }

    def _heard(self, now: float, at: float) -> float:
        """`now` while the server answers, by a watch (at a time) or by saying what it serves; else when it last did. A
        kernel acknowledges what a server that hangs will never read, so that a watch is open proves nothing."""
        heard = self.discovery.heard_at
        last = at if heard is None else max(at, heard)
        return now if now - last <= SILENCES * self._settings.kubernetes_discovery_interval else last

    def _group(self, needed: str) -> None:
        """Let those that are needed in these words know of each other."""
        if needed:
            group = [feed for wanted, feed in self._feeds.items() if wanted.needed == needed]
            for feed in group:
                feed.alternatives = group

    def _want(self) -> None:
        self.discovery.want(kind for wanted in self._feeds for kind in wanted.kinds)

    async def _discover(self) -> None:
        async for _ in self.discovery.changes():
            answered = [one for one in self._feeds.values() if self.discovery.answered.issuperset(one.wanted.kinds)]
            for feed in answered:
                self._serve(feed, self.discovery.find(*feed.wanted.kinds))

    def _serve(self, feed: Feed, resource: Resource | None) -> None:
        """Follow what the server has of the kinds now."""
        before, feed.looked_for = feed.looked_for, True
        if resource == feed.resource and before:
            return
        self._stop(feed)
        feed.resource = resource
        if resource is None:
            feed.objects = {}
            feed.tell()
        else:
            feed.was_served = True
            self._join(feed, resource)

    def _join(self, feed: Feed, resource: Resource) -> None:
        """Live by the watch of what is wanted, as it is sent and kept: one that runs, or a new one."""
        key = _key(feed.wanted, resource)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = Stream(key)
            stream.watch = Watch(self.client, key[0], self._settings, self._timing, stream.arrive)
            stream.task = self._spawn(self._keep(stream, stream.watch), f"watch of {feed.wanted}")
        stream.feeds.append(feed)
        feed.watch = stream.watch
        if feed.known:
            feed.objects = stream.objects
            feed.unreadable.join(stream.feeds[0].unreadable)
            feed.tell()

    async def _keep(self, stream: Stream, watch: Watch) -> None:
        async with aclosing(watch.forever()) as reports:
            async for report in reports:
                if isinstance(report, Troubled) and report.problem.kind is Kind.NOT_FOUND:
                    self.discovery.ask()
                if stream.take(report):
                    for feed in tuple(stream.feeds):
                        feed.tell()

    def _stop(self, feed: Feed) -> None:
        feed.watch = None
        if feed.resource is None:
            return
        key = _key(feed.wanted, feed.resource)
        stream = self._streams[key]
        stream.feeds.remove(feed)
        if not stream.feeds:
            del self._streams[key]
            if stream.task is not None:
                stream.task.cancel()

    def __repr__(self) -> str:
        return f"<Cluster {self.client!r}: {len(self._feeds)} feeds by {len(self._streams)} watches>"


def _key(wanted: Wanted, resource: Resource) -> Key:
    """What feeds that live by one watch have in common."""
    return wanted.of(resource), wanted.arrive, wanted.parts
