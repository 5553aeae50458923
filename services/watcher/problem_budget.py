"""How much is kept of what is wrong with origins: of a few origins nearly everything, of very many the first problem.

A resource of a kilobyte can have a hundred problems, and a cluster any number of such resources. A source that reads
them has one budget for all: who authors resources can't fill the watcher's memory with messages about them.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

from msgspec.structs import replace

from services.watcher.sources import Rejected, Reset
from shared.config.problems import MAX_PROBLEMS, Problem, first_problems

T = TypeVar("T")
E = TypeVar("E", bound=Rejected | Reset)

SIZE = 4 * 2**20
"""Characters, approximately."""
OVERHEAD = 200
"""What a problem counts beside its text."""
MAX_TEXT = 4096
"""Characters of one text."""


class ProblemBudget:
    """Counts what is kept. An event takes the place of the former one with its key; a `Rejected` leaves the last valid
    one in place."""

    def __init__(self, size: int = SIZE) -> None:
        self._left = size
        self._taken: dict[tuple[Hashable, type], int] = {}

    def fit(self, key: Hashable, event: E) -> E:
        """The event with the first problems, or warnings and ignored documents, and the number of the others. At least
        one of each is kept."""
        self._release(key, Rejected)
        if isinstance(event, Reset):
            self._release(key, Reset)
        before = self._left
        if isinstance(event, Rejected):
            event = replace(event, problems=self._problems(event.problems))
        elif (documents := event.documents).warnings or documents.ignored or (event.loaded and event.loaded.warnings):
            warnings, ignored = self._problems(documents.warnings), self._first(documents.ignored, len, _cut)
            if (more := len(documents.ignored) - len(ignored)) > 0:
                ignored.append(f"… and {more} more")
            loaded = event.loaded and replace(event.loaded, warnings=self._problems(event.loaded.warnings))
            kept = replace(documents, warnings=warnings, ignored=tuple(ignored))
            event = replace(event, documents=kept, loaded=loaded)
        if before != self._left:
            self._taken[key, type(event)] = before - self._left
        return event

    def drop(self, key: Hashable) -> None:
        """Nothing is kept under this key any more."""
        self._release(key, Rejected)
        self._release(key, Reset)

    def _release(self, key: Hashable, kind: type) -> None:
        self._left += self._taken.pop((key, kind), 0)

    def _problems(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        first = self._first(problems, lambda problem: len(problem.path) + len(problem.message), _cut_problem)
        return first_problems([*first, *problems[len(first) :]], len(first))

    def _first(self, items: Sequence[T], size: Callable[[T], int], cut: Callable[[T], T]) -> list[T]:
        first: list[T] = []
        for item in items[:MAX_PROBLEMS]:
            item = cut(item)
            cost = OVERHEAD + size(item)
            if first and cost > self._left:
                break
            self._left -= cost
            first.append(item)
        return first

    def __repr__(self) -> str:
        return f"<ProblemBudget {self._left} left, of {len(self._taken)} events>"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _cut_problem(problem: Problem) -> Problem:
    path, message = _cut(problem.path), _cut(problem.message)
    unchanged = path is problem.path and message is problem.message
    return problem if unchanged else replace(problem, path=path, message=message)
