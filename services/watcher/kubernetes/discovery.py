"""Which kinds the API server serves now: kinds that are installed later are noticed, and kinds that vanish.

One request tells of all groups (aggregated discovery, Kubernetes 1.27 and newer), and its entity tag makes the next one
free as long as nothing changes. A server without it is asked for each group and version. Every authenticated user may
ask both (`system:discovery`), so no role has to grant anything.

A server that has just started aggregates before it knows all that it serves: an answer in which a kind is missing is
believed when the kind's own group and version says the same, which such a server refuses to (503). Else every restart
of a server would be the end of all objects for a moment.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, Protocol

import msgspec
import structlog
from msgspec import Struct

from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.client import Document
from services.watcher.kubernetes.errors import ApiError, BadAnswer, Kind, KubernetesError, NotFound
from services.watcher.kubernetes.resource import Resource
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.kubernetes.watching import Problem
from shared.datalayer.objects import ObjectKind

log = structlog.get_logger(__name__)

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"
ACCEPT = f"{AGGREGATED.format('v2')},{AGGREGATED.format('v2beta1')},application/json"
CORE = "/api"
GROUPS = "/apis"


class Documents(Protocol):
    """What discovery needs of the API: `Client.document`."""

    async def document(self, path: str, accept: str = ..., etag: str = ...) -> Document: ...


class _Subresource(Struct):
    subresource: str


class _Named(Struct):
    kind: str = ""
    group: str = ""
    version: str = ""


class _AggregatedResource(Struct, rename="camel"):
    resource: str
    response_kind: _Named | None = None
    scope: str = "Namespaced"
    verbs: list[str] = []
    subresources: list[_Subresource] | None = None


class _AggregatedVersion(Struct):
    version: str
    resources: list[_AggregatedResource] | None = None
    freshness: str = ""


class _Metadata(Struct):
    name: str = ""


class _AggregatedGroup(Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    versions: list[_AggregatedVersion] | None = None


class _AggregatedList(Struct):
    items: list[_AggregatedGroup]


class _PlainResource(Struct):
    name: str
    kind: str
    namespaced: bool
    verbs: list[str] = []


class _PlainList(Struct):
    resources: list[_PlainResource]


class Served(Struct, frozen=True):
    """What a server said of some groups and versions."""

    resources: Mapping[ObjectKind, Resource]
    unknown: frozenset[tuple[str, str]] = frozenset()
    """Groups and versions of an extension's own API server that is down: they may be served again in a moment."""


def read_aggregated(content: Mapping[str, Any]) -> Served:
    """An APIGroupDiscoveryList, v2 or v2beta1. Raises BadAnswer."""
    try:
        groups = msgspec.convert(content, _AggregatedList)
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the list of API groups can't be understood: {error}") from error
    resources: dict[ObjectKind, Resource] = {}
    unknown = set()
    for group in groups.items:
        for version in group.versions or []:
            if version.freshness == "Stale":
                unknown.add((group.metadata.name, version.version))
                continue
            for one in version.resources or []:
                if one.response_kind is None or not one.response_kind.kind:
                    continue  # a resource that has only subresources
                kind = ObjectKind(group.metadata.name, version.version, one.response_kind.kind)
                names = frozenset(sub.subresource for sub in one.subresources or [])
                namespaced = one.scope == "Namespaced"
                resources[kind] = Resource(kind, one.resource, namespaced, frozenset(one.verbs), names)
    return Served(resources, frozenset(unknown))


def read_plain(content: Mapping[str, Any], group: str, version: str) -> dict[ObjectKind, Resource]:
    """An APIResourceList of one group and version. Raises BadAnswer."""
    try:
        told = msgspec.convert(content, _PlainList).resources
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the resources of {group}/{version} can't be understood: {error}") from error
    resources = {}
    for one in told:
        if "/" in one.name:
            continue
        kind = ObjectKind(group, version, one.kind)
        names = frozenset(sub.name.partition("/")[2] for sub in told if sub.name.startswith(f"{one.name}/"))
        resources[kind] = Resource(kind, one.name, one.namespaced, frozenset(one.verbs), names)
    return resources


