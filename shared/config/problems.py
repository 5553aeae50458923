"""What is wrong with a document: every problem with its path, its value, and what would be right.

Loading never stops at the first problem. It collects them all and raises one `Invalid`, so that a user corrects a file
once.
"""

import difflib
from collections.abc import Iterable

from msgspec import Struct


class Problem(Struct, frozen=True):
    """One thing that is wrong, at one place: `plugins[2].parameters.headroom: -1 is …`."""

    path: str
    """Where in the document: keys with dots, list positions in brackets; empty for the document as a whole."""
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path or "document"
        return f"{where}: {self.message}" + (f" (line {self.line})" if self.line else "")


class Invalid(Exception):
    """A document, or the settings of a process, can't be used. Says everything that is wrong at once."""

    def __init__(self, problems: Iterable[Problem], origin: str = "") -> None:
        self.problems = tuple(problems)
        self.origin = origin
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line a problem, led by the origin where there is one."""
        lead = f"{self.origin}: " if self.origin else ""
        return [f"{lead}{problem}" for problem in self.problems]


class Problems:
    """Collects problems and warnings while a document is read."""

    __slots__ = ("errors", "warnings")

    def __init__(self) -> None:
        self.errors: list[Problem] = []
        self.warnings: list[Problem] = []

    def error(self, path: str, message: str, line: int | None = None) -> None:
        self.errors.append(Problem(path, message, line))

    def warn(self, path: str, message: str) -> None:
        self.warnings.append(Problem(path, message))

    def raise_if_any(self, origin: str = "") -> None:
        if self.errors:
            raise Invalid(self.errors, origin)

    def __repr__(self) -> str:
        return f"<Problems {len(self.errors)} errors, {len(self.warnings)} warnings>"


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the known word that is spelled most like this one or goes on from it, or nothing."""
    candidates = {name.lower(): name for name in known}
    folded = word.lower()
    match = difflib.get_close_matches(folded, list(candidates), n=1, cutoff=0.6)
    if not match and len(folded) > 2:
        match = [name for name in candidates if name.startswith(folded)]
    return f"; did you mean {candidates[match[0]]!r}?" if match else ""


def show(value: object) -> str:
    """The value as an error message shows it: as a document writes it, short, on one line."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints
        text = "a number too long to print"
    return text if len(text) <= 80 else text[:77] + "…"


def join(path: str, key: str | int) -> str:
    """The path of a member: `a.b` for a key, `a[3]` for a position."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key
