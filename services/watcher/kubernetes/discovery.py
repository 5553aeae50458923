"""Which kinds the API server serves. Kinds that are installed later are noticed, and kinds that vanish.

Each group and version of interest is asked for its resources, as controller-runtime's REST mapper does. Every
authenticated user may do so (`system:discovery`). A group whose own API server is down (503) keeps what was known.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from services.watcher.kubernetes.backoff import Backoff, Timing
from services.watcher.kubernetes.client import Client
from services.watcher.kubernetes.errors import ApiError, BadAnswer, KubernetesError, NotFound, Unavailable
from services.watcher.kubernetes.reflector import Problem
from services.watcher.kubernetes.resource import Resource
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.datalayer.objects import ObjectKind

log = structlog.get_logger(__name__)


class _Resource(Struct):
    name: str
    kind: str
    namespaced: bool
    verbs: list[str] = []


class _ResourceList(Struct):
    resources: list[_Resource]


def read_resources(content: Mapping[str, Any], group: str, version: str) -> dict[ObjectKind, Resource]:
    """An APIResourceList of one group and version. Raises BadAnswer."""
    try:
        listed = msgspec.convert(content, _ResourceList).resources
    except msgspec.ValidationError as error:
        raise BadAnswer(f"the resources of {group}/{version} can't be understood: {error}") from error
    resources = {}
    for resource in listed:
        if "/" in resource.name:
            continue
        kind = ObjectKind(group, version, resource.kind)
        prefix = f"{resource.name}/"
        subresources = frozenset(sub.name.removeprefix(prefix) for sub in listed if sub.name.startswith(prefix))
        resources[kind] = Resource(kind, resource.name, resource.namespaced, frozenset(resource.verbs), subresources)
    return resources


class Discovery:
    """Knows which of the kinds of interest are served."""

    def __init__(self, api: Client, settings: KubernetesSettings, timing: Timing | None = None) -> None:
        self._api = api
        self._settings = settings
        self._timing = timing or Timing()
        self._kinds: frozenset[ObjectKind] = frozenset()
        self._wake = asyncio.Event()
        self._backoff = Backoff(settings.kubernetes_initial_backoff, settings.kubernetes_max_backoff, self._timing)
        self.resources: Mapping[ObjectKind, Resource] = {}
        """The kinds of interest that are served, as of the last answer."""
        self.answered: frozenset[ObjectKind] = frozenset()
        """The kinds that were of interest when `changes` last yielded."""
        self.last_response_at: float | None = None
        """When the last request was sent that got a response, an error included. Seconds of the clock."""
        self.problem: Problem | None = None

    def set_kinds(self, kinds: Iterable[ObjectKind]) -> None:
        """Only these kinds are of interest."""
        before, self._kinds = self._kinds, frozenset(kinds)
        if self._kinds != before:
            self.ask()

    def ask(self) -> None:
        """Ask again at once: a watch has found its resource gone, for example."""
        self._wake.set()

    def find(self, *kinds: ObjectKind) -> Resource | None:
        """The first of these kinds that is served; pass the newest version first."""
        return next((self.resources[kind] for kind in kinds if kind in self.resources), None)

    async def refresh(self) -> Mapping[ObjectKind, Resource]:
        """Ask the server once. Returns the kinds of interest that it serves. Raises KubernetesError; nothing has
        changed then."""
        self._wake.clear()
        kinds, asked_at = self._kinds, self._timing.clock()
        found: dict[ObjectKind, Resource] = {}
        unavailable: KubernetesError | None = None
        answered = not kinds
        for group, version in sorted({(kind.group, kind.version) for kind in kinds}):
            try:
                document = await self._api.document(f"/apis/{group}/{version}" if group else f"/api/{version}")
                found |= read_resources(document, group, version)
                answered = True
            except NotFound:
                answered = True
            except Unavailable as error:
                unavailable = error
                known = self.resources.items()
                found |= {kind: resource for kind, resource in known if (kind.group, kind.version) == (group, version)}
            except ApiError:
                self.last_response_at = asked_at
                raise
        if answered:
            self.last_response_at = asked_at
        if unavailable is not None and not (answered and self.answered.issuperset(kinds)):
            raise unavailable
        self.resources = {kind: found[kind] for kind in kinds if kind in found}
        self.problem = None
        self._backoff.reset()
        return self.resources

    async def changes(self) -> AsyncGenerator[Mapping[ObjectKind, Resource], None]:
        """The kinds of interest that are served: first when they are known, then after each change of either. Never
        ends. Failures are in `problem`; what was known stays."""
        last: tuple[frozenset[ObjectKind], Mapping[ObjectKind, Resource]] | None = None
        while True:
            kinds = self._kinds
            try:
                found = await self.refresh()
                pause = self._timing.jitter(self._settings.kubernetes_discovery_interval)
            except KubernetesError as error:
                found = None
                pause = self._fail(error)
            if found is not None and (kinds, found) != last:
                if last is None or found != last[1]:
                    missing = sorted(str(kind) for kind in kinds if kind not in found)
                    log.info("kubernetes.discovery", served=sorted(map(str, found)), missing=missing)
                last = kinds, found
                self.answered = kinds
                yield found
            await self._wait(pause)

    def _fail(self, error: KubernetesError) -> float:
        """Keep the problem. Returns the seconds until the next try."""
        before = self.problem
        self.problem = Problem(error.kind, str(error), self._timing.clock() if before is None else before.since)
        if before is None or before.text != self.problem.text:
            log.warning("kubernetes.discovery.failed", kind=error.kind.value, reason=str(error))
        return self._backoff.after(error, self._settings)

    async def _wait(self, seconds: float) -> None:
        """Wait until the time is over or `ask` is called."""
        sleeping = asyncio.ensure_future(self._timing.sleep(seconds))
        asking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleeping, asking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sleeping, asking):
                task.cancel()
            await asyncio.gather(sleeping, asking, return_exceptions=True)

    def __repr__(self) -> str:
        state = self.problem.text if self.problem else "answered" if self.answered else "not answered"
        return f"<Discovery {len(self.resources)} of {len(self._kinds)} kinds served, {state}>"