class Discovery:
    """Knows which of the wanted kinds are served."""

    def __init__(self, api: Documents, settings: KubernetesSettings, timing: Timing | None = None) -> None:
        self._api = api
        self._settings = settings
        self._timing = timing or Timing()
        self._wanted: frozenset[ObjectKind] = frozenset()
        self._documents: dict[str, Document] = {}
        """The last aggregated answer of each path, for its entity tag."""
        self._served: dict[str, Served] = {}
        self._absent: dict[str, set[ObjectKind]] = {}
        """By path the kinds that its last answer lacks, with their own group's word for it."""
        self._asked = asyncio.Event()
        self._backoff = Backoff(settings.kubernetes_first_backoff, settings.kubernetes_longest_backoff, self._timing)
        self.resources: Mapping[ObjectKind, Resource] = {}
        """The wanted kinds that are served, as of the last answer."""
        self.answered: frozenset[ObjectKind] = frozenset()
        """The kinds of which `changes` has said whether they are served."""
        self.confirmed_at: float | None = None
        """When the server last said so. Seconds of the clock."""
        self.heard_at: float | None = None
        """When it was last asked something that it answered, be it with a refusal."""
        self.problem: Problem | None = None
        self.questions = 0

    def want(self, kinds: Iterable[ObjectKind]) -> None:
        """These kinds and no others are of interest from now on."""
        wanted = frozenset(kinds)
        if wanted != self._wanted:
            self._wanted = wanted
            self.ask()

    def ask(self) -> None:
        """Look again at once: a watch has found its resource gone, for example."""
        self._asked.set()

    def find(self, *kinds: ObjectKind) -> Resource | None:
        """The first of these kinds that is served; to be given from the newest to the oldest version."""
        return next((self.resources[kind] for kind in kinds if kind in self.resources), None)

    async def refresh(self) -> Mapping[ObjectKind, Resource]:
        """Ask the server once. The wanted kinds that it serves. Raises KubernetesError, and knows what it knew."""
        self._asked.clear()
        self.questions += 1
        wanted = self._wanted
        asked_at = self._timing.clock()
        try:
            found = await self._look(wanted)
        except ApiError as error:
            if error.kind is not Kind.UNAVAILABLE:  # which may be the word of whoever stands before it
                self.heard_at = asked_at
            raise
        self.resources = found
        self.heard_at = self.confirmed_at = asked_at
        self.problem = None
        self._backoff.reset()
        return found

    async def _look(self, wanted: frozenset[ObjectKind]) -> Mapping[ObjectKind, Resource]:
        """What is served of these kinds. Raises KubernetesError."""
        found: dict[ObjectKind, Resource] = {}
        core = {kind for kind in wanted if not kind.group}
        for path, kinds in ((CORE, core), (GROUPS, wanted - core)):
            if kinds:
                served = await self._ask(path, kinds)
                for kind in kinds:
                    if (kind.group, kind.version) in served.unknown and kind in self.resources:
                        found[kind] = self.resources[kind]
                    elif kind in served.resources:
                        found[kind] = served.resources[kind]
        return found

    async def changes(self) -> AsyncGenerator[Mapping[ObjectKind, Resource], None]:
        """The wanted kinds that are served: when that is known first, and whenever they or the wanted ones are others.
        Never ends; failures are in `problem`, and what was known holds."""
        told: tuple[frozenset[ObjectKind], Mapping[ObjectKind, Resource]] | None = None
        while True:
            wanted = self._wanted
            try:
                found = await self.refresh()
                pause = self._timing.spread(self._settings.kubernetes_discovery_interval)
            except KubernetesError as error:
                found = None
                pause = self._fail(error)
            if found is not None and (wanted, found) != told:
                if told is None or found != told[1]:
                    log.info("kubernetes.discovery", served=sorted(map(str, found)), missing=self._missing)
                told = wanted, found
                self.answered = wanted
                yield found
            await self._wait(pause)

    @property
    def _missing(self) -> list[str]:
        return sorted(str(kind) for kind in self._wanted if kind not in self.resources)

    async def _ask(self, path: str, kinds: Iterable[ObjectKind]) -> Served:
        """What is served of these kinds, and perhaps of others, under `/api` or `/apis`."""
        before = self._documents.get(path)
        document = await self._api.document(path, accept=ACCEPT, etag=before.etag if before is not None else "")
        if document.content is not None or path not in self._served:
            if "APIGroupDiscoveryList" not in document.media_type:
                self._documents.pop(path, None)
                return await self._ask_each(kinds)
            self._served[path] = read_aggregated(document.content or {})
            self._documents[path] = Document(None, document.media_type, document.etag)
            self._absent[path] = set()
        served, absent = self._served[path], self._absent[path]
        missing = {
            kind
            for kind in kinds
            if kind not in served.resources and (kind.group, kind.version) not in served.unknown and kind not in absent
        }
        if not missing:
            return served
        own = await self._ask_each(missing)
        absent |= missing - own.resources.keys()
        return Served({**own.resources, **served.resources}, served.unknown)

    async def _ask_each(self, kinds: Iterable[ObjectKind]) -> Served:
        """One question for each group and version."""
        resources: dict[ObjectKind, Resource] = {}
        for group, version in sorted({(kind.group, kind.version) for kind in kinds}):
            path = f"{GROUPS}/{group}/{version}" if group else f"{CORE}/{version}"
            try:
                document = await self._api.document(path)
            except NotFound:
                continue
            resources |= read_plain(document.content or {}, group, version)
        return Served(resources)

    def _fail(self, error: KubernetesError) -> float:
        """Keep the problem; the seconds until the next try."""
        pause = self._backoff.next()
        if error.retry_after is not None:
            pause = max(pause, min(error.retry_after, self._settings.kubernetes_longest_retry_after))
        before = self.problem
        self.problem = Problem(error.kind, str(error), self._timing.clock() if before is None else before.since)
        if before is None or before.text != self.problem.text:
            log.warning("kubernetes.discovery.failed", kind=error.kind.value, reason=str(error))
        return pause

    async def _wait(self, seconds: float) -> None:
        """Until the time is over or somebody asks."""
        sleeping = asyncio.ensure_future(self._timing.sleep(seconds))
        asking = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({sleeping, asking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeping, asking):
                task.cancel()
            await asyncio.gather(sleeping, asking, return_exceptions=True)

    def __repr__(self) -> str:
        state = self.problem.text if self.problem else "confirmed" if self.confirmed_at is not None else "not asked"
        return f"<Discovery {len(self.resources)} of {len(self._wanted)} kinds served, {state}>"
