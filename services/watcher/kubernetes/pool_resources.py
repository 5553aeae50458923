"""The resources of one pool, of all kinds and API groups: what each states, and which of two with one name counts.

Each resource is an origin. An invalid one is rejected, and its last valid version stays in force until it is valid
again or gone. While a cluster migrates from one API group to another, both have a resource of the name: the newest
valid one counts.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec import structs

from services.watcher.kubernetes.informers import Informer
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.reports import POOL, ResourceResult
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.resources import GROUPS, PoolId
from services.watcher.sources import Rejected, Reset

Key = tuple[str, str, ObjectId]
"""Kind, API group, and the object's namespace and name."""


class PoolResources:
    """Reads the objects of `informers`, which the owner adds by kind and group."""

    def __init__(self, pool: PoolId) -> None:
        self._pool = pool
        self.informers: dict[tuple[str, str], Informer] = {}
        self._groups: frozenset[str] = frozenset()
        """The API groups that have the pool."""
        self._read: dict[Key, tuple[JsonObject, Reset | Rejected | str]] = {}
        """What each states; a text says why it isn't for this pool."""
        self._last_valid: dict[Key, Reset] = {}
        self._shadowed: dict[Key, str] = {}
        """Those that a resource of another group replaces, with that group."""
        self._holding: dict[str, str] = {}
        """By origin, the group of the resource whose last valid version is in force."""
        self._orphaned: set[str] = set()
        """Origins of which nothing is in force any more, not even what is published."""

    @property
    def pool_informers(self) -> tuple[Informer, ...]:
        """Those of the pool itself."""
        return tuple(informer for (kind, _), informer in self.informers.items() if kind == POOL)

    @property
    def other_informers(self) -> tuple[Informer, ...]:
        """Those of what refers to the pool."""
        return tuple(informer for (kind, _), informer in self.informers.items() if kind != POOL)

    def touched(self, dirty: Collection[Informer]) -> set[str]:
        """The kinds that may have changed: all, if the pool is in other groups than before."""
        pool = self._pool.namespace, self._pool.name
        informers = self.informers.items()
        before = self._groups
        having = [key for key, informer in informers if pool in informer.objects]
        self._groups = frozenset(group for kind, group in having if kind == POOL)
        if self._groups == before:
            return {kind for (kind, _), informer in informers if informer in dirty}
        self._read = {key: read for key, read in self._read.items() if key[0] == POOL}
        return {kind for kind, _ in self.informers}

    def read(self, kind: str) -> tuple[dict[str, Reset | Rejected], list[str]]:
        """What the resources of a kind state, by origin, and the origins of which nothing is in force any more because
        the resource that stated it is gone."""
        self._shadowed = {key: group for key, group in self._shadowed.items() if key[0] != kind}
        found: dict[str, Reset | Rejected] = {}
        orphans: list[str] = []
        for id, by_group in sorted(self._by_group(kind).items()):
            origin = origin_of(kind, id)
            group = _effective(by_group, self._holding.get(origin))
            found[origin] = by_group[group]
            self._shadowed |= {(kind, other, id): group for other in by_group if other != group}
            if isinstance(event := by_group[group], Reset):
                self._holding[origin] = group
                self._orphaned.discard(origin)
                continue
            if self._holding.get(origin) not in (None, group):
                del self._holding[origin]
                self._orphaned.add(origin)
                orphans.append(origin)
            if origin in self._orphaned:
                found[origin] = structs.replace(event, states=("", ""))
        for origin in [origin for origin in (*self._holding, *self._orphaned) if origin.startswith(f"{kind} ")]:
            if origin not in found:
                self._holding.pop(origin, None)
                self._orphaned.discard(origin)
        return found, orphans

    def holds(self, origin: str) -> bool:
        """Whether a version of it is in force."""
        return origin in self._holding

    def ignored(self) -> dict[str, str]:
        """Resources that aren't for this pool, each with the reason."""
        read = self._read.items()
        return {origin_of(kind, id): reason for (kind, _, id), (_, reason) in read if isinstance(reason, str)}

    def pools(self) -> frozenset[str] | None:
        """The names of all pools of the namespace; None while they are unknown."""
        if not all(informer.synced for informer in self.pool_informers):
            return None
        return frozenset(id[1] for informer in self.pool_informers for id in informer.objects)

    def results(self, *, published: bool) -> Iterator[ResourceResult]:
        """What to report. A resource is in force only once it is `published`."""
        for key, (item, outcome) in self._read.items():
            resource = self.informers[key[:2]].resource
            if resource is not None and (published or key[0] == POOL or not isinstance(outcome, Reset)):
                yield ResourceResult(resource, item, outcome, self._shadowed.get(key, ""), self._last_valid.get(key))

    def _by_group(self, kind: str) -> dict[ObjectId, dict[str, Reset | Rejected]]:
        """The resources for this pool, the newest group's first."""
        found: dict[ObjectId, dict[str, Reset | Rejected]] = {}
        for group in GROUPS:
            objects = self.informers[kind, group].objects
            for id, item in objects.items():
                event = self._read_one((kind, group, id), item)
                if not isinstance(event, str):
                    found.setdefault(id, {})[group] = event
            for key in [key for key in self._read if key[:2] == (kind, group) and key[2] not in objects]:
                del self._read[key]
                self._last_valid.pop(key, None)
        return found

    def _read_one(self, key: Key, item: JsonObject) -> Reset | Rejected | str:
        known = self._read.get(key)
        if known is not None and known[0] is item:
            return known[1]
        event = read_item(item, key[0], origin_of(key[0], key[2]), self._pool, self._groups)
        self._read[key] = item, event
        if isinstance(event, Reset):
            self._last_valid[key] = event
        elif isinstance(event, str):
            self._last_valid.pop(key, None)
        return event

    def __repr__(self) -> str:
        return f"<PoolResources of {self._pool}: {len(self._read)} read>"


def origin_of(kind: str, id: ObjectId) -> str:
    """The name of a resource as an origin."""
    return f"{kind} {id[0]}/{id[1]}"


def _effective(by_group: Mapping[str, Reset | Rejected], holding: str | None) -> str:
    """The group whose resource counts: the newest valid one; otherwise the one whose last valid version is in force;
    otherwise the newest. `by_group` has the newest group first."""
    valid = next((group for group, event in by_group.items() if isinstance(event, Reset)), None)
    return valid or (holding if holding is not None and holding in by_group else next(iter(by_group)))
