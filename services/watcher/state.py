"""The desired state of one pool: the last valid statements of all origins, merged. Pure.

Two rules keep a mistake from emptying a pool. A rejected origin keeps its last valid statements. While origins conflict
(two state the same endpoint, or none has an `endpoints` list), the last state without a conflict stays in force.

Each statement is indexed by what it is about, so a change of one endpoint or resource costs the same in a pool of any
size.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import chain
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from services.watcher.documents import Documents
from services.watcher.resources import PoolId, Resource
from services.watcher.sources import Delete, Event, Rejected, Removed, Reset, Upsert
from shared.config.loaded import LoadedConfig
from shared.config.problems import MAX_PROBLEMS, More, Problem, Problems, count_problems
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.datalayer.objects import KubernetesObject, ObjectKind
from shared.model import Configuration, Endpoint, Fact, Pool

Item: TypeAlias = Endpoint | Resource | KubernetesObject
Key: TypeAlias = tuple[type, Any]
"""An item's type and its name, unique within the pool."""


class Merged(Struct):
    """What all origins state together, without conflicts."""

    endpoints: dict[str, Endpoint] = {}
    """By id. Those with a host name have no address yet."""
    resources: dict[tuple[type, str], Resource] = {}
    objects: dict[tuple[ObjectKind, str, str], KubernetesObject] = {}
    configuration: Configuration | None = None
    loaded: LoadedConfig | None = None

    def other_facts(self, pool: PoolId) -> list[Fact]:
        """The facts beside the endpoints. A pool that no document describes gets the defaults."""
        found: list[Fact] = [resource for resource in self.resources.values() if not isinstance(resource, Pool)]
        found.append(self.pool(pool))
        return found if self.configuration is None else [*found, self.configuration]

    def pool(self, pool: PoolId) -> Pool:
        """The pool's own fact: what a document states, or the defaults."""
        stated = (resource for resource in self.resources.values() if isinstance(resource, Pool))
        return next(stated, Pool(name=pool.name, namespace=pool.namespace))


class Changes(Struct):
    """How `State.merged` differs from what it was at the last `take_changes`."""

    endpoints: dict[str, Endpoint | None] = {}
    """The former versions of changed endpoints, by id; None for a new one."""
    resources: dict[tuple[type, str], Resource | None] = {}
    """The former versions of changed resources, likewise."""
    objects: bool = False
    configuration: bool = False


