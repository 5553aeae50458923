"""The first of many texts, and how many more there are: for log lines, notes and pages about any number of origins."""

from collections.abc import Iterable, Sequence
from itertools import islice

from shared.config.problems import More, Problem, count_problems

SHOWN = 10
"""The most texts in a log line or a note."""
LISTED = 50
"""The most origins in a list of `/debug/state`."""


def few(texts: Sequence[str], count: int | None = None) -> list[str]:
    """The first of them, and the number of the others. `count` is that of all, of which these are the first ones."""
    first = list(texts[:SHOWN])
    more = (len(texts) if count is None else count) - len(first)
    return [*first, f"… and {more} more"] if more > 0 else first


def few_problems(problems: Iterable[Problem], count: int | None = None) -> list[str]:
    """The first of them, and the number of the others, likewise."""
    problems = list(problems)
    first = islice((problem for problem in problems if not isinstance(problem, More)), SHOWN)
    return few(list(map(str, first)), count_problems(problems) if count is None else count)


def listed(found: Iterable[tuple[str, object]], count: int) -> dict[str, object]:
    """What is said of the first of so many origins; a last member has the number of the others."""
    first = dict(islice(found, LISTED))
    return {**first, "…": f"and {count - len(first)} more"} if count > len(first) else first
