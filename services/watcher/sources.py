"""Sources of facts, and the events in which they report them.

An *origin* is what a source reads as one: a file, a resource of a cluster, or all pods of a pool. `Reset` holds
everything that an origin states. `Upsert` and `Delete` change one endpoint of it. `Rejected` says that the origin is
invalid; what it stated last stays in force. `services.watcher.state` merges the origins of all sources.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct

from services.watcher.documents import Documents
from shared.config.loaded import LoadedConfig
from shared.config.problems import Problem
from shared.datalayer.objects import ObjectKind, Parts
from shared.model import Endpoint


class Reset(Struct, frozen=True):
    """Everything that the origin states. What it stated before and isn't in here is gone."""

    origin: str
    documents: Documents
    loaded: LoadedConfig | None = None
    """The configuration among the documents, validated."""


class Upsert(Struct, frozen=True):
    """One endpoint of the origin is new or has changed. The origin has had a `Reset`."""

    origin: str
    endpoint: Endpoint


class Delete(Struct, frozen=True):
    """One endpoint of the origin is gone."""

    origin: str
    id: str


class Rejected(Struct, frozen=True):
    """The origin is invalid. What it stated last stays in force."""

    origin: str
    problems: tuple[Problem, ...]
    """At least one."""
    states: tuple[str, str] = ("", "")
    """Kind and name, as in keys on the bus, of the one fact that a valid origin would state. Empty if that is unknown
    or if the whole pool depends on the origin."""


class Removed(Struct, frozen=True):
    """The origin is gone, with everything that it stated."""

    origin: str


Event: TypeAlias = Reset | Upsert | Delete | Rejected | Removed
Emit: TypeAlias = Callable[[Sequence[Event]], Awaitable[None]]
"""Takes events that belong together. They are merged as one change, in turns with other work."""


class Source(Protocol):
    """Reports facts."""

    name: str
    """For logs and metrics."""

    def set_object_kinds(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        """Report all objects of these kinds, and no others, in `Documents.objects`. Only these parts of an object need
        to be read. Returns whether `load` has to report something again; `run` does so at once."""

    def confirmed_at(self, now: float) -> float:
        """When the source last knew that its reports were current: `now`, or earlier if it lost touch. Seconds of the
        monotonic clock."""

    async def load(self) -> Sequence[Event]:
        """The first complete reading. Called again, at least what has changed since, also what is gone."""

    async def run(self, emit: Emit) -> None:
        """Report changes for ever. Problems with an origin are events, not exceptions."""