class State:
    """Merges what origins state. The configuration of the origin `preferred` takes precedence."""

    def __init__(self, preferred: str = "") -> None:
        self._preferred = preferred
        self._valid: dict[str, Reset] = {}
        """The last `Reset` of each origin."""
        self._configured: set[str] = set()
        """Those of them with a configuration."""
        self._listing: set[str] = set()
        """Those of them with a list of endpoints, which may be empty."""
        self._warned: set[str] = set()
        """Those of them with warnings."""
        self._ignoring: set[str] = set()
        """Those of them with ignored documents."""
        self._rejected: dict[str, Rejected] = {}
        self._rejections = 0
        """Their problems."""
        self.warning_count = 0
        """Warnings of all origins."""
        self._never_valid: dict[str, tuple[str, str]] = {}
        """Kind and name of the facts of rejected origins that have never been valid."""
        self._unknown: frozenset[tuple[str, str]] | None = frozenset()
        """What `unknown` returns; None: it has to be found out."""
        self._stated: dict[str, set[Key]] = {}
        """What each origin states."""
        self._statements: dict[Key, dict[str, Item]] = {}
        """Each item by the origins that state it."""
        self._duplicates: set[Key] = set()
        """What several origins state."""
        self._colliding: tuple[list[tuple[str, Problem]], int] | None = ([], 0)
        """What `_collisions` returns; None: it has to be found out."""
        self._unmerged: set[Key] = set()
        """What may differ from `merged`."""
        self._conflicts: tuple[tuple[str, Problem], ...] = ()
        self._changes = Changes()
        self.merged: Merged | None = None
        """None until there was a state without conflicts."""
        self.since: float | None = None
        """Since when (the clock of `apply`) `merged` differs from what the origins state; None while it doesn't."""

    def apply(self, events: Iterable[Event], now: float) -> Generator[None, None, bool]:
        """Apply events that belong together, in steps between which others may read. The last ones change `merged`: new
        and changed items come before those that go, so that there are never fewer. Returns whether it has changed."""
        for event in events:
            match event:
                case Reset(origin, documents):
                    self._set_valid(origin, event)
                    self._set_rejected(origin, None)
                    yield from self._reset(origin, documents)
                case Upsert(origin, endpoint):
                    self._state(origin, _key(endpoint), endpoint)
                case Delete(origin, id):
                    self._withdraw(origin, (Endpoint, id))
                case Rejected(origin):
                    self._set_rejected(origin, event)
                case Removed(origin):
                    self._set_valid(origin, None)
                    self._set_rejected(origin, None)
                    yield from self._reset(origin, Documents())
            yield
        chosen, conflicts = self._choose_configuration()
        if not self._listing and not self._rejected:  # otherwise the rejected origin is the one to correct
            problem = Problem("endpoints", "in no document; `endpoints: []` says that there are none")
            conflicts.append((min(self._valid, default=""), problem))
        if self._colliding is None:
            self._colliding = yield from self._collisions()
        collisions, count = self._colliding
        conflicts = [*collisions, *conflicts]
        self._conflicts = tuple(conflicts[:MAX_PROBLEMS])
        if (more := len(conflicts) - len(collisions) + count - MAX_PROBLEMS) > 0:
            text = f"… and {more} more that are given twice"
            self._conflicts += ((conflicts[-1][0], More("", text, count=more)),)
        if not self._rejected and not self._conflicts:
            self.since = None
        elif self.since is None:
            self.since = now
        return bool(self._listing) and not self._conflicts and (yield from self._merge(chosen))

    def take_changes(self) -> Changes:
        """What has changed since the last call."""
        changes, self._changes = self._changes, Changes()
        return changes

    # Statements

    def _set_valid(self, origin: str, event: Reset | None) -> None:
        for origins in (self._configured, self._listing, self._warned, self._ignoring):
            origins.discard(origin)
        self.warning_count += count_problems(_warnings(event)) - count_problems(_warnings(self._valid.get(origin)))
        if event is None:
            self._valid.pop(origin, None)
            return
        self._valid[origin] = event
        documents = event.documents
        if documents.configuration:
            self._configured.add(origin)
        if documents.endpoints is not None:
            self._listing.add(origin)
        if _warnings(event):
            self._warned.add(origin)
        if documents.ignored:
            self._ignoring.add(origin)

    def _set_rejected(self, origin: str, event: Rejected | None) -> None:
        if (former := self._rejected.pop(origin, None)) is not None:
            self._rejections -= count_problems(former.problems)
        if event is not None:
            self._rejections += count_problems(event.problems)
            self._rejected[origin] = event
        states = event.states if event is not None and event.states[0] and origin not in self._valid else None
        if states != self._never_valid.get(origin):
            self._unknown = None
            if states is None:
                del self._never_valid[origin]
            else:
                self._never_valid[origin] = states

    def _reset(self, origin: str, documents: Documents) -> Iterator[None]:
        gone = set(self._stated.get(origin, ()))
        for item in chain(documents.endpoints or (), documents.resources, documents.objects):
            key = _key(item)
            gone.discard(key)
            self._state(origin, key, item)
            yield
        for key in gone:
            self._withdraw(origin, key)
            yield

    def _state(self, origin: str, key: Key, item: Item) -> None:
        statements = self._statements.setdefault(key, {})
        if statements.get(origin) is item:
            return
        statements[origin] = item
        self._stated.setdefault(origin, set()).add(key)
        self._note(key)

    def _withdraw(self, origin: str, key: Key) -> None:
        statements = self._statements.get(key, {})
        if statements.pop(origin, None) is None:
            return
        if not statements:
            del self._statements[key]
        self._stated[origin].discard(key)
        self._note(key)

    def _note(self, key: Key) -> None:
        self._unmerged.add(key)
        if len(self._statements.get(key, ())) > 1:
            self._duplicates.add(key)
            self._colliding = None
        elif key in self._duplicates:
            self._duplicates.remove(key)
            self._colliding = None

    def _collisions(self) -> Generator[None, None, tuple[list[tuple[str, Problem]], int]]:
        """The first of the items that several origins state, and how many there are. The origin that sorts first isn't
        at fault."""
        found: list[tuple[str, Problem]] = []
        count = 0
        for key in self._duplicates:
            statements = self._statements[key]
            first, *others = sorted(statements)
            problem = Problem("", f"{_describe(statements[first])} is in {first} too")
            found += [(origin, problem) for origin in others]
            count += len(others)
            if len(found) > 10 * MAX_PROBLEMS:
                found = _first(found)
            yield
        return _first(found), count

    def _choose_configuration(self) -> tuple[Reset | None, list[tuple[str, Problem]]]:
        """The origin whose configuration is in force, and those with a further one."""
        if not self._configured:
            return None, []
        first, *others = sorted(self._configured, key=lambda origin: (origin != self._preferred, origin))
        problem = Problem("", f"{CONFIGURATION_KIND} is in {first} too; a pool has one")
        return self._valid[first], [] if first == self._preferred else [(origin, problem) for origin in others]

    # Merging

    def _merge(self, chosen: Reset | None) -> Generator[None, None, bool]:
        """Bring `merged` up to date. Returns whether it has changed."""
        merged, changes = self.merged, self._changes
        changed = merged is None
        if merged is None:
            merged = self.merged = Merged()
            changes.configuration = changes.objects = True
        gone: list[Key] = []
        for key in self._unmerged:
            if statements := self._statements.get(key):
                changed |= self._merge_item(merged, key, next(iter(statements.values())))
            else:
                gone.append(key)
            yield
        for key in gone:
            changed |= self._merge_item(merged, key, None)
            yield
        self._unmerged.clear()
        configuration = (chosen.documents.configuration, chosen.loaded) if chosen else (None, None)
        if configuration != (merged.configuration, merged.loaded):
            merged.configuration, merged.loaded = configuration
            changes.configuration = changed = True
        return changed

    def _merge_item(self, merged: Merged, key: Key, item: Item | None) -> bool:
        kind, name = key
        items: dict[Any, Any] = merged.resources
        if kind is Endpoint:
            items = merged.endpoints
        elif kind is KubernetesObject:
            items = merged.objects
        else:
            name = key
        before = items.get(name)
        if item == before:
            return False
        if item is None:
            del items[name]
        else:
            items[name] = item
        if kind is Endpoint:
            self._changes.endpoints.setdefault(name, before)
        elif kind is KubernetesObject:
            self._changes.objects = True
        else:
            self._changes.resources.setdefault(name, before)
        return True

    # Reports

    def problems(self, origins: Iterable[str] | None = None) -> dict[str, list[Problem]]:
        """What is wrong, by origin; empty if `merged` is what the origins state. With `origins`, what concerns several
        origins, and these."""
        found = self._problems(self._rejected if origins is None else origins)
        for origin, problem in self._conflicts:
            found.setdefault(origin, []).append(problem)
        return found

    def _problems(self, origins: Iterable[str]) -> dict[str, list[Problem]]:
        rejected = self._rejected
        return {origin: list(rejected[origin].problems) for origin in sorted({*origins} & rejected.keys())}

    def problematic(self, most: int) -> list[str]:
        """The first origins with problems."""
        return sorted({*nsmallest(most, self._rejected), *(origin for origin, _ in self._conflicts)})[:most]

    @property
    def problematic_count(self) -> int:
        """The number of origins with problems."""
        return len(self._rejected) + len({origin for origin, _ in self._conflicts} - self._rejected.keys())

    @property
    def problem_count(self) -> int:
        """The number of problems."""
        return self._rejections + count_problems(problem for _, problem in self._conflicts)

    def warned(self, most: int) -> list[str]:
        """The first origins with warnings."""
        return nsmallest(most, self._warned)

    @property
    def warned_count(self) -> int:
        """The number of origins with warnings."""
        return len(self._warned)

    def warnings(self, origins: Iterable[str] | None = None) -> dict[str, tuple[Problem, ...]]:
        """By origin; of all, or of these."""
        chosen = sorted(self._warned if origins is None else self._warned.intersection(origins))
        return {origin: _warnings(self._valid[origin]) for origin in chosen}

    def ignored(self, origins: Iterable[str] | None = None) -> dict[str, tuple[str, ...]]:
        """Valid documents that are left out, by origin, each with the reason; of all, or of these."""
        if origins is None:
            chosen = self._ignoring | self._configured
        else:
            chosen = {origin for origin in origins if origin in self._ignoring or origin in self._configured}
        note = f"{CONFIGURATION_KIND}: {self._preferred} takes precedence"
        found: dict[str, tuple[str, ...]] = {}
        for origin in sorted(chosen):
            notes = self._valid[origin].documents.ignored
            if self._preferred in self._valid and origin in self._configured and origin != self._preferred:
                notes = (*notes, note)
            if notes:
                found[origin] = notes
        return found

    @property
    def preferred(self) -> str:
        """The origin whose configuration takes precedence."""
        return self._preferred

    @property
    def configured(self) -> Collection[str]:
        """The origins with a configuration."""
        return self._configured

    @property
    def rejected(self) -> dict[str, list[Problem]]:
        """The problems of invalid origins."""
        return self._problems(self._rejected)

    def unknown(self) -> frozenset[tuple[str, str]]:
        """Kind and name of facts whose origin has never been valid."""
        if self._unknown is None:
            self._unknown = frozenset(self._never_valid.values())
        return self._unknown

    def origin(self, item: Item) -> str:
        """An origin that states this; empty while none does and the last state without a conflict stays in force."""
        return next(iter(self._statements.get(_key(item), ())), "")

    @property
    def origins(self) -> list[str]:
        """The origins that have been valid once."""
        return sorted(self._valid)

    def __repr__(self) -> str:
        endpoints = "none yet" if self.merged is None else f"{len(self.merged.endpoints)} endpoints"
        return f"<State {endpoints} of {len(self._valid)} origins, {self.problematic_count} with problems>"


def _first(conflicts: list[tuple[str, Problem]]) -> list[tuple[str, Problem]]:
    """As many as are shown."""
    return sorted(conflicts, key=lambda conflict: (conflict[0], conflict[1].message))[:MAX_PROBLEMS]


def _warnings(event: Reset | None) -> tuple[Problem, ...]:
    if event is None:
        return ()
    return (*event.documents.warnings, *(event.loaded.warnings if event.loaded else ()))


def _key(item: Item) -> Key:
    match item:
        case Endpoint():
            return Endpoint, item.id
        case KubernetesObject():
            return KubernetesObject, item.key
        case _:
            return type(item), item.name


def _describe(item: Item) -> str:
    match item:
        case Endpoint():
            return f"endpoint {item.id!r}"
        case KubernetesObject():
            return str(item)
        case _:
            return f"Inference{type(item).__name__} {item.name!r}"


def collect(problems: Mapping[str, list[Problem]]) -> Problems:
    """The problems of all origins in one list, each with its origin."""
    collected = Problems()
    for origin, found in problems.items():
        for problem in found:
            collected.errors.append(replace(problem, path=f"{origin}: {problem.path}" if problem.path else origin))
    return collected
