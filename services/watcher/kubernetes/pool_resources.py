"""The resources of one pool, of all kinds and API groups: what each states, and which of two with one name counts.

Each resource is an origin. An invalid one is rejected, and its last valid version stays in force until it is valid
again or gone. While a cluster migrates from one API group to another, both have a resource of the name: the newest
valid one counts.

Only resources that may have changed are looked at, so a change of one costs the same beside any number of others.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from services.watcher.kubernetes.informers import Informer
from services.watcher.kubernetes.reading import read_item
from services.watcher.kubernetes.reports import POOL, ResourceResult
from services.watcher.kubernetes.resource import JsonObject, ObjectId
from services.watcher.problem_budget import ProblemBudget
from services.watcher.resources import GROUPS, PoolId
from services.watcher.sources import Rejected, Reset

Outcome = Reset | Rejected | str
"""What a resource states; a text says why it isn't for this pool."""


class _Reading(NamedTuple):
    """What one form of a resource states while these API groups have the pool."""

    item: JsonObject
    groups: frozenset[str]
    outcome: Outcome


class _Known(NamedTuple):
    """A resource as it was last looked at."""

    reading: _Reading
    result: ResourceResult


class PoolResources:
    """Reads the objects of informers, which the owner adds by `follow`."""

    def __init__(self, pool: PoolId, budget: ProblemBudget) -> None:
        """`budget` is for what is kept of their problems."""
        self._pool = pool
        self._budget = budget
        self._informers: dict[tuple[str, str], Informer] = {}
        """By kind and API group."""
        self._groups: frozenset[str] = frozenset()
        """The API groups that have the pool."""
        self._changed: dict[str, dict[ObjectId, None]] = {POOL: {}}
        """By kind: what may have changed and hasn't been looked at since. Pools come first."""
        self._ahead: dict[tuple[str, str, ObjectId], _Reading] = {}
        """What of that is read already."""
        self._known: dict[tuple[str, str], dict[ObjectId, _Known]] = {}
        self._holding: dict[str, str] = {}
        """By origin, the group of the resource whose last valid version is in force."""
        self._orphaned: set[str] = set()
        """Origins of which nothing is in force any more, not even what is published."""

    def follow(self, kind: str, group: str, informer: Informer) -> None:
        """Read the objects of this informer, too."""
        self._informers[kind, group] = informer
        self._known[kind, group] = {}
        self._changed.setdefault(kind, {})
        self.note(informer)

    @property
    def pool_informers(self) -> tuple[Informer, ...]:
        """Those of the pool itself."""
        return tuple(informer for (kind, _), informer in self._informers.items() if kind == POOL)

    @property
    def other_informers(self) -> tuple[Informer, ...]:
        """Those of what refers to the pool."""
        return tuple(informer for (kind, _), informer in self._informers.items() if kind != POOL)

    def note(self, informer: Informer, ids: Collection[ObjectId] | None = None) -> None:
        """These objects may have changed, or all. If the pool is in other groups than before, all that refers to a
        pool may have."""
        for (kind, group), found in self._informers.items():
            if found is informer:
                self._note(kind, group, ids)
        pool = self._pool.namespace, self._pool.name
        having = [group for (kind, group), found in self._informers.items() if kind == POOL and pool in found.objects]
        if self._groups != frozenset(having):
            self._groups = frozenset(having)
            for kind, group in self._informers:
                if kind != POOL:
                    self._note(kind, group, None)

    def _note(self, kind: str, group: str, ids: Collection[ObjectId] | None) -> None:
        changed = self._changed[kind]
        if ids is not None:
            changed.update(dict.fromkeys(ids))
        else:
            changed.update(dict.fromkeys(self._informers[kind, group].objects))
            changed.update(dict.fromkeys(self._known[kind, group]))

    @property
    def waiting(self) -> bool:
        """Whether there are resources to be looked at by `read`."""
        return any(self._changed.values())

    def _next(self, limit: int) -> list[tuple[str, ObjectId]]:
        """The first that wait, the pool itself before all others."""
        found = [(POOL, id) for id in [(self._pool.namespace, self._pool.name)] if id in self._changed[POOL]]
        waiting = ((kind, id) for kind, ids in self._changed.items() for id in ids)
        return list(dict.fromkeys([*found, *islice(waiting, limit)]))

    def read_ahead(self, limit: int) -> Iterator[None]:
        """Read what the next `read` looks at, one resource at a time. Nothing else changes."""
        self._ahead.clear()
        for kind, id in self._next(limit):
            for group in GROUPS:
                item = self._informers[kind, group].objects.get(id)
                if item is not None:
                    self._ahead[kind, group, id] = self._reading(kind, group, id, item)
            yield

    def read(self, limit: int) -> tuple[dict[str, Reset | Rejected | None], list[str]]:
        """Look at the next `limit` resources that may have changed. Returns what they state, by origin (None: nothing
        for this pool), and the origins of which nothing is in force any more because the resource that stated it is
        gone."""
        found: dict[str, Reset | Rejected | None] = {}
        orphans: list[str] = []
        for kind, id in sorted(self._next(limit)):
            self._changed[kind].pop(id, None)
            origin = origin_of(kind, id)
            found[origin] = self._read(kind, id, origin, orphans)
        self._ahead.clear()
        return found, orphans

    def _read(self, kind: str, id: ObjectId, origin: str, orphans: list[str]) -> Reset | Rejected | None:
        by_group: dict[str, Reset | Rejected] = {}
        for group in GROUPS:
            outcome = self._read_group(kind, group, id)
            if outcome is not None and not isinstance(outcome, str):
                by_group[group] = outcome
        if not by_group:
            self._holding.pop(origin, None)
            self._orphaned.discard(origin)
            return None
        group = _effective(by_group, self._holding.get(origin))
        for other in by_group:
            known = self._known[kind, other]
            shadowed_by = group if other != group else ""
            if known[id].result.shadowed_by != shadowed_by:
                known[id] = known[id]._replace(result=structs.replace(known[id].result, shadowed_by=shadowed_by))
        event = by_group[group]
        if isinstance(event, Reset):
            self._holding[origin] = group
            self._orphaned.discard(origin)
            return event
        if self._holding.get(origin) not in (None, group):
            del self._holding[origin]
            self._orphaned.add(origin)
            orphans.append(origin)
        return structs.replace(event, states=("", "")) if origin in self._orphaned else event

    def _read_group(self, kind: str, group: str, id: ObjectId) -> Outcome | None:
        """What the resource of this group states; None if there is none."""
        informer, known = self._informers[kind, group], self._known[kind, group]
        item = informer.objects.get(id)
        if item is None or informer.resource is None:
            known.pop(id, None)
            self._budget.drop((kind, group, id))
            return None
        before = known.get(id)
        reading = self._reading(kind, group, id, item)
        if before is None or before.reading is not reading or before.result.resource != informer.resource:
            outcome = reading.outcome
            if isinstance(outcome, str):
                self._budget.drop((kind, group, id))
            else:
                outcome = self._budget.fit((kind, group, id), outcome)
                reading = reading._replace(outcome=outcome)
            last_valid = before.result.last_valid if before is not None else None
            if not isinstance(outcome, Rejected):
                last_valid = outcome if isinstance(outcome, Reset) else None
            result = ResourceResult(informer.resource, item, outcome, last_valid=last_valid)
            known[id] = _Known(reading, result)
        return reading.outcome

    def _reading(self, kind: str, group: str, id: ObjectId, item: JsonObject) -> _Reading:
        """A new reading, unless this form of it has been read."""
        known, ahead = self._known[kind, group].get(id), self._ahead.get((kind, group, id))
        for reading in (ahead, known.reading if known is not None else None):
            if reading is not None and reading.item is item and (kind == POOL or reading.groups == self._groups):
                return reading
        outcome = read_item(item, kind, origin_of(kind, id), self._pool, self._groups)
        return _Reading(item, self._groups, outcome)

    def holds(self, origin: str) -> bool:
        """Whether a version of it is in force."""
        return origin in self._holding

    def ignored(self) -> Iterator[tuple[str, str]]:
        """Resources that aren't for this pool, each with the reason."""
        for (kind, _), all_known in self._known.items():
            for id, known in all_known.items():
                if isinstance(known.reading.outcome, str):
                    yield origin_of(kind, id), known.reading.outcome

    @property
    def pools_known(self) -> bool:
        """Whether all pools of the namespace are known."""
        return all(informer.synced for informer in self.pool_informers)

    def pools(self) -> frozenset[str] | None:
        """The names of all pools of the namespace; None while they are unknown."""
        if not self.pools_known:
            return None
        return frozenset(id[1] for informer in self.pool_informers for id in informer.objects)

    def results(self, *, published: bool) -> list[ResourceResult]:
        """What to report. A resource is in force only once it is `published`."""
        return [
            known.result
            for (kind, _), all_known in self._known.items()
            for known in all_known.values()
            if published or kind == POOL or not isinstance(known.reading.outcome, Reset)
        ]

    def __repr__(self) -> str:
        return f"<PoolResources of {self._pool}: {sum(map(len, self._known.values()))} read>"


def origin_of(kind: str, id: ObjectId) -> str:
    """The name of a resource as an origin."""
    return f"{kind} {id[0]}/{id[1]}"


def _effective(by_group: Mapping[str, Reset | Rejected], holding: str | None) -> str:
    """The group whose resource counts: the newest valid one; otherwise the one whose last valid version is in force;
    otherwise the newest. `by_group` has the newest group first."""
    valid = next((group for group, event in by_group.items() if isinstance(event, Reset)), None)
    return valid or (holding if holding is not None and holding in by_group else next(iter(by_group)))
