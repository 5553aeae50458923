"""Problems of a document: each with its path, its value, and what is expected.

Loading collects all problems and raises one `Invalid`.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

MAX_HINTS = 50
"""Problems of a document that get a suggestion for a wrong name: comparing words takes time."""
MAX_LINES = 100
"""Problems that a message names."""
MAX_SHOWN = 80
"""Characters of a value, or of a key in a path, that a message shows."""
_MAX_WORD = 64
"""Characters of a word that is compared with others."""


class Problem(Struct, frozen=True):
    """One thing that is wrong, at one place: `plugins[2].parameters.headroom: -1 is …`."""

    path: str
    """Where in the document: keys with dots, list positions in brackets; empty for the document as a whole."""
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path or "document"
        return f"{where}: {self.message}" + (f" (line {self.line})" if self.line else "")


class More(Problem, frozen=True, kw_only=True):
    """Stands for further problems, which aren't kept."""

    count: int

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class Invalid(Exception):
    """A document, or the settings of a process, can't be used. Says everything that is wrong at once."""

    def __init__(self, problems: Iterable[Problem], origin: str = "") -> None:
        self.problems = tuple(problems)
        self.origin = origin
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line a problem, led by the origin where there is one; of very many, the first ones."""
        lead = f"{self.origin}: " if self.origin else ""
        more = count_problems(self.problems[MAX_LINES:])
        rest = [f"{lead}… and {more} more problems"] if more > 0 else []
        return [f"{lead}{problem}" for problem in self.problems[:MAX_LINES]] + rest


class Problems:
    """Collects problems and warnings while a document is read."""

    __slots__ = ("errors", "warnings")

    def __init__(self) -> None:
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def error(self, path: str, message: str, line: int | None = None) -> None:
        self.errors.append(Problem(path, message, line))

    def add_new_errors(self, found: Iterable[Problem]) -> None:
        """Add those that aren't here: a second reader of a document may find the same."""
        if found := list(found):
            known = set(self.errors)
            self.errors += [problem for problem in found if problem not in known]

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(Problem(path, message))

    def hint(self, word: str, known: Iterable[str]) -> str:
        """What `nearest` says, for the first problems of a document."""
        return "" if len(self.errors) > MAX_HINTS else nearest(word, known)

    def raise_if_any(self, origin: str = "") -> None:
        if self.errors:
            raise Invalid(self.errors, origin)

    def __repr__(self) -> str:
        return f"<Problems {len(self.errors)} errors, {len(self.warnings)} warnings>"


MAX_PROBLEMS = 100
"""The most problems of a document that are kept: a file of megabytes can have one in each line."""


def first_problems(problems: Sequence[Problem], most: int = MAX_PROBLEMS) -> tuple[Problem, ...]:
    """The first problems, and the number of the others."""
    more = count_problems(problems[most:])
    return (*problems[:most], *([More("", f"… and {more} more", count=more)] if more else []))


def count_problems(problems: Iterable[Problem]) -> int:
    """How many there are, with those that aren't kept."""
    return sum(problem.count if isinstance(problem, More) else 1 for problem in problems)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word that is spelled almost like this one, or nothing."""
    nearest_word = closest(word, known)
    return f"; did you mean {nearest_word!r}?" if nearest_word else ""


def closest(word: str, known: Iterable[str]) -> str:
    """The known word with the fewest typing errors, ignoring case; of several the first; or nothing.

    A typing error is a letter too many, too few or another one, or two swapped letters. Words of up to five letters may
    have one, longer ones two: beyond that, another word is as likely.
    """
    folded = word.lower()
    if len(folded) > _MAX_WORD:
        return ""
    limit = 0 if len(folded) < 3 else 1 if len(folded) < 6 else 2
    found = ""
    for name in known:
        distance = _edit_distance(folded, name.lower(), limit)
        if distance <= limit and (not found or distance < limit):
            found, limit = name, distance
    return found


def _edit_distance(word: str, other: str, limit: int) -> int:
    """The optimal string alignment distance of two words, or anything above `limit` where it is above that."""
    if abs(len(word) - len(other)) > limit:
        return limit + 1
    above: list[int] = []
    line = list(range(len(other) + 1))
    for row, letter in enumerate(word, 1):
        above, before, line = line, above, [row] + [limit + 1] * len(other)
        for column in range(max(1, row - limit), min(len(other), row + limit) + 1):  # further off are more slips
            cost = min(above[column] + 1, line[column - 1] + 1, above[column - 1] + (letter != other[column - 1]))
            if row > 1 and column > 1 and letter == other[column - 2] and other[column - 1] == word[row - 2]:
                cost = min(cost, before[column - 2] + 1)
            line[column] = cost
    return line[-1]


def show(value: object) -> str:
    """The value as an error message shows it: as a document writes it, short, on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        text = repr(value[:100] if isinstance(value, str) else value)  # the text of a file may have megabytes
    except ValueError:  # an integer of more digits than Python prints
        text = "a number too long to print"
    return _shortened(text)


def join(path: str, key: str | int) -> str:
    """The path of a member: `a.b` for a key, `a[3]` for a position. A long key is shortened."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    key = _shortened(key)
    return f"{path}.{key}" if path else key


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "…"
