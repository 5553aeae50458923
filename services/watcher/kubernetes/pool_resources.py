"""The resources of one pool, of all kinds and API groups: what each comes to, and which of two with one name counts.

Each resource is an origin of its own. A bad one is rejected, and its last good version holds until it is good again or
goes. While a cluster moves from one API group to another, both have a resource of the name: the newest that is good
counts.
"""

from collections.abc import Iterator, Mapping

from msgspec import structs

from services.watcher.kubernetes.cluster import Feed
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.kubernetes.verdicts import POOL, Reading
from services.watcher.resources import GROUPS, PoolId
from services.watcher.sources import Rejected, Reset

Key = tuple[str, str, ObjectId]
"""Kind, API group, and the object's namespace and name."""


class PoolResources:
    """Reads what `feeds` have. They are the owner's to follow, by kind and group."""

    def __init__(self, pool: PoolId) -> None:
        self._pool = pool
        self.feeds: dict[tuple[str, str], Feed] = {}
        self._groups: frozenset[str] = frozenset()
        """The API groups that have the pool."""
        self._read: dict[Key, tuple[JsonObject, Reset | Rejected | str]] = {}
        """What each comes to; a text says why it isn't for this pool."""
        self._last_good: dict[Key, Reset] = {}
        self._shadowed: dict[Key, str] = {}
        """Those instead of which a resource of another group counts, with that group."""
        self._holding: dict[str, str] = {}
        """By origin, the group of the resource whose last good version holds."""
        self._orphaned: set[str] = set()
        """Origins of which nothing holds any more, not even what is published."""

    @property
    def pool_feeds(self) -> tuple[Feed, ...]:
        """Those of the pool itself."""
        return tuple(feed for (kind, _), feed in self.feeds.items() if kind == POOL)

    @property
    def other_feeds(self) -> tuple[Feed, ...]:
        """Those of what refers to it."""
        return tuple(feed for (kind, _), feed in self.feeds.items() if kind != POOL)

    def touched(self, dirty: set[Feed]) -> set[str]:
        """The kinds of which something may be another now: all, where the pool is in other groups than before."""
        pool = self._pool.namespace, self._pool.name
        feeds = self.feeds.items()
        before = self._groups
        self._groups = frozenset(group for (kind, group), feed in feeds if kind == POOL and pool in feed.objects)
        if self._groups == before:
            return {kind for (kind, _), feed in feeds if feed in dirty}
        self._read = {key: read for key, read in self._read.items() if key[0] == POOL}
        return {kind for kind, _ in self.feeds}

    def read(self, kind: str) -> tuple[dict[str, Reset | Rejected], list[str]]:
        """What the resources of a kind come to, by origin, each once; and the origins of which nothing holds any more
        that they stated, because it was stated by a resource that is no more."""
        self._shadowed = {key: group for key, group in self._shadowed.items() if key[0] != kind}
        found: dict[str, Reset | Rejected] = {}
        orphans: list[str] = []
        for id, by_group in sorted(self._by_group(kind).items()):
            origin = origin_of(kind, id)
            group = _counts(by_group, self._holding.get(origin))
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
        for origin in [one for one in (*self._holding, *self._orphaned) if one.startswith(f"{kind} ")]:
            if origin not in found:
                self._holding.pop(origin, None)
                self._orphaned.discard(origin)
        return found, orphans

    def holds(self, origin: str) -> bool:
        """Whether a version of it holds, be it the last good one."""
        return origin in self._holding

    def not_ours(self) -> dict[str, str]:
        """Resources that are there and aren't for this pool, each with the reason."""
        return {
            origin_of(kind, id): reason for (kind, _, id), (_, reason) in self._read.items() if isinstance(reason, str)
        }

    def pools(self) -> frozenset[str] | None:
        """The names of all pools of the namespace; None while they aren't known."""
        if not all(feed.known for feed in self.pool_feeds):
            return None
        return frozenset(id[1] for feed in self.pool_feeds for id in feed.objects)

    def readings(self, *, published: bool) -> Iterator[Reading]:
        """What is to be judged. What is in force only once that is `published`."""
        for key, (item, outcome) in self._read.items():
            resource = self.feeds[key[:2]].resource
            if resource is not None and (published or key[0] == POOL or not isinstance(outcome, Reset)):
                yield Reading(resource, item, outcome, self._shadowed.get(key, ""), self._last_good.get(key))

    def _by_group(self, kind: str) -> dict[ObjectId, dict[str, Reset | Rejected]]:
        """All that are for this pool, the newest group's first."""
        found: dict[ObjectId, dict[str, Reset | Rejected]] = {}
        for group in GROUPS:
            present = set()
            for id, item in self.feeds[kind, group].objects.items():
                key = kind, group, id
                present.add(key)
                event = self._read_one(key, item)
                if not isinstance(event, str):
                    found.setdefault(id, {})[group] = event
            for key in [one for one in self._read if one[:2] == (kind, group) and one not in present]:
                del self._read[key]
                self._last_good.pop(key, None)
        return found

    def _read_one(self, key: Key, item: JsonObject) -> Reset | Rejected | str:
        known = self._read.get(key)
        if known is not None and known[0] is item:
            return known[1]
        event = read_item(item, key[0], origin_of(key[0], key[2]), self._pool, self._groups)
        self._read[key] = item, event
        if isinstance(event, Reset):
            self._last_good[key] = event
        elif isinstance(event, str):
            self._last_good.pop(key, None)
        return event

    def __repr__(self) -> str:
        return f"<PoolResources of {self._pool}: {len(self._read)} read>"


def origin_of(kind: str, id: ObjectId) -> str:
    """The name by which others know a resource."""
    return f"{kind} {id[0]}/{id[1]}"


def _counts(by_group: Mapping[str, Reset | Rejected], holding: str | None) -> str:
    """Of resources of one name the group whose counts: the newest that is good; else the one whose last good version
    holds; else the newest. `by_group` has the newest group first."""
    good = next((group for group, event in by_group.items() if isinstance(event, Reset)), None)
    return good or (holding if holding is not None and holding in by_group else next(iter(by_group)))
