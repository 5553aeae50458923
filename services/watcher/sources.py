"""Where facts come from: a source reads something and says what it found, in three words.

`Reset` is all that an origin states now, `Rejected` says that it can't be used (what it stated last holds), `Removed`
that it is no more. An origin is a file, or for another source whatever it lists or changes as one, be it one object.
The file source is `services.watcher.files`; `services.watcher.state` merges what all sources say.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from services.watcher.documents import Documents
from shared.config.loaded import LoadedConfig
from shared.config.problems import Problem
from shared.datalayer.objects import ObjectKind, Parts


class Reset(Struct, frozen=True):
    """All that the origin states: what it stated before and isn't in here is gone."""

    origin: str
    documents: Documents
    loaded: LoadedConfig | None = None
    """The configuration among the documents, validated."""


class Rejected(Struct, frozen=True):
    """The origin can't be used as it is; its last `Reset` holds."""

    origin: str
    problems: tuple[Problem, ...]
    states: tuple[str, str] = ("", "")
    """The kind of the one fact that it states when it is good, as keys on the bus have it, and its name; empty where
    that isn't known, or the whole pool hangs on it."""


class Removed(Struct, frozen=True):
    """The origin is no more, and nothing that it stated."""

    origin: str


Event: TypeAlias = Reset | Rejected | Removed

MOST_PROBLEMS = 100
"""Of an origin, that are kept: a file of megabytes can have one in every line."""


def first(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The first problems, and how many more there are."""
    more = len(problems) - MOST_PROBLEMS
    rest = (Problem("", f"… and {more} more"),) if more > 0 else ()
    return (*problems[:MOST_PROBLEMS], *rest)


def bounded(event: Event) -> Event:
    """The event with as many problems, warnings and notes as are kept."""
    match event:
        case Rejected(problems=problems) if len(problems) > MOST_PROBLEMS:
            return replace(event, problems=first(problems))
        case Reset(documents=documents) if max(len(documents.warnings), len(documents.ignored)) > MOST_PROBLEMS:
            warnings, ignored = first(documents.warnings), documents.ignored
            if len(ignored) > MOST_PROBLEMS:
                ignored = (*ignored[:MOST_PROBLEMS], f"… and {len(ignored) - MOST_PROBLEMS} more")
            return replace(event, documents=replace(documents, warnings=warnings, ignored=ignored))
        case _:
            return event


Emit: TypeAlias = Callable[[Sequence[Event]], None]
"""Takes events that belong together: they are merged as one change."""


class Source(Protocol):
    """Something that knows facts."""

    name: str
    """For logs and metrics."""

    def want(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        """Let `Documents.objects` have all objects of these kinds from now on, and no others; more than those parts of
        them needn't be read. Whether something that was reported is to be reported again for it: the next reading, or
        `run` at once, does."""

    def confirmed(self, now: float) -> float:
        """When it last knew that what it reported still holds: `now` itself, or earlier where it lost touch. Seconds of
        the monotonic clock."""

    async def load(self) -> Sequence[Event]:
        """The first complete reading."""

    async def run(self, emit: Emit) -> None:
        """Report changes for ever. What can go wrong with an origin is an event, not an exception."""
