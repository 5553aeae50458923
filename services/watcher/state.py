"""What holds: the last good documents of each origin, merged. Pure; files, names and the bus are elsewhere.

Two guards keep a mistake from emptying a pool. A rejected origin keeps its last good documents, and a set that doesn't
fit together (an endpoint's id given by two files, no `endpoints` in any) keeps the last set that did.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from services.watcher.resources import PoolId, Resource
from services.watcher.sources import MOST_PROBLEMS, Event, Rejected, Removed, Reset
from shared.config.loaded import LoadedConfig
from shared.config.problems import Problem, Problems
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.datalayer.objects import KubernetesObject, ObjectKind
from shared.model import Configuration, Endpoint, Fact, Pool


class Merged(Struct, frozen=True):
    """A set that fits together."""

    endpoints: tuple[Endpoint, ...] = ()
    """By id. Those with a host name have no address yet."""
    resources: tuple[Resource, ...] = ()
    configuration: Configuration | None = None
    loaded: LoadedConfig | None = None
    objects: tuple[KubernetesObject, ...] = ()
    """By kind, namespace and name."""

    def facts(self, endpoints: Iterable[Endpoint], pool: PoolId) -> tuple[Fact, ...]:
        """Everything that is published, with these endpoints. A pool that no document describes has the defaults."""
        described = any(isinstance(one, Pool) for one in self.resources)
        return (
            *endpoints,
            *(() if described else (Pool(name=pool.name, namespace=pool.namespace),)),
            *self.resources,
            *(() if self.configuration is None else (self.configuration,)),
        )


class State:
    """Merges what origins state. `preferred` names the origin whose configuration goes before the others'."""

    def __init__(self, preferred: str = "") -> None:
        self._preferred = preferred
        self._good: dict[str, Reset] = {}
        self._rejected: dict[str, Rejected] = {}
        self._conflicts: tuple[tuple[str, Problem], ...] = ()
        self.merged: Merged | None = None
        """None until there was a set that fits together."""
        self.since: float | None = None
        """Since when (the clock of `apply`) what holds isn't what the origins say; None while they agree."""

    def apply(self, events: Iterable[Event], now: float) -> bool:
        """Take in events that belong together; whether `merged` is another set than before."""
        for event in events:
            match event:
                case Reset(origin=origin):
                    self._good[origin] = event
                    self._rejected.pop(origin, None)
                case Rejected(origin=origin):
                    self._rejected[origin] = event
                case Removed(origin=origin):
                    self._good.pop(origin, None)
                    self._rejected.pop(origin, None)
        merged, conflicts = merge(self._good, self._preferred)
        stated = any(reset.documents.endpoints is not None for reset in self._good.values())
        if not stated and not self._rejected:  # else the rejected origin is the one to correct
            nowhere = Problem("endpoints", "in no document; `endpoints: []` says that there are none")
            conflicts.append((next(iter(sorted(self._good)), ""), nowhere))
        self._conflicts = tuple(conflicts[:MOST_PROBLEMS])
        if (more := len(conflicts) - MOST_PROBLEMS) > 0:
            self._conflicts += ((conflicts[-1][0], Problem("", f"… and {more} more that are given twice")),)
        if not self.problems():
            self.since = None
        elif self.since is None:
            self.since = now
        if conflicts or not stated or merged == self.merged:
            return False
        self.merged = merged
        return True

    def problems(self) -> dict[str, list[Problem]]:
        """What is wrong, by origin; empty when what holds is what the origins say."""
        found = self.rejected
        for origin, problem in self._conflicts:
            found.setdefault(origin, []).append(problem)
        return found

    def warnings(self) -> dict[str, tuple[Problem, ...]]:
        return {
            origin: warnings
            for origin, reset in sorted(self._good.items())
            if (warnings := (*reset.documents.warnings, *(reset.loaded.warnings if reset.loaded else ())))
        }

    def ignored(self) -> dict[str, tuple[str, ...]]:
        """Sound documents that were left out, by origin, each with its reason."""
        found = {origin: reset.documents.ignored for origin, reset in sorted(self._good.items())}
        if self._preferred in self._good:
            note = f"{CONFIGURATION_KIND}: {self._preferred} goes before it"
            for origin, reset in self._good.items():
                if reset.documents.configuration and origin != self._preferred:
                    found[origin] = (*found[origin], note)
        return {origin: notes for origin, notes in found.items() if notes}

    @property
    def rejected(self) -> dict[str, list[Problem]]:
        """The origins that can't be used as they are, and why."""
        return {origin: list(event.problems) for origin, event in sorted(self._rejected.items())}

    def unknown(self) -> frozenset[tuple[str, str]]:
        """Kind and name of facts that an origin should state of which nothing good is known."""
        return frozenset(
            event.states for origin, event in self._rejected.items() if event.states[0] and origin not in self._good
        )

    @property
    def origins(self) -> list[str]:
        """Those that have been good once."""
        return sorted(self._good)

    def __repr__(self) -> str:
        endpoints = "none yet" if self.merged is None else f"{len(self.merged.endpoints)} endpoints"
        return f"<State {endpoints} of {len(self._good)} origins, {len(self.problems())} with problems>"


def merge(good: Mapping[str, Reset], preferred: str = "") -> tuple[Merged, list[tuple[str, Problem]]]:
    """The set that origins make together, and what doesn't fit, each with the origin to blame: of two that collide the
    one that sorts later."""
    conflicts: list[tuple[str, Problem]] = []
    endpoints: dict[str, tuple[str, Endpoint]] = {}
    resources: dict[tuple[type, str], tuple[str, Resource]] = {}
    objects: dict[tuple[ObjectKind, str, str], tuple[str, KubernetesObject]] = {}
    configurations: dict[str, Reset] = {}
    for origin, reset in sorted(good.items()):
        for endpoint in reset.documents.endpoints or ():
            _add(endpoints, endpoint.id, origin, endpoint, f"endpoint {endpoint.id!r}", conflicts)
        for resource in reset.documents.resources:
            what = f"Inference{type(resource).__name__} {resource.name!r}"
            _add(resources, (type(resource), resource.name), origin, resource, what, conflicts)
        for one in reset.documents.objects:
            _add(objects, one.key, origin, one, str(one), conflicts)
        if reset.documents.configuration:
            configurations[origin] = reset
    first, *others = sorted(configurations, key=lambda origin: (origin != preferred, origin)) or [""]
    if first != preferred:
        for origin in others:
            conflicts.append((origin, Problem("", f"{CONFIGURATION_KIND} is in {first} too; a pool has one")))
    chosen = configurations.get(first)
    merged = Merged(
        endpoints=tuple(endpoints[id][1] for id in sorted(endpoints)),
        resources=tuple(resource for _, resource in resources.values()),
        configuration=chosen.documents.configuration if chosen else None,
        loaded=chosen.loaded if chosen else None,
        objects=tuple(objects[key][1] for key in sorted(objects)),
    )
    return merged, conflicts


def _add(
    into: dict[Any, Any], key: Any, origin: str, value: Any, what: str, conflicts: list[tuple[str, Problem]]
) -> None:
    other = into.setdefault(key, (origin, value))[0]
    if other != origin:
        conflicts.append((origin, Problem("", f"{what} is in {other} too")))


def collect(problems: dict[str, list[Problem]]) -> Problems:
    """The problems of all origins in one list, each led by its origin."""
    collected = Problems()
    for origin, found in problems.items():
        for problem in found:
            collected.error(f"{origin}: {problem.path}" if problem.path else origin, problem.message, problem.line)
    return collected
