"""What a watcher knows of a cluster: for each selection that somebody needs its objects, as a watch keeps them.

A selection names kinds from the newest to the oldest version; the first one that is served is followed, another one
from the moment on at which discovery says so. Those who need the same share a watch.
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import structlog
from msgspec import Struct

from services.watcher.kubernetes.backoff import Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.discovery import Discovery
from services.watcher.kubernetes.errors import Kind
from services.watcher.kubernetes.resource import JsonObject, Resource, Selection, tidy
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watching import Changed, Gone, Listed, Report, Troubled, Watch
from services.watcher.origin import Spawn
from shared.datalayer.objects import ObjectKind

log = structlog.get_logger(__name__)

Arrive = Callable[[JsonObject, Resource], JsonObject]
ObjectId = tuple[str, str]
"""Namespace and name."""


class Wanted(Struct, frozen=True):
    """Objects of one kind, in any of its versions."""

    kinds: tuple[ObjectKind, ...]
    """The newest version first."""
    namespace: str = ""
    labels: str = ""
    fields: str = ""
    arrive: Arrive = tidy
    """What is kept of each."""

    def of(self, resource: Resource) -> Selection:
        return Selection(resource, self.namespace if resource.namespaced else "", self.labels, self.fields)

    def __str__(self) -> str:
        place = f" in namespace {self.namespace}" if self.namespace else ""
        chosen = " and ".join(text for text in (self.labels, self.fields) if text)
        return f"{self.kinds[0].kind} of {self.kinds[0].group or 'core'}{place}{f' with {chosen}' if chosen else ''}"


class Feed:
    """The objects of one selection. Made and ended by a `Cluster`."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.objects: dict[ObjectId, JsonObject] = {}
        """The last known ones; each is replaced, never changed."""
        self.resource: Resource | None = None
        """What is followed; None while none of the kinds is served."""
        self.watch: Watch | None = None
        self.looked_for = False
        """Whether the server has said which of the kinds it serves."""
        self.listeners: list[Callable[[Feed], None]] = []
        self.task: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether it is known what there is: the objects of a complete list, or none of a kind that isn't served."""
        return self.looked_for if self.watch is None else self.watch.listed

    @property
    def problem(self) -> str:
        """Why what there is isn't known now; empty when it is."""
        return self.watch.problem.text if self.watch is not None and self.watch.problem is not None else ""

    def confirmed(self, now: float) -> float:
        """When the server last confirmed the objects: `now` while a watch is open. Minus infinity: never."""
        if self.watch is None or self.watch.in_touch:
            return now if self.looked_for else float("-inf")
        return self.watch.confirmed_at if self.watch.confirmed_at is not None else float("-inf")

    def take(self, report: Report) -> None:
        """What the watch says."""
        match report:
            case Listed(items=items):
                self.objects = {_id(one): one for one in items}
            case Changed(object=one):
                self.objects[_id(one)] = one
            case Gone(object=one):
                self.objects.pop(_id(one), None)
            case Troubled():
                pass  # the objects stay: they are the last that is known

    def tell(self) -> None:
        for listener in tuple(self.listeners):
            listener(self)

    def state(self) -> dict[str, Any]:
        """For `/debug/state`."""
        watch = self.watch
        return {
            "selection": str(self.wanted),
            "served": None if self.resource is None else str(self.resource.kind),
            "objects": len(self.objects),
            "known": self.known,
            "in_touch": watch is not None and watch.in_touch,
            "problem": self.problem or None,
            "lists": watch.lists if watch is not None else 0,
            "events": watch.events if watch is not None else 0,
            "resource_version": watch.resource_version if watch is not None else "",
        }

    def __repr__(self) -> str:
        return f"<Feed {self.wanted}: {len(self.objects)} objects, {'known' if self.known else 'not known'}>"


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
        self.discovery = Discovery(client, settings, self._timing)

    def start(self) -> None:
        """Begin to ask."""
        self._spawn(self._discover(), "discovery")

    def follow(self, wanted: Wanted, listener: Callable[[Feed], None]) -> Feed:
        """The objects of a selection from now on. The listener is told of every change; `leave` ends it."""
        feed = self._feeds.get(wanted)
        if feed is None:
            feed = self._feeds[wanted] = Feed(wanted)
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

    def _want(self) -> None:
        self.discovery.want(kind for wanted in self._feeds for kind in wanted.kinds)

    async def _discover(self) -> None:
        async for _ in self.discovery.changes():
            for feed in list(self._feeds.values()):
                if self.discovery.answered.issuperset(feed.wanted.kinds):
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
            selection = feed.wanted.of(resource)
            feed.watch = Watch(self.client, selection, self._settings, self._timing, feed.wanted.arrive)
            feed.task = self._spawn(self._keep(feed, feed.watch), f"watch of {feed.wanted}")

    async def _keep(self, feed: Feed, watch: Watch) -> None:
        async with aclosing(watch.forever()) as reports:
            async for report in reports:
                if isinstance(report, Troubled) and report.problem.kind is Kind.NOT_FOUND:
                    self.discovery.ask()
                feed.take(report)
                feed.tell()

    def _stop(self, feed: Feed) -> None:
        if feed.task is not None:
            feed.task.cancel()
        feed.task = feed.watch = None

    def __repr__(self) -> str:
        return f"<Cluster {self.client!r}: {len(self._feeds)} feeds>"


def _id(item: JsonObject) -> ObjectId:
    metadata = item["metadata"]
    return metadata.get("namespace") or "", metadata["name"]
